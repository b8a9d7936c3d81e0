"""A query is killed at random points while its ranges stand at different offsets.

``python -m integration.test_range_kills --points 50`` kills 50 times, and prints the verdict.
"""

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from integration.kafka import KafkaBroker
from integration.runs import Driver, StreamingRun, was_killed
from integration.streaming_job import Kill
from kshare.core.checkpoint import EXTRA_KEY
from kshare.testing import OrderReport, Record

SMALL_BATCHES = {"batch.num.messages": 50}
LOOKED = "looking for the ends"
IN_PLANNING = ("before-offset-log", "after-offset-log")
WHERE = {
    "driver": (*IN_PLANNING, "in-tasks", "before-commit-log", "any-time"),
    "planner": (*IN_PLANNING, "in-tasks", "before-commit-log", "any-time"),
    "worker": ("in-tasks", "in-reader"),
}
BACKLOG = 1_000
PRODUCED = 400


def skewed(count: int, seed: float) -> list[Record]:
    """Records of 60 keys, of which the first has a quarter."""
    chance = random.Random(seed)
    return [Record(b"key-%d" % int(60 * chance.random() ** 3), b"v") for _ in range(count)]


@dataclass
class Soak:
    """Kills a query at random points, with other options at each start.

    Attributes:
        broker: where the topics are made: one that is compacted in name (so that limits are found
            by scanning beforehand), and one that is not.
        run: the query.
        chance: all that is random here, but for what happens at which moment.
    """

    broker: KafkaBroker
    run: StreamingRun
    chance: random.Random
    produced: Counter[tuple[str, int]] = field(default_factory=Counter)
    seen: dict[int, dict[str, Any]] = field(default_factory=dict)
    killed: Counter[str] = field(default_factory=Counter)
    ranges: list[int] = field(default_factory=list)
    missed: int = 0

    @classmethod
    def on(cls, broker: KafkaBroker, driver: Driver, folder: Path, seed: int) -> "Soak":
        """A soak on two new topics."""
        plain = broker.create_topic()
        never = {"cleanup.policy": "compact", "min.compaction.lag.ms": 10**12}
        compacted = broker.create_topic(config=never)
        both = f"{plain},{compacted}"
        run = StreamingRun(broker.bootstrap_servers, both, folder, driver)
        nothing = dict.fromkeys([(plain, 0), (compacted, 0)], 0)
        return cls(broker, run, random.Random(seed), Counter(nothing))

    def kill(self, points: int, drivers: int) -> OrderReport:
        """Kill so often, so many of them the driver; then read all that is left, and judge."""
        for what, where in self.planned(points, drivers):
            while not self._is_killed(what, where):
                self.missed += 1
                assert self.missed < 20 + points, "kills are not reached"
            self.killed[f"{what} {where}"] += 1
        self._produce()
        self._start(None, keyRanges="3", maxRecordsPerTask="400")
        self._produce()
        self._start(None, keyRanges="2")
        return self.run.judge({tp: (0, count) for tp, count in self.produced.items()})

    def planned(self, points: int, drivers: int) -> list[tuple[str, str]]:
        """What to kill, and where; each point once before one comes again."""
        rest = points - drivers
        counts = {"driver": drivers, "planner": rest - rest // 2, "worker": rest // 2}
        plan = []
        for what, count in counts.items():
            shuffled = self.chance.sample(WHERE[what], len(WHERE[what]))
            plan += [(what, where) for where in islice(cycle(shuffled), count)]
        self.chance.shuffle(plan)
        return plan

    @property
    def uneven(self) -> int:
        """How many of the batches' dicts have ranges at different offsets."""
        return sum("ic" in offsets.get(EXTRA_KEY, {}) for offsets in self.seen.values())

    def __str__(self) -> str:
        """What was done."""
        log = self.run.planner_log.read_text()
        kills = ", ".join(f"{what} {count}" for what, count in sorted(self.killed.items()))
        return (
            f"{self.killed.total()} kills ({kills}); ranges {self.ranges}; "
            f"{self.uneven} of {len(self.seen)} batches began with ranges at different offsets; "
            f"ends were looked for {log.count(LOOKED)} times"
        )

    def _is_killed(self, what: str, where: str) -> bool:
        if self.produced.total() - self._received() < BACKLOG:
            self._produce()
        options, limit = self._options()
        kill: Kill = {
            "what": what,
            "where": where,
            "batch": self.chance.randrange(2),
            "rows": self.chance.randint(1, limit),
            "seconds": self.chance.uniform(1, 5),
        }
        driver = self.run.driver
        assert driver is not None
        driver.master = self.chance.choice(["local[2]", "local[2,4]"])  # the next one's
        self._start(kill, batches=None if where == "any-time" else kill["batch"] + 3, **options)
        return was_killed(kill)

    def _options(self) -> tuple[dict[str, str], int]:
        """Options of a start, and how many records its tasks may read."""
        chance = self.chance
        limit = chance.randint(3, 60)
        assignor = chance.choice(["round-robin", "adaptive"])
        options = {"keyRanges": str(chance.randint(1, 8)), "rangeAssignor": assignor}
        options["maxRecordsPerTask"] = str(limit)
        sometimes = {
            "parkedKeys": json.dumps([f"key-{chance.randrange(4)}"]),
            "maxRangesInCheckpoint": str(chance.randint(1, 8)),
            "maxOffsetsAhead": str(chance.randint(50, 500)),
            "maxOffsetsPerTrigger": str(chance.randint(100, 600)),
            "maxTasks": chance.choice(["2", "auto"]),
        }
        options |= {name: value for name, value in sometimes.items() if chance.random() < 0.2}
        if chance.random() < 0.1:  # a new worker for each task: so only for few
            options |= {"targetTaskDuration": "1s", "keyRanges": str(chance.randint(1, 2))}
        elif chance.random() < 0.15:
            del options["maxRecordsPerTask"]
            options["maxOffsetsPerTrigger"] = "300"
            limit = 20
        self.ranges.append(int(options["keyRanges"]))
        return options, limit

    def _start(self, kill: Kill | None, batches: int | None = None, **options: str) -> None:
        error = self.run.try_to_start("kshare", kill, batches, **options)
        self.seen |= self.run.offsets()
        if error is not None and (kill is None or not was_killed(kill)):
            raise AssertionError(f"not killed, but failed: {error}; {options}, {kill}")

    def _produce(self) -> None:
        for topic, partition in list(self.produced):
            records = skewed(PRODUCED, self.chance.random())
            self.broker.produce(topic, records, partition=partition, config=SMALL_BATCHES)
            self.produced[topic, partition] += len(records)

    def _received(self) -> int:
        return self.run.received().num_rows if self.run.out.exists() else 0


@pytest.mark.timeout(1200)  # three Spark processes, and eight queries
@pytest.mark.parametrize(
    ("seed", "points", "drivers"),
    [
        pytest.param(66, 3, 0, id="some"),
        # It kills the driver where test_checkpoint does not: in planning and in a task.
        pytest.param(52, 6, 2, id="more", marks=pytest.mark.long),
    ],
)
def test_kills_with_ranges_at_different_offsets(
    broker: KafkaBroker, tmp_path: Path, seed: int, points: int, drivers: int
) -> None:
    with Driver(tmp_path) as driver:
        soak = Soak.on(broker, driver, tmp_path, seed)
        report = soak.kill(points, drivers)
    assert report.ok, f"{report}\n{soak}"
    assert soak.uneven, str(soak)
    # When all is read, the ranges have met again, and Spark's own source could go on.
    assert EXTRA_KEY not in soak.run.offsets()[max(soak.seen)]


def soak(points: int, seed: int) -> int:
    """Kill a query so often, and print the verdict."""
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker() as broker,
        Driver(Path(folder)) as driver,
    ):
        soaked = Soak.on(broker, driver, Path(folder), seed)
        report = soaked.kill(points, drivers=points // 4)
        print(f"{soaked}\n{report}")
    return 0 if report.ok else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=50)
    parser.add_argument("--seed", type=int, default=11)
    arguments = parser.parse_args()
    sys.exit(soak(arguments.points, arguments.seed))
