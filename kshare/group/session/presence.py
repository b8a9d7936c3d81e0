"""Beats in the commit log: send ours, say what is waited for, delete members long gone."""

import logging
import socket
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Final

from kshare.core.waits import Wait
from kshare.errors import ForeignMemberError, KafkaError
from kshare.group.config.shared_settings import shared_settings
from kshare.group.config.table import ConsumerConfig
from kshare.group.core.ownership import Retries
from kshare.group.core.right import Right
from kshare.group.core.waiting import (
    commit_waits,
    lease_waits,
    right_waits,
    start_waits,
    unclaimed_waits,
)
from kshare.group.log.log_link import LogLink
from kshare.group.protocol.commit_log.log import GroupLog, members_forgotten, members_seen
from kshare.group.protocol.commit_log.record_codec import LIFE_SECONDS, encode
from kshare.group.protocol.commit_log.records import READS, Key, Member
from kshare.group.protocol.commit_log.shared_settings import difference
from kshare.group.session.broker_actions import BrokerActions
from kshare.group.session.shared import Shared
from kshare.kafka.protocol.error_codes import Kind
from kshare.kafka.protocol.retry import retry_backoff
from kshare.kafka.protocol.wait_log import WaitLog

__all__ = ["Presence", "beat_key"]

_log = logging.getLogger("kshare.group")

_BEAT_SECONDS: Final = 10.0
_FORGOTTEN_MS: Final = 86_400_000
_LOOK_SECONDS: Final = 1.0


def beat_key(session_id: str) -> Key:
    """The key of the beats of a session."""
    return Key(0, "member", None, (session_id,))


