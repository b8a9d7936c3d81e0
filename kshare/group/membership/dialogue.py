"""What a member of a group says to its coordinator, and what it makes of the answers.

::

    speak    nobody polls: leave --> heartbeat --> JoinGroup, SyncGroup, or a plan --> commits
    hear     JoinGroup or SyncGroup is answered: tell the core, and the leader's part
    failed   no answer, or none of use: find the coordinator again, after a pause
"""

import logging
from collections.abc import Callable, Iterable
from threading import RLock
from typing import Any, Final

from kshare.errors import KafkaError, KshareError
from kshare.group.config.table import ConsumerConfig
from kshare.group.membership.commits import MemberCommits
from kshare.group.membership.leader import GroupLeader
from kshare.group.membership.link import MemberLink
from kshare.group.membership.schedule import MemberSchedule
from kshare.group.protocol.group_errors import Code
from kshare.group.protocol.liveness import Liveness
from kshare.group.protocol.membership import Join, Leave, Membership, Plan, State, Sync
from kshare.wire.protocol import error_codes
from kshare.wire.protocol.error_codes import ErrorCode

__all__ = ["MemberDialogue"]

_log = logging.getLogger("kshare.group")

_CODES: Final = {code.value: code for code in Code}
_TOO_LARGE: Final = {ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.MESSAGE_TOO_LARGE}
"""What brokers answer to SyncGroup if the record is larger than they take: mostly the first."""
_RECORD_BYTES: Final = 800_000
"""Brokers take 1 MB, unless configured otherwise; what they add is not counted."""


