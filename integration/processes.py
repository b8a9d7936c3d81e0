"""Python processes that start with what they import.

A fresh interpreter takes a second of CPU time for its imports, most of it for those of librdkafka's
and kafka-python's clients. So these are forks of a server, one for each run of pytest, that has
imported everything; it runs nothing itself and has no threads.
"""

import faulthandler
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_MODULES = [
    "integration.consumer_process",
    "integration.group_member",
    "integration.handler_kills_process",
    "integration.handler_process",
    "integration.member_process",
    "integration.plain_process",
    "integration.query_process",
    "integration.releasing_process",
    "integration.transaction_process",
    "integration.verifiable_consumer",
]
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(_MODULES)


class PythonProcess:
    """A process that runs ``main`` of a module; as ``subprocess.Popen``, where it has the same.

    Args:
        module: The module's name.
        arguments: What ``main`` is called with; what it returns is the exit code.
        stdout: Where standard output is appended to; None: where this process has it.
        stderr: The same for standard error.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        stdout: Path | None = None,
        stderr: Path | None = None,
    ) -> None:
        self._process = _FORKS.Process(
            target=_run, args=(module, arguments, stdout, stderr), name=module, daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code; a negative signal; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code.

        Raises:
            subprocess.TimeoutExpired: It still runs after so many seconds.
        """
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill -9."""
        self.send_signal(signal.SIGKILL)


def let_go(file: Path) -> None:
    """Let the handler that hangs of a process go on, which writes to a file."""
    Path(f"{file}.goes-on").touch()


def _run(module: str, arguments: Sequence[str], stdout: Path | None, stderr: Path | None) -> None:
    # A process group that loses its last tie to its session while one of its processes is stopped
    # gets SIGHUP: that must not be pytest's own.
    os.setpgid(0, 0)
    for number, file in ((1, stdout), (2, stderr)):
        if file is not None:
            opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.dup2(opened, number)
            os.close(opened)
    faulthandler.enable()
    sys.exit(importlib.import_module(module).main(*arguments))
