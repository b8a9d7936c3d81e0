"""Which tasks read the same offsets."""

from hypothesis import given
from hypothesis import strategies as st

from kshare.core.fetch_groups import GROUP_MAX, fetch_groups
from kshare.core.offsets import OffsetRange

RANGES = st.tuples(st.integers(0, 40), st.integers(1, 20)).map(lambda p: (p[0], p[0] + p[1]))


@given(st.lists(RANGES, max_size=12))
def test_tasks_are_a_group_if_two_read_an_offset(parts: list[tuple[int, int]]) -> None:
    found = fetch_groups("q", "b", [OffsetRange(*part) for part in parts])
    overlap = any(max(a[0], b[0]) < min(a[1], b[1]) for i, a in enumerate(parts) for b in parts[:i])
    if not overlap:
        assert found == [None] * len(parts)
        return
    for number, group in enumerate(found):
        assert group is not None
        assert (group.member, group.size) == (number, len(parts))
        read = [(start, end) for start, end, count in group.ranges for _ in range(count)]
        assert read == parts


def test_groups_have_a_limit() -> None:
    found = fetch_groups("q", "b", [OffsetRange(0, 9)] * (2 * GROUP_MAX + 1))
    assert [group and (group.number, group.member) for group in found] == [
        *((number, member) for number in (0, 1) for member in range(GROUP_MAX)),
        None,
    ]
    assert found[0] is not None
    assert found[0].ranges == ((0, 9, GROUP_MAX),)
