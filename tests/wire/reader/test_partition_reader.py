"""One partition's reader, and what its handler makes of faults that last."""

from dataclasses import dataclass, field

import pytest

from kshare.core.hashing import WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice, TopicPartition
from kshare.core.tasks import PlannedSlice
from kshare.errors import FetchTimeoutError, UnknownTopicError
from kshare.wire.decode.batch_index import BatchIndex
from kshare.wire.reader.faults import LostOffsets
from kshare.wire.reader.partition_reader import PartitionReader
from kshare.wire.reader.read_slice import reader_options
from kshare.wire.reader.slice_records import SliceRecords
from tests.support.clock import Clock
from tests.support.scripted import ScriptedLog

SECONDS, PAUSE = 2.0, 1.0
OPTIONS = reader_options(
    {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.default.api.timeout.ms": f"{SECONDS * 1000:.0f}",
        "kafka.retry.backoff.ms": f"{PAUSE * 1000:.0f}",
        "kafka.retry.backoff.max.ms": f"{PAUSE * 1000:.0f}",
    },
    "t",
)
SHORTEST = 0.8 * PAUSE  # jitter


@dataclass
class Handler:
    is_endless: bool
    pauses: list[tuple[str, float]] = field(default_factory=list)

    def answered(self, first: int, end: int) -> None:
        raise AssertionError("nobody answers")

    def delivering(self, index: BatchIndex) -> None:
        raise AssertionError("nothing comes")

    def pausing(self, partition: TopicPartition, cause: Exception, until: float) -> None:
        assert partition == ("t", 0)
        self.pauses.append((str(cause), until))

    def lost(self, lost: LostOffsets) -> int:
        raise AssertionError("nothing is lost")


def reader_of(handler: Handler, clock: Clock) -> PartitionReader:
    slice_ = Slice("t", 0, (Rectangle(OffsetRange(0, 10), WHOLE),))
    records = SliceRecords(PlannedSlice(slice_), OPTIONS)
    return PartitionReader([records], OPTIONS, ScriptedLog([]), clock, handler)


def pause(reader: PartitionReader, clock: Clock, cause: Exception) -> list[float]:
    """Ten attempts that fail, each when it is due; the pauses."""
    pauses = []
    for _ in range(10):
        reader.pause(cause)
        pauses.append(reader.due - clock.now)
        clock.now = reader.due
    return pauses


def test_a_reader_with_an_end_gives_up_at_the_stated_time() -> None:
    handler, clock = Handler(is_endless=False), Clock()
    reader, began = reader_of(handler, clock), clock.now
    with pytest.raises(FetchTimeoutError, match=r"no progress on t-0 .* for 2 s.*: refused"):
        pause(reader, clock, ConnectionRefusedError("refused"))
    assert clock.now == pytest.approx(began + SECONDS)  # the last pause is cut
    assert handler.pauses[-1] == ("refused", clock.now)


def test_one_without_an_end_goes_on_and_pauses_as_long_as_ever() -> None:
    handler, clock = Handler(is_endless=True), Clock()
    reader = reader_of(handler, clock)
    reader.start_waiting()
    pauses = pause(reader, clock, ConnectionRefusedError("refused"))
    assert sum(each < SHORTEST for each in pauses) <= 1  # the one in which the time is over
    assert [why for why, _ in handler.pauses] == ["refused"] * 10


def test_an_outage_is_no_time_in_which_the_topic_was_unknown() -> None:
    """A broker that has just started may not know it yet."""
    clock = Clock()
    reader = reader_of(Handler(is_endless=True), clock)
    pause(reader, clock, ConnectionRefusedError("refused"))
    began = clock.now
    with pytest.raises(UnknownTopicError):
        pause(reader, clock, UnknownTopicError("t is unknown"))
    assert clock.now == pytest.approx(began + SECONDS)
