"""What a call returns, in random walks of a small world; and faults that are seeded, and found.

Those of :class:`.Deliveries` too: it is what decides there what is read, handed out and read again.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kshare.core.hashing import KeyRanges
from kshare.core.progress import TopicPartition
from kshare.group.core import handing_out
from kshare.group.core.deliveries import Deliveries
from kshare.group.core.delivery import Delivery
from kshare.group.core.fetched_rows import FetchedRows
from kshare.group.core.handed_out import HandedOut, Offsets
from kshare.group.core.handing_out import Call
from kshare.group.core.open_chunks import OpenChunks
from kshare.group.core.ownership import Ownership
from kshare.group.core.ownerships import Ownerships
from kshare.group.core.position import NextDelivery
from kshare.group.core.right import Right
from kshare.group.protocol.owners.owner import Phase
from tests.group.core.call_world import walk
from tests.group.protocol.interleavings import seeds
from tests.support.effort import least, scaled, walks
from tests.support.shown import is_found, no_law_is_broken

WALKS = scaled(80)
Patch = Callable[[pytest.MonkeyPatch], None]


def test_random_walks() -> None:
    returned = Counter[str]()

    def law_of(seed: int) -> str:
        records, law = walk(seed)
        returned.update(records)
        return law

    no_law_is_broken(law_of, walks(80))
    assert returned["records"] > 10 * WALKS
    assert returned["provisional"] > least(20)  # of hashes that stay, before their next claim


def returns_after_a_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ownerships, "fenced", lambda _: None)
    patch.setattr(handing_out, "are_in_place", lambda *_: True)
    patch.setattr(Call, "was_stopped", lambda *_: False)


def returns_what_is_of_another_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(handing_out, "are_in_place", lambda *_: True)
    patch.setattr(Call, "was_stopped", lambda *_: False)


def a_cancelled_call_returns(patch: pytest.MonkeyPatch) -> None:
    real = Call.may_return

    def may_return(self: Call, *args: object) -> bool:
        was_cancelled, self.is_cancelled = self.is_cancelled, False
        may = real(self, *args)  # type: ignore[arg-type]
        self.is_cancelled = was_cancelled
        return may

    patch.setattr(Call, "may_return", may_return)


def a_commit_counts_a_cancelled_call(patch: pytest.MonkeyPatch) -> None:
    """What goes back stays handed out."""

    def give_back(self: Call, _: object) -> list[object]:
        self.confirm()
        return []

    patch.setattr(Call, "give_back", give_back)


def what_goes_back_does_not_come_again(patch: pytest.MonkeyPatch) -> None:
    def take_back(self: HandedOut) -> list[object]:
        self._mark = None
        return []

    patch.setattr(HandedOut, "take_back", take_back)


def an_answer_asked_before_the_lapse_renews_the_right(patch: pytest.MonkeyPatch) -> None:
    """The latest read counts as if it had just been sent, whenever it was."""
    patch.setattr(Right, "seconds_to_deliver", lambda self, _: 0.0 if self.is_proven else -1.0)


def goes_on_with_a_start_that_was_given_up(patch: pytest.MonkeyPatch) -> None:
    """After a rewind, until the next start."""

    def rewind(self: Ownership) -> None:
        if self.owner.rewind():
            self.action_number += 1

    patch.setattr(Ownership, "rewind", rewind)
    patch.setattr(Ownership, "look", _looks_without_stopping)


def _looks_without_stopping(self: Ownership, now: float) -> bool:
    if self.owner.phase is not Phase.RUNNING and self.start is not None:
        return False
    return _look(self, now)


_look = Ownership.look


def does_not_carry_over_what_was_handed_out(patch: pytest.MonkeyPatch) -> None:
    """At a rebalance, hashes that stay begin again from what is committed."""
    patch.setattr(Delivery, "kept", lambda *_: None)


def reads_on_what_the_group_takes_away(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Deliveries, "_keep", lambda *_: None)


def stops_what_stays(patch: pytest.MonkeyPatch) -> None:
    """The next claim begins without what was handed out before."""
    real = Deliveries._go_on

    def go_on(self: Deliveries, at: TopicPartition, hashes: KeyRanges) -> None:
        real(self, at, hashes)
        self._next.pop(at, None)

    patch.setattr(Deliveries, "_go_on", go_on)


def does_not_read_anew_what_begins(patch: pytest.MonkeyPatch) -> None:
    """The next delivery gets what was read for the one before."""
    real = Deliveries._start

    def start(self: Deliveries, at: TopicPartition, *given: Any) -> None:
        before = dict(self.fetched.anew)
        real(self, at, *given)
        self.fetched.anew = before

    patch.setattr(Deliveries, "_start", start)


def does_not_read_anew_what_was_put_back(patch: pytest.MonkeyPatch) -> None:
    """The reader goes on behind it."""
    real = Deliveries.take_back

    def take_back(self: Deliveries, *given: Any) -> None:
        before = dict(self.fetched.anew)
        real(self, *given)
        self.fetched.anew = before

    patch.setattr(Deliveries, "take_back", take_back)


def a_seek_leaves_what_is_in_hand(patch: pytest.MonkeyPatch) -> None:
    """It is handed out first, though it is of the offset before."""
    real = Deliveries.seek

    def seek(self: Deliveries, *given: Any) -> None:
        with patch.context() as kept:
            kept.setattr(FetchedRows, "drop", lambda *_: None)
            kept.setattr(Delivery, "stop", lambda _: None)
            real(self, *given)

    patch.setattr(Deliveries, "seek", seek)


def a_seek_before_the_next_claim_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = NextDelivery.within
    patch.setattr(NextDelivery, "within", lambda *given: replace(real(*given), sought=None))


def a_pause_leaves_what_is_in_hand(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Deliveries, "pause", lambda self, at: self.paused.add(at))


def does_not_read_anew_what_is_resumed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Deliveries, "resume", lambda self, at: self.paused.discard(at))


def acknowledges_what_is_of_any_chunk(patch: pytest.MonkeyPatch) -> None:
    real = OpenChunks.acknowledge
    patch.setattr(OpenChunks, "acknowledge", lambda self, rows, _: real(self, rows, ()))


def acknowledges_what_comes_before_too(patch: pytest.MonkeyPatch) -> None:
    """As an offset of Kafka that is committed: no gap is left."""
    real = OpenChunks.acknowledge

    def acknowledge(self: OpenChunks, rows: Offsets, chunks: Any) -> None:
        found = [
            offset
            for chunk, among in self._open_among(rows, chunks)
            for offset in chunk.offsets[among].tolist()
        ]
        self.acknowledge_between(0, max(found, default=0))
        real(self, rows, chunks)

    patch.setattr(OpenChunks, "acknowledge", acknowledge)


def a_call_begins_another_delivery_with_what_it_holds(patch: pytest.MonkeyPatch) -> None:
    """What it has not returned counts for the next claim."""
    real = Deliveries.refresh

    def refresh(self: Deliveries, *given: Any, **_: bool) -> None:
        real(self, *given, continues=False)

    patch.setattr(Deliveries, "refresh", refresh)
    patch.setattr(Call, "was_stopped", lambda *_: False)


def goes_on_after_all_was_claimed_anew(patch: pytest.MonkeyPatch) -> None:
    """A delivery that was to go on with the next claim does so, whatever came in between."""
    patch.setattr(Ownerships, "may_count", lambda *_: True)


FAULTS: dict[Patch, int] = {
    returns_after_a_fence: 11,
    returns_what_is_of_another_start: 11,
    a_cancelled_call_returns: 3,
    a_commit_counts_a_cancelled_call: 0,
    what_goes_back_does_not_come_again: 0,
    an_answer_asked_before_the_lapse_renews_the_right: 77,
    goes_on_with_a_start_that_was_given_up: 4,
    does_not_carry_over_what_was_handed_out: 39,
    reads_on_what_the_group_takes_away: 39,
    stops_what_stays: 39,
    does_not_read_anew_what_begins: 0,
    does_not_read_anew_what_was_put_back: 0,
    a_seek_leaves_what_is_in_hand: 134,
    a_seek_before_the_next_claim_is_forgotten: 590,
    a_pause_leaves_what_is_in_hand: 46,
    does_not_read_anew_what_is_resumed: 70,
    acknowledges_what_is_of_any_chunk: 735,
    acknowledges_what_comes_before_too: 55,
    a_call_begins_another_delivery_with_what_it_holds: 546,
    goes_on_after_all_was_claimed_anew: 143,
}
"""Faults that random walks find, with the first seed that does; if it finds nothing any more,
others are tried."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert is_found(any(walk(seed)[1] for seed in seeds(1_000, FAULTS[fault])))
