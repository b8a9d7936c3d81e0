"""What a session owns: claims as they are given, and commits that are asked for."""

import pytest

from kshare.core.hashing import ALL_HASHES, WHOLE, HashRange, KeyRanges, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle
from kshare.errors import AuthorizationError
from kshare.group.core.ownership import Ownership
from kshare.group.core.ownerships import Ownerships
from kshare.group.core.work import LateWork
from kshare.group.delivery_start import DeliveryStart
from kshare.group.protocol.commit_log.records import (
    Claim,
    Epoch,
    EpochMember,
    Key,
    Reset,
    Stable,
    key_of,
)
from kshare.group.protocol.commit_log.start import Anchor, Primary
from kshare.group.protocol.owners.actions import Delete, FetchPrimary, Write, WritePrimary
from kshare.group.protocol.owners.owner import Phase
from tests.support.groups import LOWER, T0, T1, UPPER

QUARTERS = split(WHOLE, 4)


def ownerships() -> Ownerships:
    return Ownerships("m", "g", 1.0)


def write(owned: Ownerships, claim: Claim) -> None:
    owned.log.apply(owned.log.end, key_of(claim), claim)


def claim_written(owned: Ownerships, now: float = 0.0) -> Claim:
    """Let the only ownership write its claim; the claim."""
    ((_, (action,)),) = owned.advance(now)
    assert isinstance(action, Write)
    (claim,) = action.records
    assert isinstance(claim, Claim)
    write(owned, claim)
    return claim


def test_each_claim_has_a_name_of_its_own() -> None:
    owned = ownerships()
    owned.claim({T0: KeyRanges([LOWER]), T1: ALL_HASHES})
    first = owned.by_partition[T0].owner.claim_name
    owned.claim({T0: ALL_HASHES, T1: ALL_HASHES})
    assert owned.by_partition[T0].owner.claim_name != first
    assert owned.by_partition[T1].owner.claim_name == first
    assert owned.give_up() == [Key(0, "claim", T0, (first,))]
    assert owned.give_up() == []


def test_it_waits_for_former_owners_as_long_as_the_timeout() -> None:
    owned = ownerships()
    write(owned, Claim(T0, "other#1", KeyRanges([UPPER])))
    owned.claim({T0: ALL_HASHES})
    claim_written(owned)
    assert list(owned.advance(5.0)) == []
    assert owned.by_partition[T0].owner.phase is Phase.WAITING
    assert owned.next_time() == 6.0
    assert list(owned.advance(5.9)) == []
    ((_, actions),) = owned.advance(6.0)
    assert actions == (FetchPrimary(),)


def test_a_failure_is_tried_again_after_a_pause() -> None:
    owned = ownerships()
    owned.claim({T0: ALL_HASHES})
    claim_written(owned)
    ((each, _),) = owned.advance(0.0)
    each.failed(each.action_number - 1, "of old", 0.0)  # late news of earlier actions
    assert list(owned.advance(100.0)) == []
    each.failed(each.action_number, "why", 100.0)
    assert list(owned.advance(100.0)) == []
    assert 100.0 < owned.next_time() < 100.1
    ((_, actions),) = owned.advance(101.0)
    assert actions == (FetchPrimary(),)
    assert owned.next_time() == float("inf")


def run(owned: Ownerships, primary: Primary | None = None) -> list[int]:
    """Let the only ownership start, of a group without offsets if there is no primary one.

    Returns:
        The primary offsets that it writes.
    """
    each, offsets = owned.by_partition[T0], list[int]()
    for now in range(20):  # longer than it waits for others
        for _, actions in list(owned.advance(float(now))):
            for action in actions:
                if isinstance(action, Write):
                    for record in action.records:
                        owned.log.apply(owned.log.end, key_of(record), record)
                elif isinstance(action, FetchPrimary):
                    each.owner.primary_read(primary, owned.log.end)
                elif type(action).__name__ == "ResolveInitial":
                    each.owner.initial_found(0)
                else:
                    offsets += [action.offset] if isinstance(action, WritePrimary) else []
                    each.owner.primary_written()
    return offsets


