"""What the log says, also once it is compacted."""

import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import ALL_HASHES, WHOLE, KeyRanges, split
from kshare.core.progress import Progress
from kshare.group.protocol.commit_log.commit import keys_to_delete, passed_to_delete, past_to_delete
from kshare.group.protocol.commit_log.log import GroupLog, PartitionLog, members_forgotten
from kshare.group.protocol.commit_log.records import (
    Claim,
    Epoch,
    Key,
    Member,
    Record,
    Reset,
    Stable,
    key_of,
)
from tests.group.protocol.process import T0, Log, replay

MEMBERS = st.sampled_from(["m0", "m1", "m2"])


def said(*records: Record | Key, compacted: bool = False) -> PartitionLog:
    """What some records say; a key stands for its tombstone."""
    log = Log()
    for each in records:
        if isinstance(each, Key):
            log.append(each, None)
        else:
            log.append(key_of(each), each)
    if compacted:
        log.compact()
        log.delete_tombstones()
    group = GroupLog("g")
    replay(log, group)
    return group.of(T0)


@st.composite
def histories(draw: st.DrawFn) -> list[Record]:
    """Resets and stable offsets of some authors; each author's own stable offsets ascend."""
    stables, numbers = dict.fromkeys(["m0", "m1", "m2"], 0), dict.fromkeys(["m0", "m1", "m2"], 0)
    records: list[Record] = []
    for member in draw(st.lists(MEMBERS, max_size=12)):
        if draw(st.booleans()):
            stables[member] += draw(st.integers(0, 5))
            records.append(Stable(T0, 1, stables[member], author=member))
        else:
            numbers[member] += 1
            records.append(Reset(T0, 1, draw(st.integers(0, 9)), member, numbers[member]))
    return records


@given(histories())
def test_compaction_changes_nothing_of_where_a_partition_starts_and_is(
    records: list[Record],
) -> None:
    whole, compacted = said(*records), said(*records, compacted=True)
    assert (whole.reset_to, whole.stable) == (compacted.reset_to, compacted.stable)
    assert whole.progress() == compacted.progress()


@given(histories(), MEMBERS)
def test_a_lead_deletes_nothing_that_says_more_than_what_stays(
    records: list[Record], lead: str
) -> None:
    """Of authors that have no claim any more; the lead has one."""
    claim = Claim(T0, lead, ALL_HASHES)
    log = said(claim, *records)
    keys = [*passed_to_delete(T0, log, lead), *past_to_delete(T0, log, lead)]
    after = said(claim, *records, *keys, compacted=True)
    assert after.progress() == log.progress()
    assert len(after.resets) == min(len(log.resets), 1)
    mine = log.stables.get(lead)
    assert all(
        mine is None or each.offset > mine.offset or author == lead
        for author, each in after.stables.items()
    )


def test_what_a_former_lead_writes_late_does_not_replace_what_its_successor_has_written() -> None:
    late = [Stable(T0, 1, 10, author="new"), Stable(T0, 1, 3, author="old")]
    for compacted in (False, True):
        log = said(*late, compacted=compacted)
        assert log.stable == late[0]


def test_the_first_of_several_resets_says_where_a_partition_starts() -> None:
    both = [Reset(T0, 1, 100, "m0", 0), Reset(T0, 1, 105, "m1", 0), Reset(T0, 1, 110, "m0", 1)]
    for compacted in (False, True):
        assert said(*both, compacted=compacted).reset_to == 100


def test_only_the_lead_deletes_and_only_what_authors_without_a_claim_have_written() -> None:
    claims = [Claim(T0, "m1", ALL_HASHES), Claim(T0, "m2", ALL_HASHES, shared=True)]
    stables = [Stable(T0, 1, 10, author=name) for name in ("gone", "m1", "m2")]
    resets = [Reset(T0, 1, 5, "gone", 0), Reset(T0, 1, 7, "m1", 0)]
    log = said(*claims, *resets, *stables)
    assert log.lead == "m2"
    assert passed_to_delete(T0, log, "m1") == []
    keys = passed_to_delete(T0, log, "m2")
    assert [key.detail for key in keys] == [("gone",), ("m1",)]  # m1's claim is fenced
    living = said(claims[0], *resets, *stables)
    assert [key.detail for key in passed_to_delete(T0, living, "m1")] == [("gone",), ("m2",)]
    assert [key.detail for key in past_to_delete(T0, living, "m1")] == [("m1", 0)]


def test_a_new_incarnation_leaves_the_old_keys_to_be_deleted() -> None:
    records = [Reset(T0, 1, 5, "m0", 0), Reset(T0, 1, 7, "m1", 0)]
    stables = [Stable(T0, 1, 10, author="m0"), Stable(T0, 1, 9, author="m1")]
    log = said(*records, *stables, Reset(T0, 2, 0))
    assert log.outdated == {*map(key_of, records), *map(key_of, stables)}
    assert (log.reset_to, log.stable, log.stables, list(log.resets)) == (0, None, {}, [("", 0)])


