"""What a session waits for is said by its state, with the reason and what ends it."""

import pytest

from kshare.core.hashing import ALL_HASHES, WHOLE, KeyRanges, split
from kshare.core.waits import Wait
from kshare.group.core.ownership import Ownership
from kshare.group.core.ownerships import Ownerships
from kshare.group.core.right import Right
from kshare.group.core.waiting import (
    Waits,
    commit_waits,
    lease_waits,
    member_waits,
    right_waits,
    start_waits,
    unclaimed_waits,
)
from kshare.group.protocol.commit_log.records import Claim
from kshare.group.protocol.membership.requests import Code, Heartbeat
from kshare.group.protocol.owners.actions import (
    Append,
    Fence,
    FetchPrimary,
    ResolveInitial,
    WritePrimary,
)
from kshare.group.protocol.owners.owner import Phase
from tests.group.core.test_member import new_member, requests, stable
from tests.group.core.test_ownerships import claim_written, ownerships, run, write
from tests.support.groups import T0, T1, UPPER

QUARTERS = split(WHOLE, 4)


def only(waits: Waits) -> Wait:
    (wait,) = waits.values()
    return wait


def test_hashes_that_nobody_claims_are_named() -> None:
    owned = ownerships()
    owned.claim({T0: KeyRanges([QUARTERS[0]])})
    assert not unclaimed_waits(owned, {"m"})  # its own delivery has not begun
    run(owned)
    write(owned, Claim(T0, "other#1", KeyRanges([QUARTERS[1]])))
    write(owned, Claim(T0, "dead#1", KeyRanges([QUARTERS[2]])))
    wait = only(unclaimed_waits(owned, {"m", "other"}))
    assert wait.name == "orders-0"
    assert f"no living member has claimed key hashes {UPPER}: their records wait" in wait.state
    fewer = only(unclaimed_waits(owned, {"m", "other", "dead"}))
    assert str(QUARTERS[3]) in fewer.state
    assert fewer != wait  # another state, which is said again
    write(owned, Claim(T0, "dead#2", KeyRanges([QUARTERS[3]])))
    assert not unclaimed_waits(owned, {"m", "other", "dead"})


def test_a_claim_that_is_not_read_back_waits_for_the_log() -> None:
    owned = ownerships()
    owned.claim({T0: KeyRanges([UPPER])})
    wait = only(start_waits(owned, "cannot write to log: no leader"))
    assert wait == Wait(
        "no record is delivered yet, as its claim is not in the log yet",
        "it is read back from the group's log",
    )
    assert (wait.name, wait.detail) == ("orders-0", "cannot write to log: no leader")
    owned.by_partition[T0].retries.why = "its broker is gone"
    assert only(start_waits(owned, "something else")).detail == "its broker is gone"


def test_who_waits_for_former_owners_names_them() -> None:
    owned = ownerships()
    write(owned, Claim(T0, "old#3", KeyRanges([UPPER])))
    write(owned, Claim(T0, "older#1", KeyRanges([UPPER])))
    write(owned, Claim(T0, "elsewhere#1", KeyRanges([WHOLE]) - KeyRanges([UPPER])))
    owned.claim({T0: KeyRanges([UPPER])})
    claim_written(owned)
    list(owned.advance(0.0))
    wait = only(start_waits(owned, ""))
    assert wait.state == "no record is delivered yet, as former owners may still deliver"
    assert wait.detail == "old, older"
    assert "claim.timeout.ms" in wait.until


@pytest.mark.parametrize(
    ("pending", "said"),
    [
        ((Fence(frozenset({"tx-b", "tx-a"})),), "transactions of tx-a, tx-b are to end"),
        ((FetchPrimary(),), "the group's offsets are asked for"),
        ((ResolveInitial(),), "the offsets for auto.offset.reset are asked for"),
        ((WritePrimary(7, None),), "stable offset 7 is committed"),
        ((), "no answer"),
    ],
)
def test_what_is_asked_for_amid_a_start_is_said(pending: tuple[object, ...], said: str) -> None:
    owned = ownerships()
    owned.claim({T0: KeyRanges([UPPER])})
    claim_written(owned)
    owner = owned.by_partition[T0].owner
    owner.phase, owner._pending = Phase.STARTING, pending  # type: ignore[assignment]
    assert only(start_waits(owned, "no answer")).detail == said