def test_a_rewind_amid_a_start_asks_again() -> None:
    """A transaction may be aborted while the partition starts, or twice in a row."""
    owned = ownerships()
    owned.claim({T0: ALL_HASHES})
    claim_written(owned)
    each = owned.by_partition[T0]
    numbers = []
    for _ in range(3):
        ((_, (action,)),) = owned.advance(1.0)
        assert isinstance(action, FetchPrimary)
        numbers.append(each.action_number)
        each.rewind()
        each.rewind()
    assert len({*numbers, each.action_number}) == 4  # the answers to earlier ones are not taken
    ((_, (action,)),) = owned.advance(1.0)
    each.owner.primary_read(Primary(7, Anchor(0, 0, "")), 0)
    assert list(owned.advance(1.0)) == []
    assert each.owner.phase is Phase.RUNNING
    assert each.start is not None
    assert each.start.done == Progress.at(7)


def test_a_rewind_while_the_claim_is_written_forgets_no_failure() -> None:
    owned = ownerships()
    owned.claim({T0: ALL_HASHES})
    ((each, (write_it,)),) = owned.advance(0.0)
    number = each.action_number
    each.rewind()
    each.failed(number, "timed out", 0.0)
    ((_, actions),) = owned.advance(100.0)
    assert actions == (write_it,)


def test_after_a_lost_log_it_claims_and_commits_again() -> None:
    owned = ownerships()
    owned.claim({T0: ALL_HASHES})
    run(owned)
    assert owned.next_time() == float("inf")
    owned.lost("new", "log-0, read up to offset 7: it was deleted")
    assert owned.started() == {}
    (said,) = owned.warnings
    assert "log-0, read up to offset 7" in said
    assert "orders-0 at stable offset 0" in said
    claim_written(owned)
    assert list(owned.advance(0.0)) == []  # the claims of others are lost, too: it waits
    assert owned.by_partition[T0].owner.phase is Phase.WAITING


def loses_log(owned: Ownerships) -> None:
    """Run with the whole partition, process two rectangles, and lose the log before a commit."""
    owned.claim({T0: ALL_HASHES})
    run(owned)
    owned.by_partition[T0].processed(
        [Rectangle(OffsetRange(0, 5), LOWER), Rectangle(OffsetRange(0, 7), UPPER)]
    )
    owned.lost("new", "log-0, read up to offset 7: it was deleted")


def run_again(owned: Ownerships) -> Progress:
    """Start from a primary offset with an anchor in the lost log."""
    run(owned, Primary(0, Anchor(1, 1_000, "old")))
    return owned.started()[T0].done


def test_what_is_processed_of_hashes_that_stay_is_known_under_the_next_claim() -> None:
    """The log was lost, and the group rebalances before this member runs again."""
    owned = ownerships()
    loses_log(owned)
    owned.claim({T0: KeyRanges([LOWER])})
    claim_written(owned)
    assert run_again(owned) == Progress.of(0, [Rectangle(OffsetRange(0, 5), LOWER)])
    owned.claim({T0: ALL_HASHES})  # what is committed is in the log; the rest was given up
    claim_written(owned)
    assert run_again(owned) == Progress.of(0, [Rectangle(OffsetRange(0, 5), LOWER)])


def test_what_another_session_has_had_in_between_is_known_no_more() -> None:
    """It may have delivered some of it again, so the last outputs of a key were older ones."""
    owned = ownerships()
    loses_log(owned)
    write(owned, Claim(T0, "other#1", KeyRanges([UPPER])))
    claim_written(owned)
    assert run_again(owned) == Progress.of(0, [Rectangle(OffsetRange(0, 5), LOWER)])


# -- what is read on while a claim is replaced -----------------------------------------------------

FIVE = Rectangle(OffsetRange(0, 5), LOWER)


def replaced(owned: Ownerships, *hashes: HashRange) -> DeliveryStart:
    """Run with the whole partition, then claim some of it; the start of before."""
    owned.claim({T0: ALL_HASHES})
    run(owned)
    since = owned.started()[T0]
    owned.claim({T0: KeyRanges(hashes)})
    return since


def is_done(asked: list[tuple[Ownership, int]]) -> bool:
    ((each, number),) = asked
    return each.commits.finished >= number


@pytest.mark.parametrize("claims", [1, 2])
def test_what_is_read_on_is_committed_once_the_next_claim_is_in_place(claims: int) -> None:
    owned = ownerships()
    since = replaced(owned, LOWER)
    if claims == 2:  # before the first one was in place
        owned.claim({T0: KeyRanges([QUARTERS[0], QUARTERS[2]])})
    asked = owned.ask_commits({T0: [Rectangle(OffsetRange(0, 5), WHOLE)]}, {T0: since})
    assert not is_done(asked)
    run(owned, Primary(0, Anchor(1, 0, "")))
    assert is_done(asked)
    kept = FIVE if claims == 1 else Rectangle(OffsetRange(0, 5), QUARTERS[0])
    assert owned.log.of(T0).progress(0) == Progress.of(0, [kept])  # and nothing that was given up


