"""A delivery amid an interrupt, and beside another thread that commits."""

from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any
from unittest.mock import Mock

import pytest

from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import Progress
from kshare.group.core import handed_out as handed_out_module
from kshare.group.core.delivery import Delivery
from kshare.group.core.handed_out import HandedOut
from kshare.group.core.open_chunks import OpenChunks
from kshare.group.delivery_start import DeliveryStart
from kshare.group.message import Chunk
from tests.group.core.driver import OF_DELIVERY
from tests.group.core.test_delivery import ORDERS, chunk_of
from tests.support.interrupts import Interrupt, interrupt


def test_who_looks_while_the_next_chunk_begins_sees_either_and_no_mixture() -> None:
    """Another thread commits: what is not handed out must not count."""
    handed_out, first = HandedOut(0), chunk_of([0, 1, 2])
    list(handed_out.begin(first, 3).messages)
    seen = handed_out._current
    rows = handed_out.begin(chunk_of([5, 6, 7, 8]), 9)
    assert handed_out._position_at(seen, 3) == 3
    assert (handed_out.position, handed_out.before_last, handed_out.left) == (3, 2, 4)
    next(rows.messages)
    assert (handed_out.position, handed_out.before_last, handed_out.left) == (6, 3, 3)


class Switching(HandedOut):
    """Another thread begins the next chunk between any two looks at the current one."""

    def __init__(self) -> None:
        self.next: Chunk | None = None
        super().__init__(0)

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name == "_current" and found is not None and self.next is not None:
            chunk, self.next = self.next, None
            HandedOut.begin(self, chunk, 20)
        return found


@pytest.mark.parametrize("rows", [1, 10])
@pytest.mark.parametrize("name", ["position", "returned", "before_last", "left"])
def test_a_commit_of_another_thread_counts_nothing_of_a_chunk_that_begins_meanwhile(
    name: str, rows: int
) -> None:
    handed_out = Switching()
    list(handed_out.begin(chunk_of(list(range(rows))), rows).messages)
    handed_out.next = chunk_of(list(range(rows, 20)))
    expected = {"position": rows, "returned": rows, "before_last": rows - 1, "left": 0}
    assert getattr(handed_out, name) == expected[name]


def test_a_commit_of_another_thread_counts_nothing_of_a_chunk_that_is_handed_out_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delivery, seen = (
        Delivery(ORDERS, DeliveryStart.new(Progress.at(0)), ALL_HASHES, explicit=True),
        list[Progress](),
    )

    def looking(of: type[Any], name: str) -> None:
        real = getattr(of, name)

        def look(self: Any, *arguments: Any) -> None:
            real(self, *arguments)
            seen.append(delivery.processed(is_batch=True))

        monkeypatch.setattr(of, name, look)

    looking(HandedOut, "add")
    looking(OpenChunks, "add")
    delivery.hand_out(chunk_of([0, 1, 2]), 3)
    assert seen == [Progress.at(0)] * 2


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("taken", [1, 4])
@pytest.mark.parametrize(
    "change",
    [Delivery.stop, lambda delivery: delivery.seek(1), lambda delivery: delivery.seek(9)],
    ids=["stop", "seek back", "seek on"],
)
def test_no_interrupt_lets_count_what_is_not_processed(
    explicit: bool, taken: int, change: Callable[[Delivery], None]
) -> None:
    number, is_over = 0, False
    while not is_over:
        delivery, chunk = (
            Delivery(ORDERS, DeliveryStart.new(Progress.at(0)), ALL_HASHES, explicit=explicit),
            chunk_of([*range(4)]),
        )
        rows = delivery.begin(chunk, 4)
        for _ in range(taken):
            next(rows.messages)
        chunk.acknowledged[0] = 1
        with suppress(Interrupt), interrupt(number, *OF_DELIVERY, handed_out_module) as raised:
            change(delivery)
        processed = delivery.processed(is_batch=False)
        possible = 1 if explicit else taken - 1  # the last record is not processed
        pending = processed.pending_of(12, ALL_HASHES)
        for at in range(possible, 12):
            assert any(at in piece.offsets for piece in pending), (raised, at)
        number, is_over = number + 1, not raised
    assert number > 2


@pytest.mark.parametrize("taken", [0, 1, 4])
def test_what_an_interrupt_has_left_of_a_chunk_is_no_gap(taken: int) -> None:
    number, is_over = 0, False
    while not is_over:
        delivery, chunk = (
            Delivery(ORDERS, DeliveryStart.new(Progress.at(0)), ALL_HASHES, explicit=True),
            chunk_of([*range(4)]),
        )
        rows = delivery.begin(chunk, 4)
        found = list(islice(rows.messages, taken))
        with suppress(Interrupt), interrupt(number, *OF_DELIVERY, handed_out_module) as raised:
            delivery.stop()
        found += islice(rows.messages, 1 if raised else 0)  # before it is noticed
        delivery.stop()
        assert delivery.position == delivery.handed_out == len(found), raised
        assert delivery.unacknowledged == len(found), raised
        assert rows.left == 0
        number, is_over = number + 1, not raised
    assert number > 2


def test_a_chunk_that_begins_after_an_interrupt_has_the_rows_that_were_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delivery = Delivery(ORDERS, DeliveryStart.new(Progress.at(0)), ALL_HASHES, explicit=True)
    list(islice(delivery.begin(chunk_of([0, 1]), 2).messages, 1))
    with monkeypatch.context() as patched, suppress(Interrupt):
        patched.setattr(Chunk, "close_rows", Mock(side_effect=Interrupt))
        delivery.stop()
    list(delivery.begin(chunk_of([1, 2]), 3).messages)
    assert delivery.unacknowledged == delivery.handed_out == delivery.position == 3
