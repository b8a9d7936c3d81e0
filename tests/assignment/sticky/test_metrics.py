"""What the sticky assignor measures is what the judge measures."""

from hypothesis import given
from hypothesis import strategies as st

from kshare.assignment.cases import Case, run_case
from kshare.assignment.placement.indexed_state import IndexedState
from kshare.assignment.placement.placement import Placement
from kshare.assignment.racks.costs import configured_costs
from kshare.assignment.sticky import Metrics
from tests.support.cases import STICKY, judge, random_case
from tests.support.effort import examples

NAMES = (
    "active_moved",
    "active_cold",
    "standby_cold",
    "active_spread",
    "load_spread",
    "subtopology_skew",
)


@given(st.integers(0, 2**32), st.sampled_from([0, 3]))
@examples(60)
def test_measures_are_the_judges(seed: int, racks: int) -> None:
    case = random_case(seed, STICKY, racks=racks, gaps=0, preserve=False)
    outcome = run_case(Case.read(case))
    assert outcome.state is not None
    assert outcome.after is not None
    situation = IndexedState(outcome.state)
    placement = situation.empty_placement()
    held = {entry.process_id: entry for entry in outcome.after.assignment}
    placement.set_active(situation.numbers({one: held[one].active for one in held}))
    placement.set_standby(situation.numbers({one: held[one].standby for one in held}))
    costs = (
        configured_costs(outcome.state, inputs=True, traffic_cost=1),
        configured_costs(outcome.state, inputs=False, traffic_cost=1),
    )
    found = Metrics(situation, costs).all(placement)
    metrics = judge.metrics(case, outcome.answer)
    wanted = [metrics[name] for name in NAMES]
    if costs[0] is not None:
        wanted += [metrics["xrack_active_all"], metrics["xrack_standby"]]
    assert [round(value, 6) for value in found] == wanted


def test_evenness_of_actives_comes_before_that_of_all() -> None:
    case = random_case(0, STICKY, racks=0, tasks=5, processes=3, strategy="none", standbys=1)
    state = run_case(Case.read(case)).state
    assert state is not None
    situation = IndexedState(state)
    measures = Metrics(situation)

    def loads(*counts: tuple[int, int]) -> Placement:
        placement = Placement([1, 1, 1], 9)
        placement.set_active([set(range(active)) for active, _ in counts])
        placement.set_standby([set(range(standby)) for _, standby in counts])
        return placement

    even, uneven = loads((2, 0), (2, 0), (2, 6)), loads((1, 2), (2, 2), (3, 1))
    evener = loads((2, 1), (2, 1), (2, 4))
    assert measures.is_more_even(even, uneven)
    assert not measures.is_more_even(uneven, even)
    assert measures.is_more_even(evener, even)
    assert not measures.is_more_even(even, even)