def test_what_is_read_on_is_committed_if_the_delivery_has_not_begun_anew() -> None:
    owned = ownerships()
    since = replaced(owned, LOWER)
    run(owned, Primary(0, Anchor(1, 0, "")))
    asked = owned.ask_commits({T0: [FIVE]}, {T0: since})
    run(owned)
    assert is_done(asked)
    assert owned.log.of(T0).progress(0) == Progress.of(0, [FIVE])


def test_what_is_read_on_counts_no_more_after_a_rewind() -> None:
    owned = ownerships()
    since = replaced(owned, LOWER)
    run(owned, Primary(0, Anchor(1, 0, "")))
    owned.by_partition[T0].rewind()
    assert owned.ask_commits({T0: [FIVE]}, {T0: since}) == []


def leads_after_another(*, stable: int) -> Ownerships:
    """What a member of the second epoch has claimed; the lead of the first one was killed."""
    owned = ownerships()
    owned.found("id")
    first = Epoch(1, "other", (EpochMember("other", "other", "h"),))
    claim = Claim(T0, "other#1", ALL_HASHES, epoch=1, self_fencing=True)
    second = Epoch(2, "m", (EpochMember("m", "m", "h"),))
    for record in (Reset(T0, 1, 0), first, claim, Stable(T0, 1, stable, author="other#1"), second):
        owned.log.apply(owned.log.end, key_of(record), record)
    owned.claim({T0: ALL_HASHES}, epoch=(owned.log.end - 1, "id"), self_fencing=True)
    return owned


@pytest.mark.parametrize(("stable", "written"), [(100, [100]), (50, [])])
def test_a_primary_offset_that_a_former_lead_has_not_stored_is_written(
    stable: int, written: list[int]
) -> None:
    """Without a commit that anybody has asked for: nothing new may come."""
    owned = leads_after_another(stable=stable)
    assert run(owned, Primary(50, Anchor(1, 2, "id"))) == written


def test_the_first_commit_since_a_start_repeats_the_primary_offset() -> None:
    """One that was under way when delivery ended may not have been stored."""
    owned = leads_after_another(stable=100)
    each, primary = owned.by_partition[T0], Primary(100, Anchor(1, 2, "id"))
    assert run(owned, primary) == []
    for _ in range(2):
        for written in ([100], []):
            each.commits.ask()
            assert run(owned, primary) == written
        each.rewind()
        assert run(owned, primary) == []


def reset_by_another(owned: Ownerships, offset: int) -> None:
    """A reset by another member is read."""
    incarnation = owned.log.of(T0).incarnation + 1
    reset = Reset(T0, incarnation, offset, "other#1")
    owned.log.apply(owned.log.end, key_of(reset), reset)


def test_a_reset_counts_from_when_it_is_read() -> None:
    """Callers may come before the owner looks."""
    owned = ownerships()
    owned.claim({T0: ALL_HASHES})
    run(owned)
    assert owned.started()
    reset_by_another(owned, 5)
    assert owned.started() == {}
    run(owned, Primary(5, Anchor(2, 0)))
    assert owned.started()[T0].done == Progress.at(5)


def test_who_is_fenced_stays_so_after_a_reset() -> None:
    owned = ownerships()
    owned.claim({T0: ALL_HASHES})
    run(owned)
    write(owned, Claim(T0, "other#1", ALL_HASHES))
    reset_by_another(owned, 5)
    for _, actions in owned.advance(20.0):
        assert [type(action) for action in actions] == [Delete]
    assert owned.fenced()


def test_what_is_read_on_counts_no_more_after_a_reset() -> None:
    owned = ownerships()
    since = replaced(owned, WHOLE)
    owned.ask_commits({T0: [FIVE]}, {T0: since})
    run(owned)
    owned.claim({T0: KeyRanges([LOWER])})
    owned.ask_commits({T0: [Rectangle(OffsetRange(0, 9), LOWER)]}, {T0: since})
    run(owned, Primary(2))  # by Kafka's own tool
    assert owned.ask_commits({T0: [FIVE]}, {T0: since}) == []
    assert owned.started()[T0].done == Progress.at(2)
    assert owned.by_partition[T0].owner.done == Progress.at(2)


