"""The one memory of the last batches."""

from hypothesis import given
from hypothesis import strategies as st

from kshare.core.checkpoint import BatchOffsets
from kshare.planner.batch_history import REMEMBERED, RecentBatch, RecentBatches, batch_name


def batch(name: str) -> RecentBatch:
    return RecentBatch(name, BatchOffsets({}), [])


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=20))
def test_those_that_were_used_last_are_known(steps: list[tuple[str, bool]]) -> None:
    recent, used, made = RecentBatches(), list[str](), dict[str, RecentBatch]()
    for name, is_new in steps:
        is_known = name in used[-REMEMBERED:]
        found = recent.add(batch(name)) if is_new else recent.get(name)
        if is_known:
            assert found is made[name]
        elif not is_new:
            assert found is None
            continue
        assert found is not None
        made[name] = found
        others = [other for other in used if other != name]
        used = [*others[-REMEMBERED + 1 :], name]
        assert set(recent.names) == set(used)


def test_what_is_known_of_a_batch_is_not_lost_when_it_is_written_again() -> None:
    """A trigger without anything new writes the dict that is there."""
    recent = RecentBatches()
    known = recent.add(batch("a"))
    known.reached = {}
    assert recent.add(batch("a")) is known


def test_equal_dicts_have_one_name() -> None:
    one, same = {"t": {"0": 1, "1": 2}}, {"t": {"1": 2, "0": 1}}
    assert batch_name(one) == batch_name(same)
    assert batch_name(one) != batch_name({"t": {"0": 1}})
    assert batch_name({}) == "44136fa355b3678a"  # for ever: it is in tickets and fetch groups
