"""The state of a transaction: what is next, when it gives up, and what each event does."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.progress import Progress
from kshare.group.core.transaction_state import (
    GiveUp,
    Outlook,
    ProducerEpoch,
    Stage,
    TransactionAction,
    TransactionState,
)
from kshare.group.delivery_start import DeliveryStart
from kshare.group.protocol.commit_log.commit import PurgatoryState
from tests.support.groups import T0

START = DeliveryStart.new(Progress.at(0))
EPOCH = ProducerEpoch(ready_at=5.0, own_fences=0)
GOOD = Outlook({T0: START}, PurgatoryState.OPEN, read_at=6.0)
"""As one that may commit sees its session."""


def opened() -> TransactionState:
    state = TransactionState(timeout=10.0)
    state.begin("mark", 0)
    return state


def begun() -> TransactionState:
    state = opened()
    state.begun(1.0, EPOCH)
    return state


def asked(state: TransactionState, mark: object = "mark", **given: Any) -> TransactionState:
    state.ask_commit(mark, {T0: START}, 2.0, **{"has_news": True, **given})
    return state


def ending() -> TransactionState:
    state = asked(begun())
    state.written()
    return state


def doubtful() -> TransactionState:
    state = begun()
    state.abort()
    return state


def rewinding() -> TransactionState:
    state = opened()
    state.abort()
    return state


STATES: dict[Stage, Callable[[], TransactionState]] = {
    Stage.NONE: TransactionState,
    Stage.OPEN: opened,
    Stage.COMMITTING: lambda: asked(begun()),
    Stage.ENDING: ending,
    Stage.DOUBTFUL: doubtful,
    Stage.REWINDING: rewinding,
}
EVENTS: dict[str, Callable[[TransactionState], object]] = {
    "begin": lambda state: state.begin("mark", 0),
    "begun": lambda state: state.begun(1.0, EPOCH),
    "ask_commit": asked,
    "written": TransactionState.written,
    "committed": lambda state: state.committed(may_go_on=True),
    "abort": TransactionState.abort,
    "decided": TransactionState.decided,
    "rewound": TransactionState.rewound,
}
LEADS_TO = {
    (Stage.NONE, "begin"): Stage.OPEN,
    (Stage.OPEN, "begun"): Stage.OPEN,
    (Stage.OPEN, "ask_commit"): Stage.COMMITTING,
    (Stage.OPEN, "abort"): Stage.REWINDING,  # nothing was begun
    (Stage.COMMITTING, "begun"): Stage.COMMITTING,
    (Stage.COMMITTING, "written"): Stage.ENDING,
    (Stage.COMMITTING, "abort"): Stage.DOUBTFUL,
    (Stage.ENDING, "committed"): Stage.NONE,
    (Stage.ENDING, "abort"): Stage.DOUBTFUL,
    (Stage.DOUBTFUL, "decided"): Stage.REWINDING,
    (Stage.REWINDING, "rewound"): Stage.NONE,
}
PASSED_OVER = {"abort", "decided", "rewound"}
"""Events that change nothing where they mean nothing: who says them may do so twice."""


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("event", EVENTS)
def test_each_event_in_each_stage(stage: Stage, event: str) -> None:
    state = STATES[stage]()
    assert state.stage is stage
    if (stage, event) in LEADS_TO:
        EVENTS[event](state)
        assert state.stage is LEADS_TO[stage, event]
    elif event in PASSED_OVER:
        EVENTS[event](state)
        assert state.stage is stage
    else:
        with pytest.raises(AssertionError):
            EVENTS[event](state)


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (Stage.NONE, (False, False, True, False, TransactionAction.NOTHING)),
        (Stage.OPEN, (True, True, False, True, TransactionAction.NOTHING)),
        (Stage.COMMITTING, (True, False, False, True, TransactionAction.NOTHING)),
        (Stage.ENDING, (True, False, False, True, TransactionAction.NOTHING)),
        (Stage.DOUBTFUL, (False, False, False, True, TransactionAction.FENCE)),
        (Stage.REWINDING, (False, False, False, False, TransactionAction.REWIND)),
    ],
)
def test_what_each_stage_says(stage: Stage, said: tuple[object, ...]) -> None:
    state = STATES[stage]()
    holds = (state.is_open, state.may_take, state.is_settled, state.keeps_claims)
    assert (*holds, state.recovery) == said


def test_it_begins_and_writes_when_it_may() -> None:
    state = asked(opened())
    assert state.next_action(GOOD, 2.0) is TransactionAction.BEGIN
    state.begun(3.0, EPOCH)
    assert state.gives_up == 12.0  # 90 % of its time, which counts from here on
    assert state.next_action(GOOD, 3.0) is TransactionAction.WRITE
    state.written()
    state.committed(may_go_on=True)
    assert state.epoch == EPOCH
    assert not state.is_begun


@pytest.mark.parametrize(
    "sees",
    [
        replace(GOOD, purgatory=PurgatoryState.CLOSED),
        replace(GOOD, read_at=EPOCH.ready_at),
        replace(GOOD, is_alive=False),
    ],
)
def test_what_it_waits_for(sees: Outlook) -> None:
    assert asked(begun()).next_action(sees, 9.9) is TransactionAction.WAIT


def test_it_writes_only_under_an_epoch_that_it_knows() -> None:
    state = asked(opened())
    state.begun(3.0)
    assert state.next_action(GOOD, 3.0) is TransactionAction.WAIT


REASONS: tuple[tuple[GiveUp, dict[str, Any]], ...] = (
    (GiveUp.CLOSED, {"is_closed": True}),
    (GiveUp.NOT_OWN, {"starts": {T0: object()}}),
    (GiveUp.OVERTAKEN, {"purgatory": PurgatoryState.LOST}),
    (GiveUp.DISTURBED, {"purgatory": PurgatoryState.CLOSED, "is_disturbed": True}),
    (GiveUp.LATE, {"purgatory": PurgatoryState.CLOSED}),
    (GiveUp.DROPPED, {"is_alive": False, "is_lost": True}),
    (GiveUp.UNPROVEN, {"is_alive": False}),
)
"""Why it gives up when its time is over: the first reason that there is."""


@pytest.mark.parametrize("number", range(len(REASONS)), ids=[each.name for each, _ in REASONS])
def test_why_it_gives_up(number: int) -> None:
    """With all the later reasons, too."""
    changes: dict[str, Any] = {}
    for _, each in reversed(REASONS[number:]):
        changes.update(each)
    state = asked(begun())
    assert state.next_action(replace(GOOD, **changes), state.gives_up) is REASONS[number][0]


def test_a_partition_that_is_not_delivered_any_more_is_not_its_own() -> None:
    assert asked(begun()).next_action(replace(GOOD, starts={}), 2.0) is GiveUp.NOT_OWN


def test_one_amid_which_delivery_began_again_cannot_commit() -> None:
    """Nor is it over because nothing is new: what was handed out is not what is processed."""
    state = asked(opened(), "another mark", has_news=False)
    assert not state.is_own({T0: START})
    assert state.next_action(GOOD, 2.0) is GiveUp.TORN


@pytest.mark.parametrize("is_begun", [True, False])
def test_with_nothing_to_commit_it_is_over(is_begun: bool) -> None:
    state = asked(begun() if is_begun else opened(), has_news=False)
    assert state.stage is (Stage.COMMITTING if is_begun else Stage.NONE)


def test_before_it_has_begun_it_waits_from_its_commit_on() -> None:
    state = asked(opened())
    closed = replace(GOOD, purgatory=PurgatoryState.CLOSED)
    assert state.next_action(closed, 10.9) is TransactionAction.WAIT
    assert state.next_action(closed, 11.0) is GiveUp.LATE


def test_when_a_producer_begins_no_more() -> None:
    """After an abort, a commit that was asked for twice, and a fence of the own id."""
    assert doubtful().epoch is None
    state = ending()
    state.committed(may_go_on=False)
    assert state.epoch is None
    state = ending()
    state.committed(may_go_on=True)
    state.begin("mark", 0)
    assert state.epoch == EPOCH
    state.abort()
    state.rewound()
    state.begin("mark", 1)
    state.begun(1.0, replace(EPOCH, own_fences=1))
    asked(state).written()
    state.committed(may_go_on=True)
    state.begin("mark", 2)
    assert state.epoch is None


@given(st.lists(st.sampled_from(sorted({*EVENTS, "nothing new"}))))
def test_it_is_settled_only_when_it_is_committed_or_delivery_has_gone_back(said: list[str]) -> None:
    state = TransactionState()
    for event in said:
        was_settled, was_begun, aborts = state.is_settled, state.is_begun, state.aborts
        try:
            if event == "nothing new":
                asked(state, has_news=False)
            else:
                EVENTS[event](state)
        except AssertionError:
            continue
        if state.is_settled and not was_settled:
            assert event in {"committed", "rewound"} or (event == "nothing new" and not was_begun)
        if state.aborts > aborts:
            assert state.stage is (Stage.DOUBTFUL if was_begun else Stage.REWINDING)
            assert state.epoch is None
