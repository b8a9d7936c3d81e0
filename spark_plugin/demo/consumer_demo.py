"""``kshare demo --consumer``: two processes share one partition, one is killed, order holds.

No Spark, no Java: without a real cluster the broker is embedded. Nothing is left behind there.
"""

import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic

from kshare.core.hashing import WHOLE, HashRange, split
from kshare.errors import KshareError
from kshare.group.config import LOG_TOPIC
from kshare.testing import FakeCluster, OrderReport, check_order, produce, skewed_records

__all__ = ["judge", "run_consumers"]

_RECORDS: Final = 8_000
_KEYS: Final = 200
_TIMEOUT_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.1

Rows = list[tuple[int, str]]
"""Offset and key of each record, in the order in which a process was given them."""


@dataclass
class _Member:
    """A process of the group, and the file that it writes to."""

    name: str
    process: subprocess.Popen[bytes]
    output: Path

    def rows(self) -> Rows:
        """What it was given so far; a line that is cut off was not processed."""
        text = self.output.read_text()
        lines = text[: text.rfind("\n") + 1].splitlines()
        return [(int(line.split(" ")[0]), line.split(" ")[1]) for line in lines]


def run_consumers(
    servers: str | None, records: int | None, seconds_max: float, say: Callable[[str], object]
) -> int:
    """Run the demo.

    Args:
        servers: Bootstrap servers of a real cluster; None for an embedded one.
        records: Number of records to produce; None for 8,000.
        seconds_max: Maximum time to wait for all of them to be read.
        say: Prints a line.

    Returns:
        The exit code: 0 if every key was in order and nothing was lost.

    Raises:
        KshareError: The processes did not read everything in time.
    """
    wanted = _RECORDS if records is None else records
    with ExitStack() as stack:
        broker, topic = stack.enter_context(_topic(servers))
        say(f"Producing {wanted:,} records of {_KEYS:,} keys into one partition ...")
        produce(broker, topic, skewed_records(wanted, _KEYS), partition=0)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kshare-demo-"))
        group = f"kshare-demo-{uuid.uuid4().hex[:8]}"
        members: list[_Member] = []
        numbers = count(1)

        def start(hashes: HashRange) -> _Member:
            name = f"process {next(numbers)}"
            output = Path(folder) / name
            command = [sys.executable, "-m", "spark_plugin.demo.consumer_member", broker, topic]
            command += [group, str(hashes.lo), str(hashes.hi)]
            with output.open("wb") as file:
                process = subprocess.Popen(command, stdout=file)  # noqa: S603
            members.append(_Member(name, process, output))
            stack.callback(_stop, process)
            return members[-1]

        halves = split(WHOLE, 2)
        victim, _ = start(halves[0]), start(halves[1])
        say("Two processes share the partition, half of the key hashes each.")
        deadline = time.monotonic() + seconds_max
        _wait(lambda: len(victim.rows()) >= wanted // 8, deadline, "the first records")
        victim.process.kill()
        victim.process.wait()
        say(f"Killed {victim.name} (kill -9) after {len(victim.rows()):,} records.")
        heir = start(halves[0])
        say(f"Started {heir.name} for its key hashes; it waits until the dead one's claim is over.")

        def all_read() -> bool:
            return len({row for member in members for row in member.rows()}) >= wanted

        _wait(all_read, deadline, "all records")
        for member in members:
            _stop(member.process)
            say(f"{member.name}: {len(member.rows()):,} records")
        report, again = judge({member.name: member.rows() for member in members}, wanted)
    say(f"Delivered again, because they had not been committed: {again:,}")
    say(str(report))
    return 0 if report.ok else 1


def judge(rows: Mapping[str, Rows], records: int) -> tuple[OrderReport, int]:
    """Check that nothing was lost, and that each key was in order.

    A killed process has not committed its last records: others get them again. So what came again
    counts where it came last.

    Args:
        rows: What each process was given, in the order in which they were started.
        records: Number of records that the partition holds, from offset 0 on.

    Returns:
        The report, and how many records came again.
    """
    seen: set[int] = set()
    tables = []
    again = 0
    for number, (name, given) in reversed(list(enumerate(rows.items()))):
        kept = [row for row in given if row[0] not in seen]
        again += len(given) - len(kept)
        seen |= {offset for offset, _ in given}
        tables.append(
            pa.table(
                {
                    "offset": pa.array([offset for offset, _ in kept], pa.int64()),
                    "key": pa.array([bytes.fromhex(key) for _, key in kept], pa.binary()),
                    "batch": pa.array([number] * len(kept), pa.int64()),
                    "task": pa.array([name] * len(kept), pa.string()),
                }
            )
        )
    return check_order(pa.concat_tables(tables[::-1]), {0: (0, records)}), again


def _wait(is_done: Callable[[], bool], deadline: float, what: str) -> None:
    while not is_done():
        if time.monotonic() > deadline:
            raise KshareError(f"the processes did not read {what} in time; --seconds gives more")
        time.sleep(_LOOK_SECONDS)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _topic(servers: str | None) -> Iterator[tuple[str, str]]:
    """A topic of one partition, which is deleted at the end; bootstrap servers and name."""
    name = f"kshare-demo-{uuid.uuid4().hex[:12]}"
    if servers is None:
        with FakeCluster(topics={name: 1, LOG_TOPIC: 1}) as cluster:
            yield cluster.bootstrap_servers, name
        return
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    admin.create_topics([NewTopic(name, 1)])[name].result(_TIMEOUT_SECONDS)
    try:
        yield servers, name
    finally:
        admin.delete_topics([name])[name].result(_TIMEOUT_SECONDS)