@pytest.mark.parametrize("is_in_place", [False, True])
def test_what_is_read_on_counts_no_more_once_all_is_claimed_anew(is_in_place: bool) -> None:
    """So that it comes again: a delivery asks before it goes on with the next claim."""
    owned = ownerships()
    since = replaced(owned, LOWER)
    assert owned.may_count(T0, since)
    if is_in_place:
        run(owned, Primary(0, Anchor(1, 0, "")))
        assert owned.may_count(T0, since)
    owned.look_anew()
    assert not owned.may_count(T0, since)
    run(owned, Primary(0, Anchor(1, 0, "")))
    assert not owned.may_count(T0, since)


def test_what_is_read_on_is_refused_once_another_has_claimed_it() -> None:
    owned = ownerships()
    since = replaced(owned, LOWER)
    claim_written(owned)
    write(owned, Claim(T0, "other#1", ALL_HASHES))
    list(owned.advance(0.0))
    ((each, _),) = owned.ask_commits({T0: [FIVE]}, {T0: since})
    assert each.owner.phase is Phase.FENCED
    owned.claim({T0: KeyRanges([LOWER])})
    assert owned.ask_commits({T0: [FIVE]}, {T0: since}) == []


def test_a_lease_of_a_partition_that_is_given_up_is_not_waited_for() -> None:
    owned = Ownerships("m", "g", 1.0, lease_records=5, lease_timeout=45.0)
    owned.claim({T0: ALL_HASHES, T1: ALL_HASHES})
    assert not owned._leases.is_over(T1, "m#1", {0: (0, 5)}, now=100.0)
    assert owned._leases.next_time() == 145.0
    owned.claim({T0: ALL_HASHES})
    assert owned._leases.next_time() == float("inf")


@pytest.mark.parametrize("lease_records", [None, 5])
def test_a_later_claim_is_seen_in_the_pause_after_a_fault(lease_records: int | None) -> None:
    """The pause may be longer than the claim timeout, after which the other one delivers."""
    owned = Ownerships("m", "g", 0.5, lease_records=lease_records)
    owned.claim({T0: ALL_HASHES})
    run(owned)
    each = owned.by_partition[T0]
    for _ in range(7):  # each pause is longer
        each.failed(each.action_number, "timed out", 100.0)
    assert owned.next_time() > 100.5
    write(owned, Claim(T0, "other#1", ALL_HASHES))
    assert list(owned.advance(100.0)) == []
    assert each.owner.phase is Phase.FENCED
    assert owned.started() == {}
    assert owned.share(T0) is None


def test_who_looks_anew_claims_under_another_name_and_counts_nothing_of_before() -> None:
    owned = ownerships()
    owned.claim({T0: ALL_HASHES})
    run(owned)
    before = owned.by_partition[T0]
    start, name = before.start, before.owner.claim_name
    assert start is not None
    owned.look_anew()
    after = owned.by_partition[T0]
    assert after is not before
    assert before.is_replaced
    assert after.start is None
    assert after.owner.claim_name != name
    assert owned.give_up() == [Key(0, "claim", T0, (name,))]
    assert not after.processed_since(start, Progress.at(5))
    warning = owned.warnings[-1]
    assert f"they may have had key hashes of {name}. It claims them anew" in warning


def test_who_looks_anew_takes_nothing_back_from_who_still_has_it() -> None:
    owned = ownerships()
    owned.claim({T0: ALL_HASHES})
    run(owned)
    each = owned.by_partition[T0]
    write(owned, Claim(T0, "other#1", KeyRanges([UPPER])))
    owned.look_anew()
    assert owned.by_partition[T0] is each
    assert each.owner.phase is Phase.FENCED
    error = owned.fenced()
    assert error is not None
    assert error.other == "other"
    assert not any("claims them anew" in text for text in owned.warnings)


