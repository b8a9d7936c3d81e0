"""Records that are gone: all of them are named, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange
from kshare.core.losses import (
    new_partitions,
    no_longer_assigned,
    recreated_topics,
    without_deleted,
    without_trimmed,
)
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, TopicPartition
from tests.support.cells import END, cells_of, done, progresses

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LOW = HashRange(0, HASH_SPACE // 2)


def offsets(start: int, end: int, hashes: HashRange = WHOLE) -> Rectangle:
    return Rectangle(OffsetRange(start, end), hashes)


# -- deleted -------------------------------------------------------------------------------------


@given(progresses(), st.integers(0, END))
def test_what_was_read_beyond_the_end_of_a_log_is_forgotten(reached: Progress, end: int) -> None:
    kept, losses = without_deleted({T0: reached}, {T0: end})
    assert done(kept[T0]) == {cell for cell in done(reached) if cell[0] < end}
    assert bool(losses) == (end < reached.front)
    for loss in losses:
        assert (loss.partition, loss.available) == (T0, (0, end))
        assert loss.wanted == (reached.front, reached.front)


def test_a_partition_that_is_gone() -> None:
    reached = {T0: Progress(5), T1: Progress(7)}
    kept, (loss,) = without_deleted(reached, {T1: 9})
    assert kept == {T1: Progress(7)}
    assert (loss.partition, loss.wanted, loss.available) == (T0, None, None)
    assert loss.text == (
        "t-0 is gone (deleted, or no longer subscribed); it was read up to offset 5"
    )


def test_a_topic_that_was_made_anew() -> None:
    other = TopicPartition("u", 0)
    reached = {T0: Progress(5), T1: Progress(0), other: Progress(5)}
    (loss,) = recreated_topics(reached, dict.fromkeys(reached, 9), {"t"})
    assert (loss.partition, loss.wanted, loss.available) == (T0, (0, 5), (0, 9))
    assert loss.text.startswith("topic t was deleted and made again while the query ran: t-0 was")


# -- trimmed -------------------------------------------------------------------------------------


@given(progresses(), st.integers(0, END))
def test_what_was_pending_below_the_begin_of_a_log_is_passed_over(
    reached: Progress, first: int
) -> None:
    kept, losses = without_trimmed({T0: reached, T1: reached}, {T0: first})
    pending = cells_of(reached.pending(first))
    assert done(kept[T0]) == done(reached) | pending
    assert kept[T1] == reached  # its log begins at 0
    assert bool(losses) == bool(pending)
    for loss in losses:
        assert loss.partition == T0
        assert loss.wanted is not None
        assert loss.wanted[0] == min(offset for offset, _ in pending)
        assert loss.wanted[1] == max(offset for offset, _ in pending) + 1


def test_the_text_names_offsets_and_key_hashes() -> None:
    high = HashRange(LOW.hi, HASH_SPACE)
    reached = Progress.of(3, [offsets(3, 8, LOW), offsets(9, 12)])
    _, (loss,) = without_trimmed({T0: reached}, {T0: 8})
    assert loss.text == (
        f"t-0: offsets [3,8) of the key hashes {high} were pending and are gone "
        "(if these hashes had records there, which nobody can know any more); "
        "the log begins at offset 8 (deleted by retention or by an operator)"
    )
    assert (loss.wanted, loss.available) == ((3, 8), (8, 12))
    _, (loss,) = without_trimmed({T0: Progress(3)}, {T0: 8})
    assert loss.text.startswith("t-0: offsets [3,8) were pending and are gone; the log")
    assert loss.available == (8, 8)


# -- others --------------------------------------------------------------------------------------


def test_a_new_partition() -> None:
    (loss,) = new_partitions({T0: 4, T1: 0})
    assert (loss.partition, loss.wanted, loss.available) == (T0, (0, 4), None)
    assert loss.text.startswith("t-0 is new to this query and starts at offset 4, not 0")


@pytest.mark.parametrize(("count", "more"), [(5, ""), (7, " and 2 more")])
def test_only_some_of_many_are_shown(count: int, more: str) -> None:
    pending = [offsets(2 * n, 2 * n + 1) for n in range(count)]
    loss = no_longer_assigned(T0, pending)
    assert loss.text.startswith(
        f"t-0: offsets [0,1), offsets [2,3), offsets [4,5), offsets [6,7), "
        f"offsets [8,9){more} were pending"
    )
    assert loss.wanted == (0, 2 * count - 1)
