"""Leader epochs against a dict of what was read."""

from hypothesis import given
from hypothesis import strategies as st

from kshare.core.leader_epochs import NO_EPOCHS, LeaderEpochs

Read = tuple[int, int, list[tuple[int, int]]]


@st.composite
def reads(draw: st.DrawFn) -> Read:
    """An answer: the offset that was asked for, its end, and batches with their epochs."""
    start = draw(st.integers(0, 40))
    first = max(0, start + draw(st.integers(-3, 3)))
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    epochs = sorted(draw(st.lists(st.integers(-1, 4), min_size=len(lengths), max_size=4)))
    heads, at = [], first
    for length, epoch in zip(lengths, epochs, strict=False):
        heads.append((at, epoch))
        at += length
    return start, max(at, start + 1), heads


@given(st.lists(reads(), max_size=8))
def test_it_knows_of_each_offset_what_was_read_last(answers: list[Read]) -> None:
    known: dict[int, int] = {}
    epochs = NO_EPOCHS
    for start, end, heads in answers:
        epochs = epochs.read(start, end, heads)
        has_before = start - 1 in known
        for offset in range(start, end):
            of_offset = [epoch for first, epoch in heads if first <= offset]
            if of_offset:
                known[offset] = of_offset[-1]
            elif has_before:  # no record is there, so the one before counts
                known[offset] = known[start - 1]
            else:
                known.pop(offset, None)
    for offset in range(60):
        expected = known.get(offset - 1, -1)
        assert epochs.before(offset) == (None if expected < 0 else expected)
    for (_, end, epoch), (start, _, later) in zip(epochs.spans, epochs.spans[1:], strict=False):
        assert end < start or (end == start and epoch != later)


def test_what_was_not_read_is_not_known() -> None:
    epochs = NO_EPOCHS.read(10, 20, [(8, 3), (15, 4)]).read(30, 40, [(30, 4)])
    assert [epochs.before(offset) for offset in (10, 11, 15, 16, 20, 21, 30, 31, 40, 41)] == [
        *(None, 3, 3, 4, 4),
        *(None, None, 4, 4, None),
    ]


def test_only_so_much_is_kept() -> None:
    epochs = NO_EPOCHS.read(0, 1_996, [(number * 2, number) for number in range(998)])
    for number in range(998, 1_010):
        epochs = epochs.read(number * 2, number * 2 + 1, [(number * 2, number)])
    assert len(epochs.spans) == 1_000
    assert epochs.before(2_019) == 1_009
    assert epochs.before(21) == 10
    assert epochs.before(20) is None
    assert epochs.before(1) is None
    assert epochs.read(0, 1, []) is epochs
    assert LeaderEpochs().before(0) is None
