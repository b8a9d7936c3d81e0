"""What a transaction waits for, and what it writes: `purgatory`."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import ALL_HASHES, WHOLE, HashRange, KeyRanges, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle
from kshare.group.protocol.commit_log.commit import (
    Purgatory,
    PurgatoryState,
    TransactionPart,
    first_new_offset,
    purgatory_state,
    transaction_records,
)
from kshare.group.protocol.commit_log.log import PartitionLog
from tests.group.protocol.process import T0

# -- the purgatory ---------------------------------------------------------------------------------

LOWER, UPPER = split(WHOLE, 2)


def transaction_part(
    first: int | None, known: Progress, *hashes: HashRange, owned: KeyRanges | None = None
) -> TransactionPart:
    had = KeyRanges(hashes)
    return TransactionPart(first, had, had if owned is None else owned, known)


def test_the_proposals_example() -> None:
    """[40, 44] is with stream thread A and [45, 49] with B, which commits first."""
    known = Progress.of(40, [Rectangle(OffsetRange(40, 45), UPPER)])
    ahead, first = transaction_part(45, known, UPPER), transaction_part(40, known, LOWER)
    assert purgatory_state([ahead], "stable") is PurgatoryState.CLOSED
    assert purgatory_state([first], "stable") is PurgatoryState.OPEN
    after = known.commit([Rectangle(OffsetRange(40, 45), LOWER)])
    assert purgatory_state([replace(ahead, known=after)], "stable") is PurgatoryState.OPEN


def test_a_gap_that_has_become_its_own_is_not_waited_for() -> None:
    known = Progress.of(40, [Rectangle(OffsetRange(40, 45), UPPER)])
    both = transaction_part(45, known, UPPER, owned=ALL_HASHES)
    assert purgatory_state([both], "stable") is PurgatoryState.LOST
    assert purgatory_state([both], "key") is PurgatoryState.OPEN


OFFSETS = st.integers(0, 20)


@st.composite
def partitions(draw: st.DrawFn, members: int) -> tuple[Progress, list[HashRange], list[int]]:
    """What is known of a partition, and the hashes and the position of each of its members."""
    parts = split(WHOLE, members)
    positions = [draw(OFFSETS) for _ in parts]
    known = Progress.of(
        0,
        (
            Rectangle(OffsetRange(0, at), part)
            for part, at in zip(parts, positions, strict=True)
            if at
        ),
    )
    return known, list(parts), positions


@given(st.data(), st.integers(2, 4), st.integers(1, 3))
def test_somebody_always_moves(data: st.DataObject, members: int, count: int) -> None:
    """However members have taken parts of several partitions, one of them may commit."""
    world = [data.draw(partitions(members)) for _ in range(count)]
    answers = []
    for number in range(members):
        taken = data.draw(st.lists(st.booleans(), min_size=count, max_size=count).filter(any))
        taken_parts = [
            transaction_part(positions[number] if is_taken else None, known, parts[number])
            for (known, parts, positions), is_taken in zip(world, taken, strict=True)
        ]
        answers.append(purgatory_state(taken_parts, "stable"))
    assert PurgatoryState.OPEN in answers
    assert PurgatoryState.LOST not in answers


@given(st.data(), st.sampled_from(["stable", "key"]))
def test_one_partition_waits_until_the_stable_offset_is_there(
    data: st.DataObject, purgatory: Purgatory
) -> None:
    known, parts, positions = data.draw(partitions(3))
    for part, at in zip(parts, positions, strict=True):
        found = purgatory_state([transaction_part(at, known, part)], purgatory)
        is_reached = known.stable >= at or purgatory == "key"
        assert found is (PurgatoryState.OPEN if is_reached else PurgatoryState.CLOSED)


@given(st.data())
def test_a_part_begins_where_its_member_stood(data: st.DataObject) -> None:
    known, parts, positions = data.draw(partitions(3))
    for part, at in zip(parts, positions, strict=True):
        end = data.draw(st.integers(0, 30))
        done = known.commit(known.pending_of(end, (part,)))
        assert first_new_offset(done, known) == (at if end > at else None)
        gap = known.pending_of(at, ALL_HASHES - [part])
        assert bool(gap) == (known.stable < at)


@given(st.data())
def test_a_transaction_writes_what_the_log_does_not_say(data: st.DataObject) -> None:
    known, parts, _ = data.draw(partitions(2))
    end = data.draw(st.integers(0, 30))
    done = known.commit(known.pending_of(end, (parts[0],)))
    log = PartitionLog(1, 0)
    blocks, keys = transaction_records(T0, log, "m", KeyRanges([parts[0]]), done)
    assert keys == []
    for block in blocks:
        log.blocks[block.author, block.hashes, block.stretch] = block.bounds
    assert log.progress().pending_of(40, (parts[0],)) == done.pending_of(40, (parts[0],))
    again, _ = transaction_records(T0, log, "m", KeyRanges([parts[0]]), done)
    assert again == []
