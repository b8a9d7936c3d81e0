"""Which waits are worth saying, and when."""

from collections.abc import Hashable

from hypothesis import given
from hypothesis import strategies as st

from kshare.core.waits import PATIENCE_SECONDS, SaidWait, Wait, Watch

CLAIM = Wait("its claim is not in the log yet", "it is read back")
START = Wait("where to start is not known yet", "the coordinator answers")


def texts(said: tuple[SaidWait, ...]) -> list[tuple[str, tuple[str, ...], float, bool]]:
    return [(each.wait.state, each.names, each.seconds, each.is_over) for each in said]


def of(wait: Wait, *names: str) -> dict[Hashable, Wait]:
    return {name: Wait(wait.state, wait.until, name) for name in names}


def test_nothing_waits() -> None:
    watch = Watch()
    assert watch.look({}, 0.0) == ()
    assert not watch.is_waiting


def test_a_short_wait_is_never_said() -> None:
    watch = Watch()
    assert watch.look(of(CLAIM, "a-0"), 0.0) == ()
    assert watch.is_waiting
    assert watch.look(of(CLAIM, "a-0"), 29.9) == ()
    assert watch.look({}, 31.0) == ()
    assert not watch.is_waiting


def test_one_that_lasts_is_said_once_and_when_it_is_over() -> None:
    watch = Watch()
    looks = [watch.look(of(CLAIM, "a-0"), float(now)) for now in range(100)]
    assert [(now, texts(said)) for now, said in enumerate(looks) if said] == [
        (30, [(CLAIM.state, ("a-0",), 30.0, False)])
    ]
    assert texts(watch.look({}, 100.0)) == [(CLAIM.state, ("a-0",), 100.0, True)]
    assert watch.look({}, 101.0) == ()


def test_another_state_of_the_same_wait_is_said_after_the_same_time() -> None:
    watch = Watch()
    waits = [of(CLAIM if now < 31 else START, "a-0") for now in range(100)]
    looks = [(now, texts(watch.look(wait, float(now)))) for now, wait in enumerate(waits)]
    assert [(now, said) for now, said in looks if said] == [
        (30, [(CLAIM.state, ("a-0",), 30.0, False)]),
        (60, [(START.state, ("a-0",), 60.0, False)]),
    ]


def test_another_detail_is_the_same_state() -> None:
    watch = Watch()
    waits: list[dict[Hashable, Wait]] = [
        {"": Wait("cannot read", "it is back", detail=f"{now}")} for now in range(100)
    ]
    said = [each for now, wait in enumerate(waits) for each in watch.look(wait, float(now))]
    assert [each.wait.detail for each in said] == ["30"]


def test_what_waits_for_the_same_is_one_line() -> None:
    watch = Watch()
    watch.look(of(CLAIM, "b-1"), 0.0)
    watch.look({**of(CLAIM, "b-1", "a-0"), "log": START}, 5.0)
    assert texts(watch.look({**of(CLAIM, "b-1", "a-0"), "log": START}, 40.0)) == [
        (CLAIM.state, ("a-0", "b-1"), 40.0, False),
        (START.state, (), 35.0, False),
    ]
    assert texts(watch.look({}, 41.0)) in (
        [(CLAIM.state, ("a-0", "b-1"), 41.0, True), (START.state, (), 36.0, True)],
        [(START.state, (), 36.0, True), (CLAIM.state, ("a-0", "b-1"), 41.0, True)],
    )


def test_one_that_is_known_to_last_is_said_at_its_beginning() -> None:
    watch = Watch()
    assert watch.look({"": CLAIM}, 0.0, lasts=29.0) == ()
    assert texts(watch.look({"": CLAIM}, 29.0, lasts=1.0)) == [(CLAIM.state, (), 29.0, False)]


STATES = st.sampled_from([None, CLAIM, START])


@given(st.lists(st.tuples(STATES, st.floats(0.1, 20.0)), min_size=1, max_size=200))
def test_no_wait_is_silent_and_none_is_said_too_often(
    steps: list[tuple[Wait | None, float]],
) -> None:
    """Also of one that goes back and forth between two states."""
    watch, now, since, said_at = Watch(), 0.0, None, None
    for wait, seconds in steps:
        now += seconds
        said = watch.look({} if wait is None else {"": wait}, now)
        if wait is None:
            assert [each.is_over for each in said] == [True] * (said_at is not None)
            since = said_at = None
            continue
        since = now if since is None else since
        for each in said:
            assert not each.is_over
            assert each.wait == wait
            assert now - (since if said_at is None else said_at) >= PATIENCE_SECONDS
            said_at = now
        if said_at is None:
            assert now - since < PATIENCE_SECONDS