class Presence:
    """Beats of a session, and what is seen of others. For the session's thread.

    Args:
        config: The consumer's configuration.
        session_id: Id of the session.
        shared: What the session owns.
        actions: Writes to the log.
        now: The session's source of time.

    Attributes:
        session_id: Id of the session.
        right: The right of the member to deliver.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        session_id: str,
        shared: Shared,
        actions: BrokerActions,
        now: Callable[[], float],
    ) -> None:
        seconds = config.claim_timeout_ms / 1000
        self.session_id = session_id
        self.right = Right(session_id, seconds, by_beats=config.lease_records is not None)
        self._config = config
        self._shared = shared
        self._actions = actions
        self._now = now
        self._waits = WaitLog(_log, f"group {config.group}, member {session_id}", clock=now)
        self._settings = shared_settings(config)
        self._has_compared = False
        self._beat_at = self._look_at = 0.0
        self._retries = Retries(backoff=retry_backoff(config.kafka))

    @property
    def next_time(self) -> float:
        """When something is to be done next, once the log is followed."""
        beat_at = 0.0 if self.right.beats.wants_proof else self._beat_at
        return min(max(beat_at, self._retries.at), self._look_at)

    def may_act(self, link: LogLink) -> bool:
        """True if something may be claimed: not before settings were compared.

        Else a member that is refused would have fenced those that are right.
        """
        return self._has_compared or link.denied is not None or self._shared.member is not None

    def beat(self, link: LogLink) -> None:
        """Say that this member is alive, if it is time to, or the log's present is in doubt."""
        if link.denied is not None:
            self.right.beats.excuse()
            self._beat_at = float("inf")
            return
        beats = self.right.beats
        now, wall_ms = self._now(), int(time.time() * 1000)
        beats.lapsed(self.right.lapsed_at)
        if now >= self._retries.at and (now >= self._beat_at or beats.wants_proof):
            self._beat_at = now + (beats.pause if beats.is_on else _BEAT_SECONDS)
            beats.sent(wall_ms, now)
            host = self._config.application_server or socket.gethostname()
            alive = Member(self.session_id, host, wall_ms, READS, self._settings)
            failed = partial(self._not_alive, link, wall_ms)
            link.writer.append(link.partition, *encode(self._config.group, alive), failed)

    def look(self, link: LogLink | None) -> None:
        """See now and then what is waited for, and forget members that are long gone."""
        now, wall_ms = self._now(), int(time.time() * 1000)
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_SECONDS
        with self._shared.changed:
            log = self._shared.ownerships.log
            waits = self._waiting(link, now, wall_ms)
            old = members_forgotten(log, self.session_id, wall_ms, _FORGOTTEN_MS)
        self._waits.look(waits)
        if link is not None and link.tail.last.caught_up:
            for session_id in old:
                self._actions.delete(link, beat_key(session_id))

    def _waiting(self, link: LogLink | None, now: float, wall_ms: int) -> dict[Hashable, Wait]:
        """The waits of the session. The lock is held."""
        member, trouble = self._shared.member, self._shared.trouble
        ownerships = self._shared.ownerships
        waits: dict[Hashable, Wait] = {} if member is None else {**member.waits()}
        throttle = None if link is None else link.tail.throttle.wait
        if throttle is not None:
            waits["throttle"] = throttle
            trouble = f"{throttle.state}, {throttle.detail}"
        waits |= right_waits(self.right, ownerships.started(), trouble, now, throttle)
        if link is None or link.truncated:
            what = f"the group's log, topic {self._config.log_topic}, is neither found nor made"
            return waits | {"log": Wait(what, "it can be found or made", detail=trouble)}
        last = link.tail.last
        if not (last.is_relied_upon or link.denied):
            what = f"the group's log, {link.partition}, is not read to its end"
            where = f"read up to offset {link.tail.position} of {last.bounds[1]}"
            detail = f"{where}; {trouble}" if trouble else where
            return waits | {"log": Wait(what, "its leader hands out all of it", detail=detail)}
        living = {*members_seen(ownerships.log, wall_ms - int(LIFE_SECONDS * 1000))}
        living |= {self.session_id}
        waits |= start_waits(ownerships, trouble)
        waits |= commit_waits(ownerships)
        waits |= lease_waits(ownerships)
        return {**waits, **(unclaimed_waits(ownerships, living) if last.caught_up else {})}

    def look_at_signs(self, link: LogLink) -> None:
        """Take the own beat that was read back; see which members with leases are dead.

        And whether this one counts as such, before a beat that comes late is taken for one.
        """
        now, beats = self._now(), self.right.beats
        with self._shared.changed:
            member, ownerships = self._shared.member, self._shared.ownerships
            if beats.take_lapse(now):
                ownerships.renew("the log was not reached for claim.timeout.ms")
            if beats.read(ownerships.log):
                self._retries.backoff.reset()
            self._compare(ownerships.log)
            last = link.tail.last
            if last.caught_up and self.right.has_missed(last.read_at, has_holes=last.has_holes):
                ownerships.look_anew()  # before owners act upon what was read
            if self._config.lease_records is None:
                return
            ownerships.enter_epoch(None if member is None else member.epoch)
            if link.tail.last.caught_up and beats.seconds_to_deliver(now) > 2 * beats.pause:
                read_at = link.tail.last.read_at
                ownerships.expire(
                    beats.silent(ownerships.log, ownerships.sharers(), now=now, read_at=read_at)
                )

    def _compare(self, log: GroupLog) -> None:
        """Refuse to go on beside members of other settings that live already.

        Once, with the first own beat; before, nothing is claimed. Of two that start at the same
        moment, both may be refused. Where a coordinator has members, their leader compares.

        Raises:
            ForeignMemberError: The settings of another member differ.
        """
        if self._has_compared or self.session_id not in log.members:
            return
        self._has_compared = True
        if self._shared.member is not None:
            return
        since_ms = int((time.time() - LIFE_SECONDS) * 1000)
        for name, beat in sorted(members_seen(log, since_ms).items()):
            if differs := difference(self._settings, beat.settings):
                raise ForeignMemberError(
                    f"group {log.group}: member {name} on {beat.host} has other settings: "
                    f"{differs}; give all members of a group the same, or stop that one first. One "
                    f"that was killed counts as alive for {LIFE_SECONDS:g} s"
                )

    def _not_alive(self, link: LogLink, wall_ms: int, error: KafkaError, kind: Kind) -> None:
        link.not_taken(error, kind)
        self._actions.note(error)
        self.right.beats.not_taken(wall_ms)
        self._beat_at = 0.0  # again, after a pause: brokers may refuse it at once, and for long
        self._retries.failed(str(error), self._now())
