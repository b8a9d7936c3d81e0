"""``kshare demo --consumer``: two processes share one partition, one is killed, order holds.

No Spark, no Java: without a real cluster the broker is embedded. Nothing is left behind there.
"""

import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import pyarrow as pa

from kshare.core.hashing import WHOLE, HashRange, split
from kshare.testing import OrderReport, check_order, produce, skewed_records
from spark_plugin.demo.processes import stop_process, temporary_topic, wait_until

__all__ = ["judge", "run_consumers"]

_RECORDS: Final = 8_000
_KEYS: Final = 200

Rows = list[tuple[int, str]]
"""Offset and key of each record, in the order in which a process was given them."""


@dataclass
class _Member:
    """A process of the group, and the file that it writes to."""

    name: str
    process: subprocess.Popen[bytes]
    output: Path

    def rows(self) -> Rows:
        """The rows that it received so far; a line that is cut off was not processed."""
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
        broker, topic = stack.enter_context(temporary_topic(servers))
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
            stack.callback(stop_process, process)
            return members[-1]

        halves = split(WHOLE, 2)
        victim, _ = start(halves[0]), start(halves[1])
        say("Two processes share the partition, half of the key hashes each.")
        deadline = time.monotonic() + seconds_max
        wait_until(lambda: len(victim.rows()) >= wanted // 8, deadline, "read the first records")
        victim.process.kill()
        victim.process.wait()
        say(f"Killed {victim.name} (kill -9) after {len(victim.rows()):,} records.")
        heir = start(halves[0])
        say(f"Started {heir.name} for its key hashes; it waits until the dead one's claim is over.")

        def all_read() -> bool:
            return len({row for member in members for row in member.rows()}) >= wanted

        wait_until(all_read, deadline, "read all records")
        for member in members:
            stop_process(member.process)
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