@pytest.mark.parametrize("incarnation", [1, 2])
def test_what_is_late_counts_unless_another_member_has_met_a_reset(incarnation: int) -> None:
    """To this one the group goes on: only the number of the incarnation says it."""
    owned = Ownerships("m", "g", 1.0, lease_records=5)
    owned.claim({T0: ALL_HASHES})
    claim_written(owned)
    run(owned, Primary(0, Anchor(1, 1)))
    start = owned.started()[T0]
    late = LateWork(T0, start, Progress.at(5))
    owned.claim({})
    assert owned.refused({}, {}, [late]) == {T0: (0, 5)}
    assert owned.may_count(T0, start)  # the partition may come back
    owned.claim({T0: ALL_HASHES})
    claim_written(owned, 1.0)
    if incarnation > 1:
        reset = Reset(T0, incarnation, 0)
        owned.log.apply(owned.log.end, key_of(reset), reset)
    assert not owned.refused({}, {}, [late])
    ((each, _),) = owned.ask_commits({}, {}, [late])
    run(owned, Primary(0, Anchor(incarnation, 1)))
    assert each.owner.done == Progress.at(5 if incarnation == 1 else 0)
    assert owned.may_count(T0, start) == (incarnation == 1)
    assert owned.refused({}, {}, [late]) == ({} if incarnation == 1 else {T0: (0, 5)})


def test_what_was_handed_out_of_hashes_that_have_gone_is_refused() -> None:
    owned = ownerships()
    owned.claim({T0: ALL_HASHES})
    claim_written(owned)
    run(owned, Primary(0, Anchor(1, 1)))
    start = owned.started()[T0]
    owned.claim({T0: KeyRanges([LOWER])})
    what = Rectangle(OffsetRange(0, 5), WHOLE)
    assert owned.refused({T0: [what]}, {T0: start}) == {T0: (0, 5)}
    assert not owned.refused({T0: [Rectangle(OffsetRange(0, 5), LOWER)]}, {T0: start})


def test_what_was_in_work_as_the_log_was_denied_counts() -> None:
    """A whole partition goes on with its offset alone: nobody else has had it."""
    owned = ownerships()
    owned.claim({T0: ALL_HASHES})
    claim_written(owned)
    run(owned, Primary(0, Anchor(1, 1)))
    start = owned.started()[T0]
    owned.claim({T0: ALL_HASHES}, self_fencing=True)
    owned.deny(AuthorizationError("not to the log"))
    assert not owned.refused({T0: [FIVE]}, {T0: start})
    assert len(owned.ask_commits({T0: [FIVE]}, {T0: start})) == 1


def test_a_shared_claim_that_is_gone_was_taken_by_nobody_who_shares() -> None:
    """Its member goes on under another name, and no call says that others have its hashes."""
    owned = Ownerships("m", "g", 1.0, lease_records=10)
    owned.claim({T0: ALL_HASHES})
    write(owned, Claim(T0, "other#1", ALL_HASHES, shared=True))
    claim = claim_written(owned)
    assert list(owned.advance(0.0))
    owned.log.apply(owned.log.end, key_of(claim), None)
    list(owned.advance(0.0))
    assert owned.by_partition[T0].owner.claim_name != claim.name
    assert owned.fenced() is None
    write(owned, owned.by_partition[T0].owner.claim)
    write(owned, Claim(T0, "alone#1", ALL_HASHES))  # it excludes those that share
    list(owned.advance(0.0))
    assert owned.by_partition[T0].owner.phase is Phase.FENCED
    assert "alone of group g has claimed key hashes" in str(owned.fenced())


def test_a_claim_that_was_deleted_unread_is_made_anew_and_said() -> None:
    owned = ownerships()
    owned.claim({T0: ALL_HASHES})
    ((each, (action,)),) = owned.advance(0.0)
    assert isinstance(action, Write)
    each.written(each.action_number - 1, 0)  # late news of earlier actions
    owned.log.end = 1
    assert list(owned.advance(0.0)) == []
    each.written(each.action_number, 1)
    assert list(owned.advance(0.0)) == []
    owned.log.end = 2
    claim = claim_written(owned)
    assert claim.name == "m#2"
    (said,) = owned.warnings
    assert "claim m#1 was deleted from the group's log before" in said


def test_what_was_deleted_unread_is_written_again_after_a_pause() -> None:
    owned = ownerships()
    owned.claim({T0: ALL_HASHES})
    run(owned)
    each = owned.by_partition[T0]
    each.processed([Rectangle(OffsetRange(0, 3), WHOLE)])
    each.commits.ask()
    ((_, (action,)),) = owned.advance(30.0)
    assert isinstance(action, Write)
    each.written(each.action_number, owned.log.end)
    owned.log.end += 1
    assert list(owned.advance(30.0)) == []
    assert "deleted from the log before they were read back" in each.retries.why
    assert 30.0 < owned.next_time() < 30.1
    ((_, (again,)),) = owned.advance(31.0)
    assert again == action
