"""``realTime`` through kills: of driver, planner and workers, and of the broker.

The judge is the one of query histories: a batch that runs again has the same records, and each
key's come in order. Besides, each record comes once with its batch's first run, and none is lost.

``python -m integration.test_real_time --kills 20`` kills so often, at random points, and prints the
verdict; ``--minutes 10 --every 20`` kills each 20 s, for 10 minutes. With ``--handlers``, rows go
through ``process_by_key``.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from integration.kafka import KafkaBroker
from integration.lines import whole_lines
from integration.query_histories import Batch, batches_of, faults_of_batches
from integration.runs import Driver, StreamingRun, was_killed
from integration.spark_versions import OLDEST
from integration.streaming_job import Kill
from kshare.cli.query import observed_status
from kshare.core.checkpoint import decode
from kshare.monitor.live_file import read_live
from kshare.monitor.status import Status
from kshare.options import KafkaConfig
from kshare.testing import Record
from tests.support.clock import until

WAIT_S = 240.0
PARTITIONS = 2
KEYS = 20
SOAKED = [
    ("driver", "before-offset-log"),
    ("driver", "after-offset-log"),
    ("driver", "in-reader"),
    ("driver", "before-commit-log"),
    ("driver", "any-time"),
    ("planner", "before-offset-log"),
    ("planner", "after-offset-log"),
    ("planner", "any-time"),
    ("worker", "in-reader"),
    ("broker", "any-time"),
]
SOAKED_WITH_HANDLERS = [
    ("driver", "in-handler"),
    ("driver", "before-commit-log"),
    ("driver", "any-time"),
    ("planner", "any-time"),
    ("worker", "in-handler"),
    ("broker", "any-time"),
]


@dataclass
class RealTime:
    """A query with ``realTime``, through any number of starts, while records are produced.

    Attributes:
        broker: Of the topic, and of the log of ends.
        folder: Where the checkpoint is, and the history.
        options: Of the source, beside those that all have.
        handles: Whether its rows go through ``process_by_key``, with calls that are noted.
        at_once: Records of a partition that are written at once; a multiple of the keys.
        ends: How its starts have ended.
    """

    broker: KafkaBroker
    driver: Driver
    folder: Path
    options: dict[str, str] = field(default_factory=dict)
    handles: bool = False
    at_once: int = KEYS
    ends: list[str | None] = field(default_factory=list)
    produced: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.topic = self.broker.create_topic(partitions=PARTITIONS)
        self.run = StreamingRun(self.broker.bootstrap_servers, self.topic, self.folder, self.driver)
        self.history = self.folder / "history"
        self.calls = self.folder / "calls"
        self.run.more = {"history": str(self.history), "trigger": "0 seconds"}
        if self.handles:
            self.run.more["handlers"] = str(self.calls)
        self._is_over = threading.Event()

    @contextmanager
    def producing(self) -> Iterator[None]:
        """Write some records now and then."""
        thread = threading.Thread(target=self._produce_on, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join(WAIT_S)

    def _produce_on(self) -> None:
        while not self._is_over.wait(0.3):
            for partition in range(PARTITIONS):
                first = self.produced[partition]
                keys = [
                    b"%d-%d" % (partition, n % KEYS) for n in range(first, first + self.at_once)
                ]
                records = [Record(key, b"v") for key in keys]
                self.broker.produce(self.topic, records, partition=partition)
                self.produced[partition] += self.at_once

    def kill(self, what: str, where: str, batch: int = 1, **more: Any) -> None:
        """Start it, and kill something there; a worker is started again, and the query goes on."""
        kill: Kill = {"what": what, "where": where, "batch": batch, "rows": 20, **more}
        with self._started(kill) as thread:
            until(lambda: is_reached(kill) or not thread.is_alive(), WAIT_S)
            assert is_reached(kill), self.driver.log()
            if what == "worker":
                self.go_on(2)
            else:
                thread.join(WAIT_S)
        assert what == "worker" or self.ends[-1] is not None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start it, and stop it at the end."""
        with self._started(None):
            yield
        assert self.ends[-1] is None, f"{self.ends[-1]}\n{self.driver.log()}"

    @contextmanager
    def _started(self, kill: Kill | None) -> Iterator[threading.Thread]:
        def start() -> None:
            given = {"realTime": "2s", "minPartitions": "3", "maxTasks": "3", **self.options}
            self.ends.append(self.run.try_to_start("kshare", kill, None, **given))

        thread = threading.Thread(target=start)
        thread.start()
        try:
            yield thread
        finally:
            while thread.is_alive():  # a start removes the file that an earlier one has left
                self.run.stop_file.touch()
                thread.join(1)

    @property
    def batches(self) -> list[Batch]:
        """What was processed."""
        if not self.history.exists():
            return []
        return batches_of([line.split() for line in whole_lines(self.history)])

    def go_on(self, more: int) -> None:
        """Wait for more batches."""
        done = len(self.batches)
        until(lambda: len(self.batches) >= done + more, WAIT_S)

    def received(self) -> Counter[tuple[int, int]]:
        """How often a partition's offsets came, not counting what a batch has had before."""
        by_number = {batch.number: batch for batch in reversed(self.batches)}
        return Counter(
            (int(key.split(b"-")[0]), offset)
            for batch in by_number.values()
            for offset, key in batch.records
        )

    def is_all_there(self) -> bool:
        """Whether all that was produced so far has come."""
        return sum(self.produced.values()) <= len(self.received())

    def judge(self) -> list[str]:
        """What is wrong with all that was received."""
        wanted = {(tp, offset) for tp in self.produced for offset in range(self.produced[tp])}
        received = self.received()
        faults = faults_of_batches(self.batches, [])
        faults += [f"lost: {place}" for place in sorted(wanted - received.keys())]
        faults += [f"{count} times: {place}" for place, count in received.items() if count > 1]
        return faults + (self._faults_of_calls() if self.handles else [])

    def called(self) -> list[tuple[str, int, tuple[int, int]]]:
        """What handlers have noted: what, when, and of which partition and offset."""
        lines = [line.split() for line in whole_lines(self.calls)]
        return [(what, int(at), (int(tp), int(offset))) for what, at, tp, offset in lines]

    def _faults_of_calls(self) -> list[str]:
        """A call of a key comes after all before it, and none once its record is committed."""
        by_number = {batch.number: batch for batch in reversed(self.batches)}
        committed_at = dict[tuple[int, int], int]()  # a later batch has begun
        for number, batch in by_number.items():
            later = [each.began for each in by_number.values() if each.number > number]
            for offset, key in batch.records:
                place = int(key.split(b"-")[0]), offset
                committed_at[place] = min(later, default=2**63)
        faults, handled = list[str](), set[tuple[int, int]]()
        for what, at, place in self.called():
            partition, offset = place
            if what == "handled":
                handled.add(place)
            elif offset >= KEYS and (partition, offset - KEYS) not in handled:
                faults.append(f"{place} was begun before the record of its key before it was done")
            elif at > committed_at.get(place, 2**63):
                faults.append(f"{place} was begun although it was committed")
        faults += [f"{place} came unhandled" for place in committed_at.keys() - handled]
        return faults

    def begun_again(self) -> int:
        """How often a call was begun of a record that had been begun before; retries count, too."""
        begun = Counter(place for what, _, place in self.called() if what == "begun")
        return sum(begun.values()) - len(begun)


