"""Running the queries of :mod:`integration.streaming_job`, and judging what they wrote."""

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from integration.spark import BARE, NO_PLANNER, QUERY_S, START_TRIES
from integration.spark_versions import environment, variables
from integration.streaming_job import Kill
from kshare.testing import OrderReport, check_order
from spark_plugin.interpreter import worker_python
from tests.support import shown

ROOT = Path(__file__).resolve().parent.parent


class Driver:
    """A Spark in a process of its own, for one query after another; started again if it was killed.

    Args:
        folder: for its log.
        master: as Spark's; a change counts from the next start.
        version: of another Spark than this environment's; see :mod:`integration.spark_versions`.
        bare: Spark runs a plain python3, with the modules in this folder.
        config: more settings of Spark.
    """

    def __init__(
        self,
        folder: Path,
        master: str = "local[2]",
        version: str | None = None,
        bare: Path | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self._config = json.dumps({**(config or {})})
        self.log_file = folder / "spark.log"
        self._python = sys.executable if version is None else str(environment(version))
        self._variables = (
            {**os.environ, "PYSPARK_PYTHON": worker_python()}
            if version is None
            else variables(Path(self._python))
        )
        self._path = [str(ROOT)] if bare is None else [str(bare), str(ROOT)]
        if bare is not None:
            self._variables[BARE] = "1"
        self.master = master
        self.starts = 0
        self._process: subprocess.Popen[str] | None = None
        self._answers: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, job: dict[str, Any]) -> str | None:
        """Run a query to its end.

        Returns:
            The query's error; None if it has read all there is.

        Raises:
            DriverKilledError: JVM and driver have ended.
        """
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._answers.readline()
        if line:
            answer: str | None = json.loads(line)
            return answer
        self.close()
        raise DriverKilledError(f"the driver has ended:\n{self.log()}")

    @property
    def process(self) -> subprocess.Popen[str] | None:
        """The process, if there is one; its children are all that Spark has started."""
        return self._process

    def log(self) -> str:
        """The end of what it printed."""
        return self.log_file.read_text(errors="replace")[-8000:]

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        self._answers.close()
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> None:
        # A pipe of its own: what the driver's children inherit stays open until the last is gone.
        mine, its = os.pipe()
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._python,
                    "-m",
                    "integration.streaming_job",
                    str(its),
                    self.master,
                    self._config,
                ],
                cwd=ROOT,
                env={**self._variables, "PYTHONPATH": os.pathsep.join(self._path)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(its,),
                text=True,
            )
        os.close(its)
        self._answers = os.fdopen(mine)
        self.starts += 1


class DriverKilledError(Exception):
    """The driver was killed before it answered."""


