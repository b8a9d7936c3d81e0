"""A query with ``realTime``, its log of ends and its tasks, without Kafka and Spark."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from kshare.core.checkpoint import decode
from kshare.core.hashing import KeyRanges, key_hash
from kshare.core.open_batch import RangeReader, Step, no_ends
from kshare.core.open_entry import LogPosition, OpenRange
from kshare.core.progress import TopicPartition
from kshare.core.range_end import EndKey, RangeEnd, RangeEnds
from kshare.core.tasks import OpenTask
from kshare.options import parse_options
from kshare.query.planner import StreamPlanner
from kshare.query.planner.query_group import QueryMemberLike
from tests.support.planner import Feedback, Log, LogTimes, Parking, check_once, check_order

Rows = list[tuple[TopicPartition, int]]


class Ends:
    """The log of ends of a topic: all that hold one share its rows."""

    def __init__(self) -> None:
        self.rows: list[tuple[EndKey, RangeEnd | None]] = []
        self.opened = self.closed = 0
        self.lose = 0  # of the next writes, so many do not arrive

    def open(self) -> None:
        self.opened += 1

    def position(self) -> LogPosition:
        return LogPosition(3, len(self.rows))

    def read(self, position: LogPosition, ranges: Sequence[OpenRange], /) -> RangeEnds:
        assert position.partition == 3
        return no_ends(ranges).read(self.rows[position.offset :])

    def append(self, ends: Mapping[EndKey, RangeEnd], /) -> None:
        if self.lose:
            self.lose -= 1
            return
        assert not {key for key, _ in self.rows} & ends.keys()  # no two appends have one key
        self.rows += ends.items()

    def delete(self, batch: str, /) -> None:
        self.rows += [(key, None) for key in self.left if key.range.batch == batch]

    def close(self) -> None:
        self.closed += 1

    @property
    def left(self) -> list[EndKey]:
        """The keys that have a row."""
        last = dict(self.rows)
        return [key for key in last if last[key] is not None]


class Silent(Feedback):
    """No task can report."""

    def start(self) -> bool:
        return False


class OpenQuery:
    """A query with a sink that keeps what it gets, by batch."""

    def __init__(self, log: Log, group: QueryMemberLike | None = None, /, **given: str) -> None:
        self.log, self.group, self.given = log, group, {"realTime": "5s", **given}
        self.ends: dict[str, Ends] = {}
        self.parking = Parking()
        self.now = 0.0
        self.wall = 1000.0  # seconds since 1970
        self.attempts = 0
        self.delivered: Rows = []  # of committed batches
        self.restart()
        self.at = self.planner.initial_offsets()

    def restart(self, **more: str | None) -> None:
        """Go on with a new planner; an option that is None is left out."""
        given = {**self.given, **more}
        self.given = {name: value for name, value in given.items() if value is not None}
        options = {
            "kafka.bootstrap.servers": "nowhere:9092",
            "startingOffsets": "earliest",
        }
        if "assign" not in self.given:
            options["subscribe"] = "t"
        parsed = parse_options({**options, **self.given}, streaming=True).options
        self.planner = StreamPlanner(
            parsed,
            self.log,
            parking=self.parking,
            feedback=Silent(),
            scan=lambda *_: [],
            clock=lambda: self.now,
            group=self.group,
            end_log=lambda topic: self.ends.setdefault(topic, Ends()),
            times=LogTimes(self.log, committed=False),
            wall_clock=lambda: self.wall,
        )

    def plan(self) -> dict[str, Any]:
        return self.planner.latest_offsets(self.at, None)

    def tasks(self, end: Mapping[str, Any]) -> tuple[OpenTask, ...]:
        tasks = self.planner.open_tasks(self.at, end)
        assert tasks is not None
        return tasks

    def trigger(self, during: Callable[[], None] = lambda: None) -> None:
        """One batch.

        Args:
            during: What happens while its tasks read.
        """
        end = self.plan()
        self.finish(end, during)

    def finish(self, end: dict[str, Any], during: Callable[[], None] = lambda: None) -> None:
        """Run a batch that is planned, and commit it."""
        for task in self.tasks(end):
            self.delivered += self.run(task, during)
        self.at = end

    def run(
        self,
        task: OpenTask,
        during: Callable[[], None] = lambda: None,
        parked: Collection[bytes] = (),
    ) -> Rows:
        """Read a task's ranges to where their logs end, or to where they ended before.

        Args:
            task: The task.
            during: What happens when it has read what was there at its begin.
            parked: Keys that are parked then.
        """
        self.attempts += 1
        log = self.ends[task.topic]
        rows: Rows = []
        for each in task.ranges:
            reader, rounds = RangeReader.of(each), 0
            while (step := reader.step) not in {Step.END, Step.FAIL}:
                if step is Step.LOOK:
                    reader = reader.look(log.read(task.log, task.ranges))
                elif step is Step.PROPOSE:
                    log.append({reader.key(f"{self.attempts}"): reader.delivered})
                    reader = reader.proposed()
                else:
                    before = reader.delivered
                    top = len(self.log.keys[each.id.partition])
                    ends = [] if reader.bound is None else [at for _, at in reader.bound.parts]
                    reader = reader.deliver_to(max([top, *ends]))
                    rows += self._rows(each, before, reader.delivered)
                    if rounds == 0:
                        during()
                        hashes = KeyRanges.of_hashes(key_hash(key, 0) for key in parked)
                        reader = reader.park(hashes)
                    rounds += 1
                    reader = reader.time_over() if rounds == 2 else reader
            assert reader.step is Step.END
        return rows

    def _rows(self, each: OpenRange, before: RangeEnd, after: RangeEnd) -> Rows:
        tp, keys = each.id.partition, self.log.keys[each.id.partition]
        found: Rows = []
        for offset, key in enumerate(keys):
            hash_ = key_hash(key, offset)
            is_new = _end(before, hash_) <= offset < _end(after, hash_)
            if is_new and any(
                hash_ in piece.hashes and piece.offsets.start <= offset < piece.offsets.end
                for piece in each.slice.rectangles
            ):
                found.append((tp, offset))
        return found

    def check_order(self) -> None:
        """Every record at most once, those of a key in order."""
        check_order(self.delivered, self.log)

    def check_all(self) -> None:
        """Every record exactly once, those of a key in order."""
        check_once(self.delivered, self.log)

    @property
    def names(self) -> set[str]:
        """The batches that have rows in the logs of ends."""
        return {key.range.batch for log in self.ends.values() for key in log.left}

    @property
    def open_name(self) -> str:
        """The name of the batch that was committed last."""
        opened = decode(self.at).open
        assert opened is not None
        return opened.name


def _end(end: RangeEnd, hash_: int) -> int:
    """Where a hash ends; nowhere if it is not one of the range's."""
    return next((at for hashes, at in end.parts if any(hash_ in part for part in hashes)), 0)