class MemberDialogue:
    """The dialogue of one member with its coordinator. For the member's thread.

    Args:
        config: The consumer's configuration.
        core: The membership.
        lock: Guards it.
        liveness: Until when records may be handed out.
        leader: Does the leader's part.
        on_change: Called when what the member owns may be lost. It must not block.
        now: Source of time; suspension counts.

    Attributes:
        commits: Primary offsets that are to be committed.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        core: Membership,
        lock: RLock,
        liveness: Liveness,
        leader: GroupLeader,
        on_change: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        self.commits = MemberCommits(config.group, core, lock)
        self._config = config
        self._core = core
        self._lock = lock
        self._liveness = liveness
        self._leader = leader
        self._on_change = on_change
        self._now = now
        self._link = MemberLink(config)
        self._schedule = MemberSchedule.of(config)

    @property
    def fileno(self) -> int | None:
        """What becomes readable when there is something to hear; None if nothing was asked."""
        return self._link.fileno

    @property
    def seconds_left(self) -> float:
        """Seconds until there is something to say."""
        now, schedule = self._now(), self._schedule
        if self.commits.are_waiting and now >= schedule.retry_at:
            return 0.0
        return max(schedule.beat_at - now, schedule.retry_at - now, 0.0)

    def pause(self) -> None:
        """Something has failed: ask nothing for a while."""
        self._schedule.pause(self._now())

    def speak(self) -> None:
        """Say what is due.

        Raises:
            OSError, KafkaError: Tell :meth:`failed`.
        """
        if self._now() >= self._schedule.retry_at:
            self._watch_polls()
            self._watch_answer()
            self._beat()  # before all else: it says whether to join again
            self._act()
            self.commits.serve(self._link)

    def hear(self) -> None:
        """Take the answer to JoinGroup or SyncGroup."""
        answer = self._link.receive()
        self._schedule.answered()
        if answer.error_code:
            self._refused(answer)
            return
        assigned = self._link.assignments() if _is_assigned(answer) else []
        with self._lock:
            if self._core.state is State.JOINING:
                members = {each.member_id: bytes(each.metadata) for each in answer.members}
                self._core.joined(
                    answer.member_id,
                    answer.generation_id,
                    answer.leader,
                    members,
                    protocol=answer.protocol_name,
                    instances=_instances(answer.members),
                    is_assigned=_is_assigned(answer),
                )
                self._schedule.joined()
                _log.info(
                    "group %s: joined generation %d as %s%s",
                    self._config.group,
                    answer.generation_id,
                    answer.member_id,
                    ", which leads it" if answer.leader == answer.member_id else "",
                )
                if answer.leader != answer.member_id:
                    self._leader.follows()
                elif _is_assigned(answer):
                    self._leader.lead_on(
                        answer.generation_id, members, answer.protocol_name, assigned
                    )
            elif self._core.state is State.SYNCING:
                self._core.synced(bytes(answer.assignment))
                if self._core.is_eager:
                    self._leader.sharing.assigned(self._core.shares)
                self._schedule.synced(self._now(), awaits_round=self._core.awaits_round)
            else:
                return
            self._liveness.heard(self._schedule.asked_at, is_stable=True)

    def failed(self, error: Exception) -> None:
        """The coordinator did not answer, or not as it should: find it again, after a pause."""
        self._say(f"the coordinator: {error}")
        self._link.forget()
        with self._lock:
            self._core.disconnected()
        self.pause()

    def leave(self) -> None:
        """Say goodbye."""
        with self._lock:
            self._core.leave()
            action = self._core.action()
        if isinstance(action, Leave):
            try:
                self._link.leave(action.member_id)
            except (OSError, KafkaError) as error:
                _log.info("group %s: cannot leave: %s", self._config.group, error)

    def close(self) -> None:
        """Commit nothing more, and close the connections."""
        self.commits.refuse(KafkaError(f"group {self._config.group}: left"))
        self._leader.close()
        self._link.close()

    # -- joining -----------------------------------------------------------------------------

    def _act(self) -> None:
        """Do what the core wants."""
        while True:
            with self._lock:
                action = self._core.action()
            match action:
                case None:
                    return
                case Join():
                    self._schedule.asked_at = self._now()
                    self._link.join(action)
                case Sync():
                    self._schedule.asked_at = self._now()
                    self._link.sync(action)
                case Plan():
                    self._leader.plan(action)
                case Leave(member_id):
                    self._link.hang_up()
                    self._link.leave(member_id)

    def _refused(self, answer: Any) -> None:
        """JoinGroup or SyncGroup was refused."""
        code = _CODES.get(answer.error_code)
        # An unknown answer to SyncGroup: what is wrong with the member is said when it joins again.
        is_joining = self._core.state is State.JOINING
        if code is None and is_joining and error_codes.is_permanent(answer.error_code):
            name = error_codes.name(answer.error_code)
            raise KshareError(f"cannot join group {self._config.group}: {name}")
        with self._lock:
            if self._is_too_large(answer.error_code):
                self._core.end(self._too_large())
            else:
                self._core.refused(code, getattr(answer, "member_id", ""))
            self._hear_of_loss()
        if code in {Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE}:
            self._link.forget()
        if code not in {Code.MEMBER_ID_REQUIRED, Code.REBALANCE_IN_PROGRESS}:
            what = "JoinGroup" if is_joining else "SyncGroup"
            self._say(f"{what} was refused: {error_codes.name(answer.error_code)}")
            self.pause()

    def _is_too_large(self, number: int) -> bool:
        """True if the coordinator cannot keep what this member has planned as the leader."""
        is_size = number in _TOO_LARGE
        is_syncing = self._core.state is State.SYNCING
        return is_syncing and is_size and self._core.metadata_bytes >= _RECORD_BYTES

    def _too_large(self) -> KafkaError:
        return KafkaError(
            f"group {self._config.group}: the coordinator does not keep what its members say and "
            f"are assigned, about {self._core.metadata_bytes:,} bytes, as one record of "
            "__consumer_offsets: take fewer members, or fewer partitions and topics of shorter "
            "names, or raise max.message.bytes of that topic"
        )

    # -- heartbeats --------------------------------------------------------------------------

    def _beat(self) -> None:
        now = self._now()
        core = self._core
        if not self._schedule.beat(now, awaits_round=core.awaits_round):
            return
        self._leader.look(now)
        is_member = bool(core.member_id) and core.generation >= 0
        waits_long = self._is_waiting and self._schedule.waits_long(now)
        if core.state is State.ENDED or not (is_member or waits_long):
            return
        # To one that waits to become a member, any answer will do: the coordinator is alive.
        number = self._link.heartbeat(core.member_id, core.generation)
        self._schedule.answered()
        code = _CODES.get(number)
        with self._lock:
            if is_member and (not number or code is Code.REBALANCE_IN_PROGRESS):
                self._liveness.heard(now, is_stable=not number)
                self._schedule.works()
            if is_member and number:
                core.heartbeat_refused(code)
                self._hear_of_loss()
                self._say_loss(number)
        if code in {Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE}:
            self._link.forget()
            raise OSError(f"the coordinator has moved ({number})")

    @property
    def _is_waiting(self) -> bool:
        """True if JoinGroup or SyncGroup was sent, and is not answered."""
        return self._link.fileno is not None

    def _watch_answer(self) -> None:
        """Ask again what is not answered in the time that a rebalance may take."""
        if self._is_waiting and self._schedule.is_overdue(self._now()):
            seconds = self._schedule.join_timeout
            raise OSError(f"JoinGroup or SyncGroup is not answered for {seconds:g} s")

    def _hear_of_loss(self) -> None:
        if self._core.is_lost or not self._core.member_id:
            self._liveness.lost()
            self._on_change()

    def _watch_polls(self) -> None:
        """Leave if nobody polls."""
        seconds = self._config.max_poll_interval_ms / 1000
        is_in = self._core.state is not State.ENDED and not self._core.is_lost
        if is_in and self._core.member_id and self._now() - self._liveness.polled_at > seconds:
            _log.warning(
                "group %s: nobody has polled for max.poll.interval.ms=%d: the member leaves, and "
                "joins again with the next poll. Raise it, or take fewer records at a time",
                self._config.group,
                self._config.max_poll_interval_ms,
            )
            with self._lock:
                self._core.leave_until_polled()
                self._liveness.lost()
            self._on_change()

    def _say_loss(self, number: int) -> None:
        """Write that the member is dropped, if it is, by the answer to its heartbeat."""
        if self._core.is_lost:
            _log.warning(
                "group %s: the group goes on without this member (%s), which joins again. Its "
                "heartbeats stopped for session.timeout.ms=%d, or a rebalance did not wait for it",
                self._config.group,
                error_codes.name(number),
                self._config.session_timeout_ms,
            )

    def _say(self, trouble: str) -> None:
        """Write what has failed, as a warning if nothing has worked for some seconds."""
        level = logging.INFO
        if self._schedule.is_worth_a_warning(self._now()):
            level, trouble = logging.WARNING, f"is no member, and tries again: {trouble}"
        _log.log(level, "group %s: %s", self._config.group, trouble)


def _instances(members: Iterable[Any]) -> dict[str, str]:
    """The ``group.instance.id`` of each static member; older brokers do not say."""
    said = ((each.member_id, getattr(each, "group_instance_id", None)) for each in members)
    return {member_id: instance for member_id, instance in said if instance is not None}


def _is_assigned(answer: Any) -> bool:
    """True if the group's assignment stays, though this member leads (KIP-814)."""
    return bool(getattr(answer, "skip_assignment", False))
