"""Owners of whole partitions that may not write to the log: primary offsets, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import ALL_HASHES, WHOLE, KeyRanges, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle
from kshare.errors import CommitLogError
from kshare.group.protocol.commit_log.commit import blocks_to_write
from kshare.group.protocol.commit_log.log import GroupLog
from kshare.group.protocol.commit_log.records import Claim, Key, Record, Reset, Stable, key_of
from kshare.group.protocol.commit_log.start import Anchor, Primary, Reason
from kshare.group.protocol.owners.actions import FetchPrimary, ResolveInitial, WritePrimary
from kshare.group.protocol.owners.owner import Owner, Phase
from kshare.group.protocol.owners.plain_owner import OffsetOwner, PlainOwner
from tests.support.groups import LOWER, T0

QUARTERS = split(WHOLE, 4)
pieces = st.lists(
    st.builds(
        lambda first, length, part: Rectangle(OffsetRange(first, first + length), part),
        st.integers(10, 60),
        st.integers(1, 9),
        st.sampled_from([WHOLE, *QUARTERS]),
    ),
    max_size=8,
)


def write(log: GroupLog, *records: Record) -> None:
    for record in records:
        log.apply(log.end, key_of(record), record)


def run(owner: Owner, log: GroupLog, primary: Primary | None, initial: int = 0) -> Primary | None:
    """Do what the owner wants, with all that it asks for; the primary offset after it."""
    for _ in range(20):
        actions = owner.actions(log.of(T0), log.end)
        if not actions:
            break
        (action,) = actions
        match action:
            case FetchPrimary():
                owner.primary_read(primary, log.end)
            case ResolveInitial():
                owner.initial_found(initial)
            case WritePrimary(offset, anchor):
                assert primary is None or offset > primary.offset
                primary = Primary(offset, anchor)
                owner.primary_written()
            case _:
                raise AssertionError(f"it is to write nothing else: {action}")
    return primary


def begun() -> GroupLog:
    """A log whose first incarnation starts at offset 10."""
    log = GroupLog("g")
    write(log, Reset(T0, 1, 10))
    return log


@given(before=pieces, processed=st.lists(pieces, max_size=5))
def test_it_commits_what_is_stable_and_individual_commits_stay_valid(
    before: list[Rectangle], processed: list[list[Rectangle]]
) -> None:
    log = begun()
    known = Progress.of(10, before)
    write(log, *blocks_to_write(T0, log.of(T0), "old#1", ALL_HASHES, known), Stable(T0, 1, 10))
    primary: Primary | None = Primary(10, Anchor(1, 0))
    owner = PlainOwner(Claim(T0, "m#1", ALL_HASHES))
    primary = run(owner, log, primary)
    assert owner.phase is Phase.RUNNING
    assert owner.done == known
    for done in processed:
        owner.processed(done)
        known = known.commit(done)
        owner.begin_commit(log.of(T0))
        primary = run(owner, log, primary)
        assert primary is not None
        assert owner.commit is None
        assert owner.stable(log.of(T0)) == max(known.stable, 10)
        assert primary.offset == max(known.stable, 10)
    follower = PlainOwner(Claim(T0, "next#1", ALL_HASHES))
    run(follower, log, primary)
    assert follower.resolved is not None
    assert follower.resolved.reason is Reason.CONTINUED
    assert follower.done == Progress.of(10, before).advance(known.stable)


@given(processed=pieces)
def test_a_group_that_is_new(processed: list[Rectangle]) -> None:
    owner = PlainOwner(Claim(T0, "m#1", ALL_HASHES))
    assert run(owner, GroupLog("g"), None, initial=10) is None
    owner.processed(processed)
    owner.begin_commit(GroupLog("g").of(T0))
    stable = Progress.of(10, processed).stable
    assert run(owner, GroupLog("g"), None) == Primary(stable)


def test_a_failed_commit_is_done_again() -> None:
    log = begun()
    owner = PlainOwner(Claim(T0, "m#1", ALL_HASHES))
    run(owner, log, Primary(10, Anchor(1, 0)))
    owner.processed([Rectangle(OffsetRange(10, 15), WHOLE)])
    owner.begin_commit(log.of(T0))
    with pytest.raises(ValueError, match="cannot begin a commit"):
        owner.begin_commit(log.of(T0))
    (action,) = owner.actions(log.of(T0), log.end)
    assert isinstance(action, WritePrimary)
    owner.failed()
    assert owner.actions(log.of(T0), log.end) == (action,)


def test_a_claim_that_comes_later_fences_it_and_an_earlier_one_does_not() -> None:
    log = begun()
    write(log, Claim(T0, "before#1", ALL_HASHES))
    owner = PlainOwner(Claim(T0, "m#2", ALL_HASHES))
    run(owner, log, Primary(10, Anchor(1, 0)))
    write(log, Claim(T0, "m#1", ALL_HASHES))  # its own, of before
    run(owner, log, None)
    phases = [owner.phase]
    write(log, Claim(T0, "after#1", KeyRanges([LOWER])))
    assert owner.actions(log.of(T0), log.end) == ()
    assert [*phases, owner.phase] == [Phase.RUNNING, Phase.FENCED]


def test_it_starts_again_after_an_operators_reset() -> None:
    log = begun()
    owner = PlainOwner(Claim(T0, "m#1", ALL_HASHES))
    run(owner, log, Primary(10, Anchor(1, 0)))
    write(log, Reset(T0, 2, 3))
    run(owner, log, Primary(10, Anchor(1, 0)))
    assert (owner.phase, owner.done) == (Phase.RUNNING, Progress.at(3))
    owner.begin_commit(log.of(T0))
    assert owner.actions(log.of(T0), log.end) == (WritePrimary(3, Anchor(2, 0)),)


def test_after_the_log_was_lost_it_goes_on_and_commits_without_an_anchor() -> None:
    log = begun()
    owner = PlainOwner(Claim(T0, "m#1", ALL_HASHES))
    primary = run(owner, log, Primary(10, Anchor(1, 0)))
    owner.processed([Rectangle(OffsetRange(10, 15), WHOLE)])
    owner.log_lost("new")
    assert owner.phase is Phase.RUNNING
    lost = GroupLog("g")
    owner.begin_commit(lost.of(T0))
    assert run(owner, lost, primary) == Primary(15)


def test_a_claim_that_cannot_be_read_fences_it_as_any_other() -> None:
    """Not one that was there before: its partition was assigned to it since."""
    log = begun()
    log.damage(log.end, Key(0, "claim", T0, ("old#1",)), "damaged")
    owner = PlainOwner(Claim(T0, "m#1", ALL_HASHES))
    run(owner, log, Primary(10, Anchor(1, 0)))
    phases = [owner.phase]
    log.damage(log.end, Key(0, "claim", T0, ("new#1",)), "damaged")
    owner.look(log.of(T0))
    assert [*phases, owner.phase] == [Phase.RUNNING, Phase.FENCED]


@given(
    offset=st.none() | st.integers(0, 60),
    anchor=st.none() | st.builds(Anchor, st.integers(0, 3), st.integers(0, 9), st.just("a")),
    initial=st.integers(0, 9),
    processed=st.lists(pieces, max_size=5),
)
def test_without_a_log_the_offset_is_all_there_is(
    offset: int | None, anchor: Anchor | None, initial: int, processed: list[list[Rectangle]]
) -> None:
    """It never goes back, passes nothing that is pending, and keeps no anchor of before."""
    log, before = GroupLog("g"), None if offset is None else Primary(offset, anchor)
    owner = OffsetOwner(Claim(T0, "m#1", ALL_HASHES))
    primary = run(owner, log, before, initial)
    start = initial if offset is None else offset
    assert (owner.phase, owner.done, primary) == (Phase.RUNNING, Progress.at(start), before)
    assert owner.resolved is not None
    is_said = before is not None and anchor is not None
    assert owner.resolved.reason.voids == is_said
    known = Progress.at(start)
    for done in processed:
        owner.processed(done)
        known = known.commit(done)
        owner.begin_commit(log.of(T0))
        primary = run(owner, log, primary)
        assert primary is not None
        assert primary.offset == max(known.stable, start)
        assert primary == before or primary.anchor is None


def test_without_a_log_an_offset_behind_every_log_is_refused() -> None:
    owner = OffsetOwner(Claim(T0, "m#1", ALL_HASHES))
    with pytest.raises(CommitLogError, match="behind the end of every log"):
        run(owner, GroupLog("g"), Primary((1 << 62) + 1))