class StreamingRun:
    """One query: its checkpoint and its sink, through any number of starts."""

    def __init__(
        self,
        servers: str,
        topic: str,
        folder: Path,
        driver: Driver | None = None,
        **options: str,
    ) -> None:
        self.servers, self.topic = servers, topic
        self.folder, self.driver = folder, driver
        self.checkpoint, self.out = folder / "checkpoint", folder / "out"
        self.planner_log = folder / "planner.log"
        self.stop_file = folder / "stop"  # ends a query, if it is there
        self.more: dict[str, Any] = {}  # of a job; see streaming_job
        self.options = options

    def start(self, source: str = "kshare", **more: str) -> None:
        """Read all there is. AssertionError: the query fails."""
        error = self.try_to_start(source, None, None, **more)
        if error is not None:
            raise AssertionError(f"the query failed: {error}")

    def start_and_kill(self, what: str, where: str, batch: int, **more: str) -> None:
        """Like :meth:`start`, but kill something (see ``streaming_job``)."""
        kill = {"what": what, "where": where, "batch": batch, "rows": 20}
        error = self.try_to_start("kshare", kill, None, **more)
        assert was_killed(kill), f"no {what} was killed {where} of batch {batch}: {error}"
        assert error is not None, f"the query ended although the {what} was killed {where}"

    def try_to_start(
        self, source: str, kill: Kill | None, batches: int | None = None, **more: str
    ) -> str | None:
        """Run until all is read, or some batches are, or it fails; see also :func:`was_killed`.

        Returns:
            The error, or None.
        """
        assert self.driver is not None
        job: dict[str, Any] = {
            "servers": self.servers,
            "topic": self.topic,
            "checkpoint": str(self.checkpoint),
            "out": str(self.out),
            "source": source,
            "options": {**self.options, **more},
            "log": str(self.planner_log),
            "stop_file": str(self.stop_file),
            "kill": kill,
            **self.more,
        }
        self.stop_file.unlink(missing_ok=True)
        if batches is not None:
            job["batches"] = batches
        if kill is not None:
            kill["marker"] = str(self.folder / f"killed-{uuid.uuid4().hex}")
        error = None
        for _ in range(START_TRIES):
            try:
                error = self.driver.run(job)
            except DriverKilledError as killed:
                if kill is None or kill["what"] != "driver" or not was_killed(kill):
                    raise AssertionError(str(killed)) from killed
                error = "the driver was killed"
            if kill is not None and was_killed(kill):
                shown.killed(f"Spark {kill['what']}")
                break
            if NO_PLANNER not in (error or ""):
                break
        return error

    def received(self) -> pa.Table:
        """All rows of the sink, with the batch and the task that wrote them, in task order."""
        columns = ["topic", "partition", "offset", "key", "task", "batch"]
        partitioning = ds.partitioning(pa.schema([("batch", pa.int64())]), flavor="hive")
        return ds.dataset(
            self.out, format="parquet", partitioning=partitioning, exclude_invalid_files=True
        ).to_table(columns=columns)

    def judge(self, expected: Any, *, has_order: bool = True) -> OrderReport:
        """The order checker's verdict; without key order, the order is not for the page."""
        report = check_order(self.received(), expected)
        shown.judged(report, has_order=has_order)
        return report

    def offsets(self) -> dict[int, dict[str, Any]]:
        """The offset dicts that Spark wrote, by batch."""
        return {
            int(file.name): json.loads(file.read_text().splitlines()[2])
            for file in (self.checkpoint / "offsets").glob("*")
            if file.name.isdigit()
        }


@contextmanager
def running(run: StreamingRun) -> Iterator[threading.Thread]:
    """Read all there is in a thread; at the end, the query must have done so."""
    errors: list[str | None] = []
    thread = threading.Thread(target=lambda: errors.append(run.try_to_start("kshare", None)))
    thread.start()
    yield thread
    thread.join(QUERY_S)
    assert errors == [None], (errors, run.driver.log() if run.driver else "")


class Batches:
    """The batches that a query has written: each is looked at once."""

    def __init__(self, run: StreamingRun) -> None:
        self._out = run.out
        self._tasks: dict[int, int] = {}

    def tasks(self) -> dict[int, int]:
        """How many tasks delivered records, by batch."""
        for done in self._out.glob("batch=*/_SUCCESS"):
            batch = int(done.parent.name.removeprefix("batch="))
            if batch not in self._tasks:
                rows = ds.dataset(done.parent, format="parquet").to_table(columns=["task"])
                self._tasks[batch] = len(pc.unique(rows["task"]))
        return dict(sorted(self._tasks.items()))

    def seconds(self) -> dict[int, float]:
        """How long each took, from the end of the one before."""
        files = {number: self._out / f"batch={number}" / "_SUCCESS" for number in self.tasks()}
        ends = {number: file.stat().st_mtime for number, file in files.items()}
        return {
            number: end - ends[number - 1] for number, end in ends.items() if number - 1 in ends
        }

    def wait(self, is_so: Callable[[dict[int, int]], object], seconds: float = QUERY_S) -> None:
        """Wait until the batches say so."""
        deadline = time.monotonic() + seconds
        while not is_so(self.tasks()):
            assert time.monotonic() < deadline, self.tasks()
            time.sleep(0.1)

    def wait_for(self, more: int) -> None:
        """Wait for so many batches more."""
        done = max(self.tasks(), default=0)
        self.wait(lambda tasks: max(tasks, default=0) >= done + more)


def was_killed(kill: Kill) -> bool:
    """Whether a start reached its kill."""
    return Path(kill["marker"]).exists()
