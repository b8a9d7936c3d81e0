"""A Spark Connect server, and an environment for its clients that has no JVM.

The server is this environment's Spark. Clients have ``pyspark-client``, the newest that is not
newer than the server, and what kshare's listener and handlers by key need. Their environment is
made once, in ``.cache``.
"""

import os
import shutil
import socket
import subprocess
import sys
import venv
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final, Self

from integration.jars import CACHE, ROOT, locked
from integration.ports import free_ports
from integration.spark import INTERPRETED, QUICK_JVM
from integration.standalone import spark_home
from spark_plugin.interpreter import worker_python
from tests.support.clock import until

HOST: Final = "127.0.0.1"
START_SECONDS: Final = 300.0
SERVER: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
CLIENT_NEEDS: Final = ("pydantic", "mmh3", "confluent-kafka")
"""Packages of the listener and of ``process_by_key``."""


class ConnectServer:
    """A Spark Connect server in ``local[2]``.

    Args:
        folder: For its log, its warehouse and its metastore.
    """

    def __init__(self, folder: Path) -> None:
        (self._port,) = free_ports(1)
        self.url = f"sc://{HOST}:{self._port}"
        self.warehouse = folder / "warehouse"
        self._log_file = folder / "connect.log"
        settings = {
            **INTERPRETED,
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.driver.extraJavaOptions": " ".join(QUICK_JVM),
            "spark.driver.host": HOST,
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self.warehouse),
            "spark.log.level": "WARN",
            "spark.ui.enabled": "false",
        }
        home = spark_home()
        command = [str(home / "bin" / "spark-submit"), "--class", SERVER, "--master", "local[2]"]
        command += ["--driver-memory", "1g"]
        command += [part for each in settings.items() for part in ("--conf", "=".join(each))]
        python = {"PYSPARK_PYTHON": worker_python(), "PYSPARK_DRIVER_PYTHON": worker_python()}
        environment = {**os.environ, **python, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": HOST}
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "spark-internal"],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait(self) -> None:
        """Wait until it takes connections."""
        until(self._takes_connections, START_SECONDS, self.log)

    def _takes_connections(self) -> bool:
        assert self._process.poll() is None, self.log()
        with suppress(OSError), socket.create_connection((HOST, self._port), timeout=1):
            return True
        return False

    def log(self) -> str:
        """The end of what it has printed."""
        return self._log_file.read_text(errors="replace")[-8000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def client_python() -> Path:
    """Return the Python of an environment with ``pyspark-client``, which is made if missing."""
    folder = CACHE / "spark" / f"connect-client-{version('pyspark')}"
    python, ready = folder / "bin" / "python", folder / "-".join(["ready", *CLIENT_NEEDS])
    with locked(CACHE / "spark" / "connect-client.lock"):
        if not ready.exists():
            print("installing pyspark-client ...", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            client = f"pyspark-client<={version('pyspark')}"
            install = [str(python), "-m", "pip", "install", "--quiet", client, *CLIENT_NEEDS]
            subprocess.run(install, check=True)
            ready.touch()
        # As pip install --no-deps kshare would: kshare needs PySpark, which has a JVM with it.
        packages = next(folder.glob("lib/python3*/site-packages"))
        (packages / "kshare.pth").write_text(f"{ROOT}\n")  # also if the project's folder has moved
    return python


def run_client(url: str, arguments: list[str], folder: Path, seconds: float = 800) -> str:
    """Run a Python program in the client's environment, without Java on its path.

    Args:
        url: The server's.
        arguments: Of the interpreter.
        folder: The working directory.
        seconds: How long it may take.

    Returns:
        What it has printed on standard output.
    """
    python = client_python()
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    environment = {**kept, "PATH": str(python.parent), "SPARK_REMOTE": url}
    done = subprocess.run(
        [str(python), *arguments],
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    if done.returncode:
        raise AssertionError(f"{done.stdout}\n{done.stderr[-6000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.stdout.write(f"{client_python()}\n")
