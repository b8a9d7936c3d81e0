"""A query without Kafka and Spark, for batches in which every range goes its own way.

The oracle is a log as a list of key hashes, tasks that walk it record by record, and a set of what
was delivered.
"""

import itertools
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from kshare.core.admission import StampedOffset
from kshare.core.batch import limited_slices
from kshare.core.checkpoint import decode
from kshare.core.hashing import key_hash
from kshare.core.listing import ParkedCount
from kshare.core.progress import Progress, Rectangle, Slice, TopicPartition
from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import PlannedSlice, Ticket
from kshare.errors import DataLossError
from kshare.kafka.parked_keys import ParkWatch
from kshare.kafka.topic_config import TopicConfig
from kshare.options import SourceOptions, Topics, parse_options
from kshare.query.feedback.messages import Executor
from kshare.query.feedback.server import FeedbackServer
from kshare.query.planner import StreamPlanner, time_alignment

KEYS = [f"key-{number}".encode() for number in range(12)]
T0 = TopicPartition("t", 0)


class Log:
    """A topic ``t``: the keys of each partition's records; offsets before ``first`` are gone.

    The timestamp of a record is in ``times``; else it is the record's offset.
    """

    def __init__(self, partitions: int = 1) -> None:
        self.keys: dict[TopicPartition, list[bytes]] = {
            TopicPartition("t", n): [] for n in range(partitions)
        }
        self.first = dict.fromkeys(self.keys, 0)
        self.aborted: set[int] = set()  # offsets that read_committed leaves out
        self.vanished: set[int] = set()  # offsets whose records were compacted away
        self.times: dict[tuple[TopicPartition, int], int] = {}
        self.compacted = False
        self.subscribed = set(self.keys)
        self.ids = {"t": "first"}

    def grow(self, keys: Iterable[bytes]) -> None:
        partitions = itertools.cycle(TopicPartition("t", n) for n in range(len(self.keys)))
        for key, partition in zip(keys, partitions, strict=False):
            self.keys[partition].append(key)

    def add_partition(self) -> None:
        """Add an empty partition."""
        partition = TopicPartition("t", len(self.keys))
        self.keys[partition], self.first[partition] = [], 0
        self.subscribed.add(partition)

    def append(self, partition: TopicPartition, key: bytes, timestamp_ms: int) -> None:
        """Add a record with a time."""
        self.times[partition, len(self.keys[partition])] = timestamp_ms
        self.keys[partition].append(key)

    def timestamp(self, partition: TopicPartition, offset: int) -> int:
        return self.times.get((partition, offset), offset)

    def partitions(self, _: Topics, /) -> tuple[TopicPartition, ...]:
        return tuple(sorted(self.keys.keys() & self.subscribed))

    def topic_ids(self) -> Mapping[str, str]:
        return self.ids

    def earliest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        return {tp: self.first[tp] for tp in partitions}

    def latest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        return {tp: len(self.keys[tp]) for tp in partitions}

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int], /
    ) -> dict[TopicPartition, int | None]:
        """Of all records, whether they are processed, aborted, or neither."""
        return {
            tp: next(
                (
                    offset
                    for offset in range(self.first[tp], len(self.keys[tp]))
                    if self.timestamp(tp, offset) >= ms
                ),
                None,
            )
            for tp, ms in timestamps_ms.items()
        }

    def topic_configs(self, topics: Collection[str], /) -> dict[str, TopicConfig]:
        return {topic: TopicConfig(compacted=self.compacted, retention_ms=None) for topic in topics}

    def close(self) -> None:
        pass

    def read(
        self, slice_: Slice, most: int | None, *, lenient: bool = False, committed: bool = False
    ) -> tuple[list[int], int]:
        """The offsets of a slice's records, and where reading them ended."""
        start, end = slice_.offsets.start, slice_.offsets.end
        partition = TopicPartition(slice_.topic, slice_.partition)
        first, keys = self.first[partition], self.keys[partition]
        if start < first and not lenient:
            raise DataLossError(
                f"{partition}: offsets {start} to {end} are wanted, the log holds {first}",
                wanted=(start, end),
                available=(first, len(keys)),
            )
        found: list[int] = []
        pieces = slice_.rectangles
        for offset in range(max(start, first), end):
            if offset in self.vanished or (committed and offset in self.aborted):
                continue
            if _holds(pieces, offset, key_hash(keys[offset], offset)):
                found.append(offset)
                if len(found) == most:
                    return found, offset + 1
        return found, end


