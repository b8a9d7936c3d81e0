"""When a session ends the transactions of others that hide the end of its log."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kshare.group.session.fencing import Watch

CHANCES = st.floats(0, 1)
MOST_SECONDS = 6.2


class Clock:
    """A time that passes when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@given(CHANCES, st.lists(st.tuples(st.floats(0, 3), st.integers(0, 5), st.booleans())))
def test_a_log_that_moves_is_left_alone(
    chance: float, answers: list[tuple[float, int, bool]]
) -> None:
    clock = Clock()
    watch = Watch(clock, chance)
    for stable, (seconds, hidden, moves) in enumerate(answers):
        clock.now += seconds
        assert watch.look(stable, stable + hidden) is None
        if not moves:  # it stands still for a while
            clock.now += 0.9
            assert watch.look(stable, stable + hidden) is None


@given(CHANCES)
def test_a_log_that_stands_still_is_acted_upon_within_seconds(chance: float) -> None:
    clock = Clock()
    watch = Watch(clock, chance)
    assert watch.look(10, 10) is None
    clock.now = 1.0
    assert watch.look(10, 15) is None
    clock.now += MOST_SECONDS
    # What was written since then may be of a transaction that has only begun.
    assert watch.look(10, 99) == 15


@given(CHANCES)
def test_it_becomes_more_patient_and_forgets_that(chance: float) -> None:
    clock = Clock()
    watch = Watch(clock, chance)
    acted: list[float] = []
    while len(acted) < 8:
        if watch.look(10, 15) is not None:
            acted.append(clock.now)
        clock.now += 0.1
    pauses = [round(after - before) for before, after in pairwise(acted)]
    assert pauses == sorted(pauses)
    assert acted[0] <= MOST_SECONDS
    assert pauses[-1] == 60
    clock.now += 61
    assert watch.look(20, 20) is None
    assert watch.look(20, 25) is None
    clock.now += MOST_SECONDS
    assert watch.look(20, 25) == 25