def test_who_was_excluded_stays_so_though_the_later_claim_is_given_up() -> None:
    """Also if both are read at once: others have processed what it still holds."""
    lower, upper = split(WHOLE, 2)
    old, new = Claim(T0, "old", ALL_HASHES), Claim(T0, "new", KeyRanges([lower]))
    beside, tombstone = Claim(T0, "beside", KeyRanges([upper])), Key(0, "claim", T0, ("new",))
    part = said(old, new, tombstone)
    assert part.was_fenced("old")
    assert not part.is_fenced("old")  # nobody else owns any of it
    assert not said(new, beside).was_fenced("new")
    assert not said(old, Key(0, "claim", T0, ("old",)), new).was_fenced("new")


def test_a_late_claim_of_an_older_epoch_excludes_nobody() -> None:
    epoch = Epoch(1, "m", ())
    late, new = Claim(T0, "late", ALL_HASHES, 0), Claim(T0, "new", ALL_HASHES, 1)
    part = said(epoch, epoch, new, late)
    assert not part.was_fenced("new")
    assert part.was_fenced("late")


THIRDS = split(WHOLE, 3)
claims = st.builds(
    Claim,
    st.just(T0),
    MEMBERS,
    st.sampled_from([ALL_HASHES, KeyRanges(THIRDS[::2]), *(KeyRanges([part]) for part in THIRDS)]),
    st.none() | st.integers(0, 5),
    shared=st.booleans(),
)
tombstones = MEMBERS.map(lambda member: Key(0, "claim", T0, (member,)))


@given(st.lists(claims | tombstones, max_size=10))
def test_the_lead_and_who_is_fenced_are_known_after_each_record(records: list[Claim | Key]) -> None:
    """They are kept from one record to the next, as claims change with few of them."""
    log = GroupLog("g")
    for position, record in enumerate(records):
        if isinstance(record, Key):
            log.apply(position, record, None)
        else:
            log.apply(position, key_of(record), record)
        said = log.of(T0)
        assert said.lead == replace(said).lead  # which has not been asked yet
        owned = {member: said.owned_by(member) for member in said.claims}
        assert said.lead == min(
            (member for member in owned if owned[member]),
            key=lambda member: (owned[member][0].lo, member),
            default=None,
        )
        assert {member for member in ("m0", "m1", "m2", "other") if not said.is_fenced(member)} == {
            member for member, hashes in owned.items() if hashes == said.claims[member].claim.hashes
        }


def test_the_lead_is_looked_for_when_claims_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred members without key order asked for it with each record: 64 ms each."""
    log, asked = said(*(Claim(T0, f"m{i}", ALL_HASHES, shared=True) for i in range(5))), []
    real = PartitionLog._rank_claims

    def rank_claims(self: PartitionLog) -> Any:
        asked.append(self)
        return real(self)

    monkeypatch.setattr(PartitionLog, "_rank_claims", rank_claims)
    assert {log.lead for _ in range(10)} == {"m0"}
    assert len(asked) == 1


@pytest.mark.parametrize("shared", [False, True])
def test_looking_for_the_lead_and_the_fenced_is_not_quadratic_in_claims(shared: bool) -> None:
    """Two hundred members that join made 40,000 comparisons with each claim, or commit."""
    members, calls = 200, 0
    parts = (
        [ALL_HASHES] * members if shared else [KeyRanges([part]) for part in split(WHOLE, members)]
    )
    claims = [Claim(T0, f"m{i:03}", parts[i], shared=shared) for i in range(members)]
    log = said(*reversed(claims))
    log.blocks = {(f"m{i % members:03}", WHOLE, i): (1, 2) for i in range(10 * members)}

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        lead = log.lead
        keys_to_delete(T0, log, "m000", ALL_HASHES, Progress.at(0))
    finally:
        sys.setprofile(None)
    assert lead == "m000"
    assert calls < 500 * members


@pytest.mark.parametrize(("ahead", "gone"), [(0, {"old"}), (600, {"old"}), (200_000, {"old"})])
def test_a_clock_that_is_ahead_forgets_nobody_who_lives(ahead: int, gone: set[str]) -> None:
    log, now, day = GroupLog("g"), 1_000_000, 86_400
    for position, (name, seen) in enumerate({"old": now - 2 * day, "b": now, "me": now}.items()):
        member = Member(name, "host", 1000 * seen + 10**9)
        log.apply(position, key_of(member), member)
    asked = 1000 * (now + ahead) + 10**9
    assert members_forgotten(log, "me", asked, 1000 * day) == gone
    behind = 1000 * (now - 600) + 10**9
    assert members_forgotten(log, "me", behind, 1000 * day) == gone
    assert members_forgotten(log, "b", asked, 1000 * day) == gone
