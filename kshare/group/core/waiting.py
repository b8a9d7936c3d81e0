"""The waits of a session, by its state: what lasts is said (:mod:`kshare.core.waits`).

::

    the log is found, made, read --> membership --> claims --> starts, fences, anchors --> commits

Cost: linear in the partitions, at each look.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping
from typing import Final, TypeAlias

from kshare.core.listing import join_names
from kshare.core.waits import Wait
from kshare.group.core.member import GroupMember
from kshare.group.core.ownerships import Ownerships
from kshare.group.core.right import Right
from kshare.group.protocol.commit_log.log import PartitionLog
from kshare.group.protocol.membership.membership_state import State
from kshare.group.protocol.owners.actions import Fence, FetchPrimary, ResolveInitial, WritePrimary
from kshare.group.protocol.owners.owner import Owner, Phase
from kshare.group.protocol.owners.takeover import session_of

__all__ = [
    "Waits",
    "commit_waits",
    "lease_waits",
    "member_waits",
    "right_waits",
    "start_waits",
    "unclaimed_waits",
]

Waits: TypeAlias = Mapping[Hashable, Wait]
_PHASES: Final = {
    Phase.CLAIMING: "it is read back from the group's log",
    Phase.WAITING: "they give up their claims, or claim.timeout.ms is over",
    Phase.STARTING: "the group's coordinator and the partition's leader answer",
    Phase.ANCHORING: "the group's coordinator takes it",
}
_STATES: Final = {
    State.UNJOINED: "the group's coordinator lets it join",
    State.JOINING: "they have joined, or their max.poll.interval.ms is over",
    State.SYNCING: "the leader has planned, and its epoch is in the group's log",
    State.STABLE: "it answers, or another one is found",
}


def member_waits(member: GroupMember) -> Waits:
    """The waits of a member that has subscribed.

    Args:
        member: The member.
    """
    state, trouble = member.membership.state, member.schedule.trouble
    if state is State.ENDED or (state is State.STABLE and not trouble):
        return {}
    what = "the group's coordinator does not answer" if state is State.STABLE else state.value
    return {"member": Wait(what, _STATES[state], detail=trouble)}


def start_waits(ownerships: Ownerships, trouble: str) -> Waits:
    """The waits of partitions whose delivery has not begun.

    Args:
        ownerships: What the session owns.
        trouble: What went wrong last; empty if nothing did.
    """
    found: dict[Hashable, Wait] = {}
    for tp, each in ownerships.by_partition.items():
        phase = each.owner.phase
        if each.start is None and phase in _PHASES:
            detail = each.retries.why or _detail(each.owner, ownerships.log.of(tp)) or trouble
            what = f"no record is delivered yet, as {phase.value}"
            found["start", tp] = Wait(what, _PHASES[phase], str(tp), detail)
    return found


def commit_waits(ownerships: Ownerships) -> Waits:
    """The commits that are under way; with each that ends, a wait is over."""
    return {
        ("commit", tp, each.commits.finished): Wait(
            "a commit is not done",
            "it is read back from the group's log, and the coordinator has the stable offset",
            str(tp),
            each.retries.why,
        )
        for tp, each in ownerships.by_partition.items()
        if each.start is not None and each.commits.are_due
    }


def lease_waits(ownerships: Ownerships) -> Waits:
    """The leases that were written and are not read back; with each one, a wait is over."""
    return {
        ("lease", owner.partition, owner.asked): Wait(
            "a lease of more records is not in the log yet",
            "it is read back from the group's log",
            str(owner.partition),
            f"lease {owner.asked} of {owner.claim_name}",
        )
        for owner in (each.owner for each in ownerships.by_partition.values())
        if owner.asked is not None
    }


def unclaimed_waits(ownerships: Ownerships, living: Collection[str]) -> Waits:
    """Key hashes that no living member has claimed, of partitions that are delivered.

    Args:
        ownerships: What the session owns.
        living: Ids of sessions that have given a sign of life lately.
    """
    found: dict[Hashable, Wait] = {}
    for tp, each in ownerships.by_partition.items():
        if each.start is None:
            continue
        log = ownerships.log.of(tp)
        if free := log.unclaimed_by(lambda name: session_of(name) in living):
            what = (
                f"no living member has claimed key hashes {', '.join(map(str, free))}: their "
                "records wait, and the stable offset does not pass them"
            )
            found["unclaimed", tp] = Wait(what, "a member claims them", str(tp))
    return found


def right_waits(
    right: Right,
    started: Collection[object],
    trouble: str,
    now: float,
    throttle: Wait | None = None,
) -> Waits:
    """The wait of a session that may not hand out what it has.

    Args:
        right: Its right to deliver.
        started: The partitions whose delivery has begun.
        trouble: What went wrong last; empty if nothing did.
        now: The time.
        throttle: The wait of a log whose leader throttles who reads it; None if it does not.
    """
    if not started or right.seconds_to_deliver(now) >= 0:
        return {}
    if right.reads_late(now):
        why = "the group's log was not read"
        until = "its leader answers" if throttle is None else throttle.until
    elif right.is_proven and right.coordinator is not None:
        why, until = "the group's coordinator does not answer", "it does"
    else:
        why, until = "the group's log may not be the present one", "a beat is read back from it"
    what = f"nothing is handed out, as others may have its key hashes: {why}"
    return {"right": Wait(what, until, detail=trouble)}


def _detail(owner: Owner, log: PartitionLog) -> str:
    if owner.phase is Phase.WAITING:
        return join_names(sorted(set(_others(owner, log))))
    match owner.pending:
        case (Fence(ids), *_):
            return f"transactions of {join_names(sorted(ids))} are to end"
        case (FetchPrimary(), *_):
            return "the group's offsets are asked for"
        case (ResolveInitial(), *_):
            return "the offsets for auto.offset.reset are asked for"
        case (WritePrimary(offset), *_):
            return f"stable offset {offset} is committed"
    return ""


def _others(owner: Owner, log: PartitionLog) -> Iterator[str]:
    """The sessions that have claimed some of its hashes, too."""
    own = session_of(owner.claim_name)
    for name, placed in log.claims.items():
        if session_of(name) != own and not owner.hashes.isdisjoint(placed.claim.hashes):
            yield session_of(name)