def test_partitions_that_are_delivered_wait_for_commits_alone() -> None:
    owned = ownerships()
    owned.claim({T0: KeyRanges([UPPER])})
    run(owned)
    assert not start_waits(owned, "")
    assert not commit_waits(owned)
    owned.claim({T0: KeyRanges([UPPER]), T1: KeyRanges([UPPER])})
    assert list(start_waits(owned, "")) == [("start", T1)]
    each: Ownership = owned.by_partition[T0]
    number = each.commits.ask()
    each.retries.why = "the log's broker does not answer"
    (key,) = before = commit_waits(owned)
    assert (before[key].name, before[key].detail) == ("orders-0", each.retries.why)
    each.commits.finished = number
    assert not commit_waits(owned)
    each.commits.ask()
    assert key not in commit_waits(owned)  # another commit is another wait


def test_a_lease_that_is_not_read_back_is_waited_for() -> None:
    owned = Ownerships("m", "g", 1.0, lease_records=10)
    owned.claim({T0: ALL_HASHES})
    run(owned)
    assert not lease_waits(owned)
    (owner,) = (each.owner for each in owned.by_partition.values())
    owner.want(0, 100)
    ((_, (action,)),) = owned.advance(20.0)
    assert isinstance(action, Append)
    wait = only(lease_waits(owned))
    assert "a lease of more records is not in the log yet" in wait.state
    assert (wait.name, wait.detail) == (str(T0), "lease 1 of m#1")
    owner.appended(action.key, owned.log.end)
    owned.log.end += 1  # it was deleted before this member has read it
    assert list(owned.advance(21.0)) == []
    assert not lease_waits(owned)


def test_a_fenced_owner_waits_for_nothing() -> None:
    owned = ownerships()
    owned.claim({T0: KeyRanges([UPPER])})
    owned.by_partition[T0].owner.phase = Phase.FENCED
    assert not start_waits(owned, "")


def test_a_member_waits_by_its_state_with_the_last_trouble() -> None:
    member = new_member()
    assert "is no member" in only(member_waits(member)).state
    requests(member, 0.0)
    assert only(member_waits(member)).state == "it waits for the other members to join"
    member.refused(None, 1.0, name="UNKNOWN_SERVER_ERROR")
    assert only(member_waits(member)).detail == "JoinGroup was refused: UNKNOWN_SERVER_ERROR"


def test_a_member_that_is_stable_waits_only_for_a_silent_coordinator() -> None:
    member = stable()
    assert not member_waits(member)
    member.failed(5.0, "connection refused")
    wait = only(member_waits(member))
    assert wait.state == "the group's coordinator does not answer"
    assert wait.detail == "the coordinator: connection refused"
    beat = Heartbeat("id-1", 1, 20.0, True)
    member.heartbeat_answered(beat, None, 20.0, is_refused=False)
    assert not member_waits(member)
    member.leave()
    assert not member_waits(member)


def test_a_member_that_was_refused_and_has_joined_waits_no_more() -> None:
    member = stable()
    member.refused(Code.COORDINATOR_NOT_AVAILABLE, 1.0, name="COORDINATOR_NOT_AVAILABLE")
    assert only(member_waits(member)).detail
    member.schedule.works()
    assert not member.schedule.trouble


def test_nothing_is_handed_out_while_the_log_is_not_read() -> None:
    right = Right("m", 45.0, by_beats=False)
    right.log_read(100.0)
    assert not right_waits(right, {T0}, "", 120.0)
    assert not right_waits(right, set(), "", 200.0)
    wait = only(right_waits(right, {T0}, "broker 1 is down", 200.0))
    assert wait.state.startswith("nothing is handed out, as others may have its key hashes")
    assert wait.state.endswith("the group's log was not read")
    assert wait.detail == "broker 1 is down"
    right.log_read(200.0)  # an answer after so long may be of a broker that was frozen
    right.beats.lapsed(200.0)
    unproven = only(right_waits(right, {T0}, "", 200.0))
    assert unproven.state.endswith("may not be the present one")


def test_nothing_is_handed_out_while_the_coordinator_is_silent() -> None:
    right, member = Right("m", 45.0, by_beats=False), stable()
    right.joined(member.liveness, is_static=False)
    right.log_read(100.0)
    wait = only(right_waits(right, {T0}, "", 100.0))
    assert wait.state.endswith("the group's coordinator does not answer")