def _holds(pieces: Sequence[Rectangle], offset: int, hash_: int) -> bool:
    for piece in pieces:
        if piece.offsets.start <= offset < piece.offsets.end and hash_ in piece.hashes:
            return True
    return False


class LogTimes(time_alignment.LogTimes):
    """The timestamps of a log."""

    def __init__(self, log: Log, *, committed: bool) -> None:
        self.log, self.committed = log, committed
        self.passes = self.looks = 0  # for first records; for later ones
        self.looked_at = 0  # the offsets that looks for later ones went through

    def first(self, slices: Sequence[Slice], /) -> list[StampedOffset | None]:
        self.passes += 1
        places = [
            (s.topic_partition, o) for s in slices for o in range(s.offsets.start, s.offsets.end)
        ]
        assert len(set(places)) == len(places)  # the reader tells them apart by offset
        return [self._first(slice_) for slice_ in slices]

    def later(self, slice_: Slice, than_ms: int, /) -> int | None:
        self.looks += 1
        tp = slice_.topic_partition
        offsets, _ = self.log.read(slice_, None, lenient=True, committed=self.committed)
        for at in offsets:
            self.looked_at += 1
            if self.log.timestamp(tp, at) > than_ms:
                return at
        return None

    def _first(self, slice_: Slice) -> StampedOffset | None:
        offsets, _ = self.log.read(slice_, 1, lenient=True, committed=self.committed)
        tp = slice_.topic_partition
        return StampedOffset(offsets[0], self.log.timestamp(tp, offsets[0])) if offsets else None


class Parking(ParkWatch):
    """The parked keys, as a plain set."""

    def __init__(self) -> None:
        self.keys: set[tuple[str, bytes]] = set()

    def current(self, topics: Collection[str]) -> list[tuple[str, bytes]]:
        return [(topic, key) for topic, key in self.keys if topic in topics]

    def counts(self) -> dict[str, ParkedCount]:
        topics = [topic for topic, _ in self.keys]
        return {topic: ParkedCount(topics.count(topic), 1_700_000_000.0) for topic in topics}

    def close(self) -> None:
        pass


class Feedback(FeedbackServer):
    """What tasks told, without a network."""

    def __init__(self) -> None:
        self.told: dict[str, dict[int, SliceEnd]] = {}
        self.held: list[bool] = []

    def start(self) -> bool:
        return True

    def ticket(self, batch: str, number: int, *, hold: bool) -> Ticket:
        self.held.append(hold)
        return Ticket("nowhere", 1, b"", batch, number, hold)

    def retain(self, batches: Collection[str]) -> None:
        pass

    def executors(self, batch: str) -> dict[int, Executor]:
        return {}

    def reports(self, batch: str, *, wait_seconds: float = 0.0) -> dict[int, SliceEnd]:
        return dict(self.told.get(batch, {}))

    def close(self) -> None:
        pass