def is_reached(kill: Kill) -> bool:
    """Whether something was killed."""
    return "marker" in kill and was_killed(kill)  # which the start gives it


def in_all(is_so: Callable[[], bool]) -> None:
    """Wait for a condition."""
    until(is_so, WAIT_S)


@pytest.mark.timeout(900)  # five Spark processes
@pytest.mark.parametrize("version", [None, OLDEST], ids=["this Spark", "oldest Spark"])
def test_nothing_is_lost_doubled_or_out_of_order_through_kills(
    tmp_path: Path, version: str | None
) -> None:
    with (
        KafkaBroker() as broker,
        Driver(tmp_path, master="local[3,4]", version=version) as driver,
    ):
        query = RealTime(broker, driver, tmp_path)
        with query.producing():
            query.kill("driver", "in-reader", batch=1)
            query.kill("driver", "before-commit-log", batch=1)
            query.kill("planner", "after-offset-log", batch=1)
            query.kill("worker", "in-reader", batch=1)
            query.kill("driver", "any-time", seconds=5.0)
            with query.running():
                query.go_on(2)
                broker.kill9()
                broker.restart()
                query.go_on(2)
        with query.running():
            in_all(query.is_all_there)
    assert not query.judge(), driver.log()
    again = Counter(batch.number for batch in query.batches)
    assert max(again.values()) > 1  # one was written, and not committed
    last = max(query.run.offsets().items())[1]
    assert decode(last).open is not None


