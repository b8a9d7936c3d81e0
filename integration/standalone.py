"""A standalone Spark cluster on this machine: a master, and workers that come and go.

Each worker runs one executor of an application. Both are processes, which a test kills.
"""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import psutil
import pyspark

from integration.ports import free_ports
from integration.spark import QUICK_JVM
from tests.support.clock import until

HOST: Final = "127.0.0.1"
EXECUTOR: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
START_SECONDS: Final = 300.0

CONFIG: Final[Mapping[str, str]] = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": " ".join(QUICK_JVM),
    "spark.task.maxFailures": "8",  # executors are killed
    "spark.excludeOnFailure.enabled": "false",
}
"""Settings of an application on it."""


class Process:
    """A JVM of the cluster.

    Args:
        main: Its class.
        arguments: What follows.
        folder: For its log, and for what its executors write.
    """

    def __init__(self, main: str, arguments: list[str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log_file = folder / "log"
        spark = spark_home()
        environment = {
            **os.environ,
            "SPARK_HOME": str(spark),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join(QUICK_JVM),
        }
        command = [str(spark / "bin" / "spark-class"), main, *arguments]
        with self.log_file.open("wb") as log:
            self.process = psutil.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def log(self) -> str:
        """What it has printed."""
        return self.log_file.read_text(errors="replace")

    def stop(self) -> None:
        """End it and its executors, as a machine that is switched off."""
        processes = [*self.process.children(recursive=True), self.process]
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # it ends as one above it is killed
                process.send_signal(signal.SIGKILL)
        self.process.wait(60)


class Worker(Process):
    """A worker.

    Args:
        url: The master's.
        folder: For its log and its executor's.
        cores: Number of task slots.
    """

    def __init__(self, url: str, folder: Path, cores: int) -> None:
        arguments = ["--host", HOST, "--cores", str(cores), "--memory", "1g", "--webui-port", "0"]
        arguments += ["--work-dir", str(folder / "work"), url]
        super().__init__("org.apache.spark.deploy.worker.Worker", arguments, folder)

    def wait(self) -> None:
        """Wait until the master knows it."""
        until(lambda: "Successfully registered with master" in self.log(), START_SECONDS, self.log)

    def executors(self) -> list[psutil.Process]:
        """Its executors that live."""
        return [each for each in self.process.children() if _is_executor(each)]

    def kill_executor(self) -> None:
        """Kill -9 its executor; the worker starts another."""
        for each in self.executors():
            each.kill()


class StandaloneCluster:
    """A master and some workers.

    Args:
        folder: For logs.
        cores: Task slots of each worker.
    """

    def __init__(self, folder: Path, cores: int = 1) -> None:
        self._folder, self._cores, self._started = folder, cores, 0
        (port,) = free_ports(1)
        self.url = f"spark://{HOST}:{port}"
        arguments = ["--host", HOST, "--port", str(port), "--webui-port", "0"]
        self._master = Process(
            "org.apache.spark.deploy.master.Master", arguments, folder / "master"
        )
        self.workers: list[Worker] = []
        until(lambda: "I have been elected leader" in self._master.log(), START_SECONDS)

    def add_workers(self, count: int = 1) -> list[Worker]:
        """Start more workers, at once."""
        added = []
        for _ in range(count):
            self._started += 1
            folder = self._folder / f"worker-{self._started}"
            added.append(Worker(self.url, folder, self._cores))
        self.workers += added
        for worker in added:
            worker.wait()
        return added

    def remove_worker(self, worker: Worker) -> None:
        """End a worker and its executor."""
        self.workers.remove(worker)
        worker.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.workers, self._master]:
            process.stop()


def spark_home() -> Path:
    """The folder of this environment's PySpark, which holds a whole Spark."""
    return Path(pyspark.__path__[0])


def _is_executor(process: psutil.Process) -> bool:
    try:
        return EXECUTOR in process.cmdline()
    except psutil.Error:  # it has ended in this moment
        return False