class Query:
    """A query with a sink that keeps what it gets; restarted at will."""

    make_feedback: type["Feedback"] = Feedback

    def __init__(self, log: Log, **given: str) -> None:
        self.log, self.given = log, given
        self.parking = Parking()
        self.passes = self.scans = 0  # over the log; and for slices
        self.waits = False  # for minOffsetsPerTrigger
        self.delivered: list[tuple[TopicPartition, int]] = []
        self.lost_messages = random.Random(0)
        self.loss = 0.0
        self.now = 0.0
        self.today = 2e9  # seconds since 1970: later than the records of most tests
        self.pace: Callable[[bytes], float] = lambda key: 0.0
        self.restart()
        self.at = self.planner.initial_offsets()

    def restart(self, **more: str) -> None:
        self.given = {**self.given, **more}
        options = {
            "kafka.bootstrap.servers": "nowhere:9092",
            "subscribe": "t",
            "startingOffsets": "earliest",
            **self.given,
        }
        self.plan_with(options)

    def plan_with(self, options: Mapping[str, str]) -> None:
        """Go on with a new planner, that has these options and no others."""
        parsed = parse_options(options, streaming=True).options
        self.committed = parsed.kafka.read_committed
        self.feedback = self.make_feedback()
        self.times = LogTimes(self.log, committed=self.committed)
        self.planner = StreamPlanner(
            parsed,
            self.log,
            parking=self.parking,
            feedback=self.feedback,
            scan=self.scan,
            clock=lambda: self.now,
            times=self.times,
            wall_clock=lambda: self.today,
        )

    def scan(self, limited: Sequence[PlannedSlice], options: SourceOptions) -> list[SliceEnd]:
        assert len({each.slice.topic_partition for each in limited}) == 1
        self.passes += 1
        self.scans += len(limited)
        lenient, committed = not options.fail_on_data_loss, options.kafka.read_committed
        found = [
            self.log.read(each.slice, each.max_records, lenient=lenient, committed=committed)
            for each in limited
        ]
        return [SliceEnd(end, len(offsets)) for offsets, end in found]

    def trigger(self, max_offsets: int | None = None) -> Sequence[PlannedSlice]:
        """One batch. Returns what its tasks read; nothing if there was nothing new."""
        end = self.planner.latest_offsets(self.at, max_offsets, may_wait=self.waits)
        if end == self.at:
            return ()
        tasks = self.planner.tasks(self.at, end)
        seconds = [sum(self.run(planned) for planned in task.slices) for task in tasks]
        self.now += max(seconds, default=0.0)
        self.at = end
        return [planned for task in tasks for planned in task.slices]

    def planned(self, end: Mapping[str, Any]) -> list[PlannedSlice]:
        """What the tasks of the next batch read, if it ends there."""
        tasks = self.planner.tasks(self.at, end)
        return [planned for task in tasks for planned in task.slices]

    def run(self, planned: PlannedSlice) -> float:
        """Read a slice: deliver its records, and tell the planner. Returns how long it took."""
        slice_ = planned.slice
        partition = TopicPartition(slice_.topic, slice_.partition)
        lenient = self.given.get("failOnDataLoss") == "false"
        offsets, end = self.log.read(
            slice_, planned.max_records, lenient=lenient, committed=self.committed
        )
        self.delivered += [(partition, offset) for offset in offsets]
        keys = [self.log.keys[partition][offset] for offset in offsets]
        seconds = sum(map(self.pace, keys))
        ticket = planned.ticket
        if ticket is not None and self.lost_messages.random() >= self.loss:
            hashes = [key_hash(key, at) for key, at in zip(keys, offsets, strict=True)]
            sample = tuple(sorted(hashes[:: max(len(hashes) // 200, 1)]))
            # Of a task that is not measured, the end of its reader is seen: long before its own.
            seen = seconds if ticket.hold else 0.0
            told = SliceEnd(end, len(offsets), sample, seen, ticket.hold, self.now)
            self.feedback.told.setdefault(ticket.batch, {})[ticket.number] = told
        return seconds

    def drain(self) -> None:
        """Batches until there is nothing new."""
        before = None
        while before != self.at:
            before = self.at
            self.trigger()

    def check_order(self) -> None:
        """Every record at most once, those of a key in order."""
        check_order(self.delivered, self.log)

    def check_all(self) -> None:
        """Every record exactly once, those of a key in order, and one offset for a partition."""
        check_once(self.delivered, self.log)
        ends = {partition: Progress.at(len(keys)) for partition, keys in self.log.keys.items()}
        at = decode(self.at)
        assert at.progress == ends
        assert not limited_slices(at)


def check_order(delivered: Sequence[tuple[TopicPartition, int]], log: Log) -> None:
    """Every record at most once, those of a key in order."""
    assert len(set(delivered)) == len(delivered)
    last: dict[tuple[TopicPartition, bytes], int] = {}
    for partition, offset in delivered:
        key = (partition, log.keys[partition][offset])
        assert last.get(key, -1) < offset
        last[key] = offset


def check_once(delivered: Sequence[tuple[TopicPartition, int]], log: Log) -> None:
    """Every record exactly once, those of a key in order."""
    check_order(delivered, log)
    assert set(delivered) == {
        (partition, offset) for partition, keys in log.keys.items() for offset in range(len(keys))
    }


def grown(count: int, partitions: int = 1, seed: int = 1) -> Log:
    log = Log(partitions)
    log.grow(random.Random(seed).choices(KEYS, k=count))
    return log
