"""The health of a consumer, as probes of Kubernetes and load balancers ask for it."""

from collections.abc import Hashable, Mapping

from kshare.core.progress import TopicPartition
from kshare.core.waits import Wait
from kshare.errors import FencedError, KshareError
from kshare.group.membership.handle import MemberHandle
from kshare.group.metrics import ConsumerHealth
from kshare.group.session.session import GroupSession

__all__ = ["health_of"]


def health_of(
    session: GroupSession,
    member: MemberHandle | None,
    partitions: frozenset[TopicPartition],
    waits: Mapping[Hashable, Wait],
    *,
    is_closed: bool,
) -> ConsumerHealth:
    """Return the health of a consumer.

    Args:
        session: Its session.
        member: Its membership; None if it has not subscribed.
        partitions: The partitions that it owns some of.
        waits: The waits that keep it from reading.
        is_closed: Whether it is closed.
    """
    dead = "it is closed" if is_closed else _fault(session, member)
    if dead:
        return ConsumerHealth(is_alive=False, is_ready=False, reason=dead)
    states = [_waits(session, member, partitions), *(wait.state for wait in waits.values())]
    reason = next(filter(None, states), "")
    return ConsumerHealth(is_alive=True, is_ready=not reason, reason=reason)


def _fault(session: GroupSession, member: MemberHandle | None) -> str:
    """Return why it does not recover by itself."""
    try:
        session.check()
    except FencedError:
        pass  # the next assignment ends it
    except KshareError as error:
        return str(error)
    if member is None:
        return ""
    if member.fault is not None:
        return str(member.fault)
    if member.seconds_since_poll > member.poll_interval:
        return f"nobody has polled for {member.poll_interval:g} s (max.poll.interval.ms)"
    return ""


def _waits(
    session: GroupSession, member: MemberHandle | None, partitions: frozenset[TopicPartition]
) -> str:
    """Return what it waits for."""
    if member is None and not partitions:
        return "it has not subscribed, and is assigned nothing"
    if member is not None and not member.is_member:
        return "it joins its group"
    if session.seconds_to_deliver() < 0:
        return "the group's log or coordinator was not reached in time"
    waiting = sorted(partitions - session.started().keys())
    if waiting:
        return f"it waits for former owners of key hashes: {', '.join(map(str, waiting))}"
    return ""