def test_positions_are_live_while_a_micro_batch_reads(tmp_path: Path) -> None:
    """Also for a process that only reads the checkpoint and Kafka; and for listeners, by a file."""
    with KafkaBroker() as broker, Driver(tmp_path, master="local[3,4]") as driver:
        query = RealTime(broker, driver, tmp_path, {"realTime": "30s"})
        kafka = kafka_of(broker)

        def look() -> Status:
            return observed_status(str(query.run.checkpoint), kafka)

        def live_positions() -> list[int]:
            """Where partitions are, of which more was handed over than is committed."""
            return [
                each.done.stable
                for each in look().partitions
                if each.committed is not None and each.committed < each.done.stable
            ]

        with query.producing(), query.running():
            in_all(lambda: len(query.run.offsets()) > 0)
            in_all(lambda: len(live_positions()) == PARTITIONS)
            seen = max(live_positions())
            in_all(lambda: min(live_positions(), default=0) > seen)
            in_all(lambda: look().checkpoint.sources[0].latency[0].records > KEYS)
            opened = decode(max(query.run.offsets().items())[1]).open
            assert opened is not None
            in_all(lambda: read_live(opened.name) is not None)
            live = read_live(opened.name)
            assert live is not None
            assert {each.partition.partition for each in live.ranges} == set(range(PARTITIONS))
            assert all(each.position <= each.end for each in live.ranges)
            assert live.latency.records > 0


def kafka_of(broker: KafkaBroker) -> KafkaConfig:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return KafkaConfig(bootstrap_servers=((host, int(port)),))


def soak(
    kills: int,
    seed: int,
    version: str | None,
    every: float | None = None,
    *,
    handles: bool = False,
    at_once: int = KEYS,
) -> int:
    """Kill a query so often, with other options at each start, and print the verdict.

    Args:
        kills: How often.
        seed: Of chance.
        version: Of Spark; None: that of this environment.
        every: Seconds from one kill to the next; None: at once.
        handles: As of :class:`RealTime`.
        at_once: The same.
    """
    chance, done = random.Random(seed), Counter[str]()
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker() as broker,
        Driver(Path(folder), master="local[3,4]", version=version) as driver,
    ):
        query = RealTime(broker, driver, Path(folder), handles=handles, at_once=at_once)
        with query.producing():
            began = time.monotonic()
            for number in range(kills):
                tasks = str(chance.randint(1, 3))
                query.options = {"keyRanges": str(chance.randint(1, 5)), "maxTasks": tasks}
                length = chance.choice([1, 2, 3])
                query.options["realTime"] = f"{length}s"
                what, where = chance.choice(SOAKED_WITH_HANDLERS if handles else SOAKED)
                done[f"{what} {where}"] += 1
                batch, seconds = chance.randrange(3), chance.uniform(1, 6)
                if every is not None:  # what is late comes in the second batch from now
                    seconds = max(began + (number + 1) * every - time.monotonic(), 5.0)
                    batch = max(int(seconds / (length + 1)), 1)
                now = time.monotonic() - began
                print(f"{now:.0f} s: {what} {where}, batch {batch}, {query.options}", flush=True)
                if what == "broker":
                    with query.running():
                        query.go_on(max(batch, 1))
                        broker.kill9()
                        broker.restart()
                        query.go_on(1)
                    continue
                try:
                    query.kill(what, where, batch=batch, seconds=seconds)
                except AssertionError:
                    print(driver.log()[-20_000:])
                    raise
            seconds = time.monotonic() - began
        with query.running():
            in_all(query.is_all_there)
        faults = query.judge()
        again = Counter(batch.number for batch in query.batches)
        begun, called = (query.begun_again(), len(query.called())) if handles else (0, 0)
    twice = sum(count > 1 for count in again.values())
    if handles:
        print(f"{begun} of {called} noted calls were begun again")
    print(
        f"{done.total()} kills in {seconds:.0f} s {dict(done)}; {sum(query.produced.values())} "
        f"records in {len(again)} batches, {twice} of them again; faults: {faults or 'none'}"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--minutes", type=float, help="in place of --kills, with --every")
    parser.add_argument("--every", type=float, help="seconds from one kill to the next")
    parser.add_argument("--spark", help="another version than that of this environment")
    parser.add_argument("--handlers", action="store_true", help="rows go through process_by_key")
    parser.add_argument("--at-once", type=int, default=KEYS, help="records written at once")
    arguments = parser.parse_args()
    kills = arguments.kills
    if arguments.minutes is not None:
        kills = round(60 * arguments.minutes / (arguments.every or 20))
    sys.exit(
        soak(
            kills,
            arguments.seed,
            arguments.spark,
            arguments.every,
            handles=arguments.handlers,
            at_once=arguments.at_once,
        )
    )
