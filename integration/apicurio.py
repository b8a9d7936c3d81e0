"""A real schema registry: Apicurio 2.6.13, one JVM, which keeps what it has in memory.

It starts in about 7 s. A registry that cannot start fails the test with its log.
"""

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen

from integration.jars import fetched, java
from integration.ports import HOST, free_ports

__all__ = ["ApicurioRegistry", "RegistryError"]

START_TIMEOUT_S = 180.0
_JVM_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")


class RegistryError(RuntimeError):
    """A registry did not start; the text ends with its log."""


class ApicurioRegistry:
    """A registry, started as a context manager.

    Args:
        config: System properties of Quarkus and of the registry.
    """

    def __init__(self, config: Mapping[str, str] | None = None) -> None:
        (self._port,) = free_ports(1)
        self._config = dict(config or {})
        self._folder = Path(tempfile.mkdtemp(prefix="kshare-apicurio-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def root(self) -> str:
        """The address of the server."""
        return f"http://{HOST}:{self._port}"

    @property
    def url(self) -> str:
        """The address of its API that is Confluent's."""
        return f"{self.root}/apis/ccompat/v7"

    def __enter__(self) -> Self:
        try:
            self._launch()
            self._wait_until_started()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def freeze(self) -> None:
        """Stop all its threads: connections are taken, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume after ``freeze``."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End it, with all that it has."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            atexit.unregister(self._process.kill)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _launch(self) -> None:
        (runner,) = fetched("registry")
        settings = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": str(self._port),
            **self._config,
        }
        command = [java(), *_JVM_FLAGS, *(f"-D{name}={settings[name]}" for name in settings)]
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "-jar", str(runner)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,  # Ctrl-C is pytest's, which then ends it
            )
        atexit.register(self._process.kill)

    def _wait_until_started(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                with urlopen(f"{self.url}/subjects", timeout=5):
                    return
            except (URLError, OSError) as error:
                said = f"{error}\n{self._log_file.read_text(errors='replace')[-4000:]}"
            if self._process.poll() is not None:
                raise RegistryError(f"registry ended with {self._process.returncode}: {said}")
            if time.monotonic() > deadline:
                raise RegistryError(f"registry not up in {START_TIMEOUT_S:.0f} s: {said}")
            time.sleep(0.1)

    @property
    def _log_file(self) -> Path:
        return self._folder / "registry.log"

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)
