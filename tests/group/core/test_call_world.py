"""What a call returns, in random walks of a small world; and faults that are seeded, and found."""

from collections.abc import Callable
from operator import itemgetter

import pytest

from kshare.group.core import call
from kshare.group.core.call import Call
from kshare.group.core.handed_out import HandedOut
from kshare.group.core.ownership import Ownership
from kshare.group.core.ownerships import Ownerships
from kshare.group.core.right import Right
from kshare.group.protocol.owner import Phase
from tests.group.core.call_world import walk

WALKS = 60
Patch = Callable[[pytest.MonkeyPatch], None]


def test_random_walks() -> None:
    walks = [walk(seed) for seed in range(WALKS)]
    assert {law for _, law in walks} == {""}
    assert sum(map(itemgetter(0), walks)) > WALKS


def returns_after_a_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ownerships, "fenced", lambda _: None)
    patch.setattr(call, "are_in_place", lambda *_: True)
    patch.setattr(Call, "was_stopped", lambda *_: False)


def returns_what_is_of_another_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(call, "are_in_place", lambda *_: True)
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
    patch.setattr(Right, "seconds_left", lambda self, _: 0.0 if self.is_proven else -1.0)


def goes_on_with_a_start_that_was_given_up(patch: pytest.MonkeyPatch) -> None:
    """After a rewind, until the next start."""

    def rewind(self: Ownership) -> None:
        if self.owner.rewind():
            self.action += 1

    patch.setattr(Ownership, "rewind", rewind)
    patch.setattr(Ownership, "look", _looks_without_stopping)


def _looks_without_stopping(self: Ownership, now: float) -> bool:
    if self.owner.phase is not Phase.RUNNING and self.start is not None:
        return False
    return _look(self, now)


_look = Ownership.look

FAULTS: tuple[Patch, ...] = (
    returns_after_a_fence,
    returns_what_is_of_another_start,
    a_cancelled_call_returns,
    a_commit_counts_a_cancelled_call,
    what_goes_back_does_not_come_again,
    an_answer_asked_before_the_lapse_renews_the_right,
    goes_on_with_a_start_that_was_given_up,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert any(walk(seed)[1] for seed in range(100))
