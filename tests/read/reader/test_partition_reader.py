"""One partition's reader, and what its handler makes of faults that last."""

import logging
from dataclasses import dataclass

import pytest

from kshare.core.hashing import WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice
from kshare.core.tasks import PlannedSlice
from kshare.core.waits import PATIENCE_SECONDS
from kshare.errors import FetchTimeoutError, UnknownTopicError
from kshare.read.decode.batch_index import BatchIndex
from kshare.read.reader.faults import LostOffsets
from kshare.read.reader.partition_reader import PartitionReader
from kshare.read.reader.read_slice import reader_options
from kshare.read.reader.slice_records import SliceRecords
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
    awaits_topic: bool = False

    def answered(self, first: int, end: int, log_end: int) -> None:
        raise AssertionError("nobody answers")

    def delivering(self, index: BatchIndex) -> None:
        raise AssertionError("nothing comes")

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


def test_one_without_an_end_goes_on_and_pauses_as_long_as_ever() -> None:
    handler, clock = Handler(is_endless=True), Clock()
    reader = reader_of(handler, clock)
    reader.start_waiting()
    pauses = pause(reader, clock, ConnectionRefusedError("refused"))
    assert sum(each < SHORTEST for each in pauses) <= 1  # the one in which the time is over


def test_what_cannot_be_read_is_said_once_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    reader, began = reader_of(Handler(is_endless=True), clock), clock.now
    while clock.now < began + 3 * PATIENCE_SECONDS:
        pause(reader, clock, ConnectionRefusedError("refused"))
    said = [(each.levelname, each.getMessage()) for each in caplog.records]
    assert [level for level, _ in said] == ["INFO", "WARNING"]
    assert said[0][1] == "t-0: cannot be read, retrying after: refused"
    assert said[1][1].startswith("t-0: waits for 3")
    assert said[1][1].endswith("cannot be read (refused); until a broker hands out its records")
    reader.throttled()  # an answer
    assert caplog.messages[-1].startswith("t-0: over after ")


def test_an_outage_is_no_time_in_which_the_topic_was_unknown() -> None:
    """A broker that has just started may not know it yet."""
    clock = Clock()
    reader = reader_of(Handler(is_endless=True), clock)
    pause(reader, clock, ConnectionRefusedError("refused"))
    began = clock.now
    with pytest.raises(UnknownTopicError):
        pause(reader, clock, UnknownTopicError("t is unknown"))
    assert clock.now == pytest.approx(began + SECONDS)


def test_after_an_unknown_topic_there_is_a_pause_in_which_others_are_read() -> None:
    clock = Clock()
    reader = reader_of(Handler(is_endless=True), clock)
    with pytest.raises(UnknownTopicError):
        pause(reader, clock, UnknownTopicError("t is unknown"))
    assert reader.due - clock.now >= SHORTEST


def test_a_topic_that_somebody_else_drops_is_waited_for_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    reader = reader_of(Handler(is_endless=True, awaits_topic=True), clock)
    began = clock.now
    while clock.now < began + 3 * PATIENCE_SECONDS:
        assert min(pause(reader, clock, UnknownTopicError("topic t is unknown"))) >= SHORTEST
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert caplog.messages[0].endswith(
        "cannot be read (topic t is unknown); until it exists, or another assignment is without it"
    )
