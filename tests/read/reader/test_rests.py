"""A reader that has caught up asks less often, for more at once; amid a backlog, at once."""

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kshare
from kshare.core.hashing import WHOLE
from kshare.core.tasks import PlannedSlice
from kshare.read.decode.batch_index import BatchIndex
from kshare.read.reader.faults import LostOffsets
from kshare.read.reader.fetch_loop import FetchLoop
from kshare.read.reader.fetcher import Fetcher
from kshare.read.reader.read_slice import reader_options
from kshare.read.reader.slice_records import SliceRecords
from kshare.read.reader.tail_reader import NO_END
from tests.support.batches import Rec, batch_of, numbered
from tests.support.clock import Clock
from tests.support.scripted import PARTITION, ScriptedLog

BATCHES = [
    batch_of(numbered([Rec(b"k", b"%d" % offset)]), base=offset).encode() for offset in range(60)
]
OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1"}
LONGEST = 0.05


class Endless:
    """What a log without an end is read with, where nothing is lost."""

    is_endless = True
    awaits_topic = False

    def answered(self, first: int, end: int, log_end: int) -> None:
        """Any answer is well."""

    def delivering(self, index: BatchIndex) -> None:
        """The same."""

    def lost(self, lost: LostOffsets) -> int:
        raise AssertionError(lost)


class Growing(ScriptedLog):
    """A log that grows, and is read a record batch at a time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(BATCHES, response_bytes=1)
        self._all = self._batches
        self._clock = clock
        self._batches = []
        self.sent: list[float] = []

    @property
    def end(self) -> int:
        return len(self._batches)

    def grow(self, batches: int) -> None:
        self._batches = self._all[: len(self._batches) + batches]

    def send(self, request: object) -> None:
        self.sent.append(self._clock.now)
        super().send(request)


def follow(
    appended: Sequence[int], took: float, *, rests: bool
) -> tuple[list[tuple[float, float, bool]], list[int]]:
    """Read a log to which so many record batches are appended each time it has been read.

    Returns:
        For each response: when it came, when the next request was sent, and whether it was the last
        one of a backlog; and the offsets that were read.
    """
    clock = Clock()
    log = Growing(clock)
    options = reader_options(OPTIONS, "t")
    loop = FetchLoop(options, log, clock)
    loop.rests = rests
    slice_ = kshare.Slice(*PARTITION, (kshare.Rectangle(kshare.OffsetRange(0, NO_END), WHOLE),))
    loop.read([SliceRecords(PlannedSlice(slice_), options)], Endless())
    growth = iter(appended)
    received: list[tuple[float, bool]] = []
    offsets: list[int] = []

    def ready() -> list[Fetcher]:
        if not loop.asked:
            clock.sleep(max(seconds for kind in loop.pauses for seconds in kind))
            return []
        if len(offsets) == log.end:
            log.grow(next(growth))
        received.append((clock.now, len(offsets) + 1 == log.end))
        return loop.asked

    while len(offsets) < sum(appended):
        for _, batch in loop.step(ready):
            offsets += batch["offset"].to_pylist()
            clock.now += took
    sent = log.sent[1:]
    return [(at, then, last) for (at, last), then in zip(received, sent, strict=False)], offsets


@pytest.mark.parametrize("rests", [True, False])
@given(
    appended=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    took=st.sampled_from([0.0, 0.001, 0.004, 0.2]),
)
def test_no_broker_is_asked_while_a_reader_that_has_caught_up_rests(
    rests: bool, appended: list[int], took: float
) -> None:
    """It rests for twice as long as a response took, and not amid a backlog."""
    seen, offsets = follow(appended, took, rests=rests)
    assert offsets == list(range(sum(appended)))
    assert len(seen) >= len(offsets) - 1
    for at, then, is_last in seen:
        wait = took + min(2 * took, LONGEST) if rests and is_last else 0
        assert then == pytest.approx(at + wait)


@given(
    lags=st.lists(st.sampled_from([0.0, 0.001, 0.009, 0.1]), min_size=1, max_size=12),
    took=st.sampled_from([0.001, 0.004, 0.2]),
)
def test_who_has_no_request_under_way_is_told_when_to_send_one(
    lags: list[float], took: float
) -> None:
    """Also if a rest ends between the look at it and the wait: nothing else would end that wait."""
    clock = Clock()
    log = Growing(clock)
    options = reader_options(OPTIONS, "t")
    loop = FetchLoop(options, log, clock)
    loop.rests = True
    slice_ = kshare.Slice(*PARTITION, (kshare.Rectangle(kshare.OffsetRange(0, NO_END), WHOLE),))
    loop.read([SliceRecords(PlannedSlice(slice_), options)], Endless())
    left = iter(lags)
    waited = count = 0

    def ready() -> list[Fetcher]:
        nonlocal waited
        if loop.asked:
            assert loop.seconds_until_due == inf  # the answer ends the wait
            log.grow(1)
            return loop.asked
        clock.now += next(left, 0.0)  # the process sleeps here
        waited += 1
        assert loop.seconds_until_due <= LONGEST
        clock.sleep(loop.seconds_until_due)
        return []

    while count < len(lags) + 2:
        for _, batch in loop.step(ready):
            count += batch.num_rows
            clock.now += took
    assert waited >= len(lags)


@pytest.mark.parametrize("lag", [0.0, 0.2, 5.0])
def test_who_has_lost_its_broker_is_told_when_to_look_for_one(lag: float) -> None:
    """The same of a pause behind a fault."""
    clock = Clock()
    log = Growing(clock)
    options = reader_options(OPTIONS, "t")
    loop = FetchLoop(options, log, clock)
    slice_ = kshare.Slice(*PARTITION, (kshare.Rectangle(kshare.OffsetRange(0, NO_END), WHOLE),))
    partition = loop.read([SliceRecords(PlannedSlice(slice_), options)], Endless())
    partition.failed(ConnectionRefusedError("refused"))
    told = []

    def ready() -> list[Fetcher]:
        clock.now += lag
        told.append(loop.seconds_until_due)
        return []

    assert not list(loop.step(ready))
    (seconds,) = told
    assert (seconds == 0) == (lag > 0.1)
    assert seconds < 1
