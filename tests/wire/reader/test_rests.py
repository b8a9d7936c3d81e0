"""A reader that has caught up asks less often, for more at once; amid a backlog, at once."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kshare
from kshare.core.hashing import WHOLE
from kshare.core.tasks import PlannedSlice
from kshare.wire.decode.batch_index import BatchIndex
from kshare.wire.reader.faults import LostOffsets
from kshare.wire.reader.fetch_loop import FetchLoop
from kshare.wire.reader.fetcher import Fetcher
from kshare.wire.reader.read_slice import reader_options
from kshare.wire.reader.slice_records import SliceRecords
from kshare.wire.reader.tail_reader import NO_END
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
    """It rests for eight times as long as a response took, and not amid a backlog."""
    seen, offsets = follow(appended, took, rests=rests)
    assert offsets == list(range(sum(appended)))
    assert len(seen) >= len(offsets) - 1
    for at, then, is_last in seen:
        wait = took + min(8 * took, LONGEST) if rests and is_last else 0
        assert then == pytest.approx(at + wait)
