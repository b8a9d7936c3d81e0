"""The thread of a group's member: it joins, plans if it leads, and says that it is alive.

::

    what the core wants --> ask the coordinator --> wait: an answer | a heartbeat | a wake-up
         ^                                                                |
         +---------------- tell the core <--------------------------------+

A leader's plan is made in a thread of its own, as topics and the log are asked for it. Callbacks of
users are never called here: the thread that polls takes what has changed.
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Final

from kshare.cluster.committed_offset import CommittedOffsets
from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError, KshareError
from kshare.group.config import ConsumerConfig
from kshare.group.group_leader import GroupLeader, WriteEpoch
from kshare.group.log_follower import LASTING
from kshare.group.log_tail import boot_time
from kshare.group.member_commits import MemberCommits
from kshare.group.member_link import MemberLink
from kshare.group.member_schedule import MemberSchedule
from kshare.group.planned_topics import WholeTopics
from kshare.group.protocol.group_errors import Code
from kshare.group.protocol.holdings import Change
from kshare.group.protocol.liveness import Liveness
from kshare.group.protocol.membership import (
    Join,
    Leave,
    Membership,
    Plan,
    State,
    Sync,
)
from kshare.group.protocol.report import MemberReport
from kshare.group.protocol.subscription import Subscription
from kshare.wire.protocol import error_codes
from kshare.wire.protocol.waker import Waker

__all__ = ["MemberThread"]

_log = logging.getLogger("kshare.group")

_CODES: Final = {code.value: code for code in Code}
_LONGEST_WAIT: Final = 1.0


class MemberThread:
    """A member of a group. Methods may be called from any thread.

    Args:
        config: The consumer's configuration.
        name: Name of the member's session.
        write_epoch: Writes an epoch into the log.
        on_change: Called when there is something to take. It must not block.
        whole_topics: Says which topics' partitions are not to be shared, by policies.
        now: Source of time; suspension counts.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        name: str,
        write_epoch: WriteEpoch,
        on_change: Callable[[], None],
        whole_topics: WholeTopics = lambda _: frozenset(),
        *,
        now: Callable[[], float] = boot_time,
    ) -> None:
        host = config.application_server or socket.gethostname()
        said = Subscription(
            name,
            (),
            config.individual,
            host=host,
            rack=config.kafka.client_rack or None,
            ordered=config.lease_records is None,
            report=config.report,
        )
        self._config = config
        self._on_change = on_change
        self._now = now
        self._lock = threading.RLock()
        is_static = config.instance_id is not None
        self._core = Membership(config.group, said, is_static=is_static, protocols=config.protocols)
        self._liveness = Liveness(
            config.session_timeout_ms / 1000, config.max_poll_interval_ms / 1000
        )
        self._link = MemberLink(config)
        self._schedule = MemberSchedule.of(config)
        self._leader = GroupLeader(
            config, self._core, self._lock, self, write_epoch, whole_topics, now
        )
        self._commits = MemberCommits(config.group, self._core, self._lock)
        self._waker = Waker()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    # -- for the thread that polls -----------------------------------------------------------

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Join the group, or join it again with other topics."""
        with self._lock:
            self._core.subscribe(topics)
            if self._thread is None:
                self._liveness.polled_at = self._now()
                self._waker.open()
                name = f"kshare {self._core.said.name} joins"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
        self._waker.wake()

    def report(self, measured: Callable[[], MemberReport]) -> None:
        """From now on, report what this returns whenever the member joins."""
        self._core.measured = measured

    def polled(self) -> None:
        """Somebody polls."""
        self._liveness.polled_at = self._now()

    @property
    def has_change(self) -> bool:
        """Whether :meth:`take` has something to say."""
        return self._core.has_change

    def take(self) -> Change | None:
        """What has changed; call :meth:`applied` when it is done."""
        with self._lock:
            return self._core.take()

    def applied(self) -> None:
        """What was taken is done."""
        with self._lock:
            self._core.applied()
        self._waker.wake()

    def fenced(self) -> None:
        """Another consumer has claimed what this member owns: all is lost, and it joins again."""
        with self._lock:
            kept = self._core.member_id
            self._lose()
            self._core.member_id = kept
        self._waker.wake()

    @property
    def is_lost(self) -> bool:
        """Whether what it owned is lost, and was not given up yet."""
        return self._core.is_lost

    def check(self) -> None:
        """Raise the fault that keeps it out of the group, once what it owned was taken.

        Raises:
            KshareError: It cannot be a member.
        """
        fault = self._core.fault
        if fault is not None and not self._core.has_change:
            raise fault

    def owned(self) -> dict[TopicPartition, Any]:
        """What the member owns."""
        with self._lock:
            return dict(self._core.owned)

    def seconds_left(self) -> float:
        """For how long records may be handed out; below 0: not now."""
        return self._liveness.seconds_left(self._now())

    @property
    def epoch(self) -> tuple[int, str] | None:
        """The last epoch in which it is a member, and the id of the log's topic."""
        return self._core.epoch

    @property
    def is_static(self) -> bool:
        """Whether it has a ``group.instance.id``."""
        return self._core.is_static

    @property
    def member_id(self) -> str:
        """Its id at the coordinator; empty before it has joined."""
        return self._core.member_id

    def close(self, seconds: float) -> None:
        """Leave the group, and stop. May be called again."""
        with self._lock:
            self._is_closing = True
        if self._thread is not None:
            self._waker.wake()
            self._thread.join(seconds)

    # -- for the session's thread ------------------------------------------------------------

    def commit(self, offsets: CommittedOffsets) -> "Future[Any]":
        """Commit primary offsets as a member; the future has an error or None by partition."""
        with self._lock:
            answer = self._commits.add(offsets)
        self._waker.wake()
        return answer

    def rebalance(self) -> None:
        """The group has to be assigned again: epochs of before count no more."""
        with self._lock:
            self._core.rebalance()
        self._waker.wake()
        if self._core.has_change:  # an eager member has to give everything up
            self._on_change()

    def session_ended(self, fault: KshareError) -> None:
        """Its session has ended by a fault: it leaves, so that others go on with what it owns."""
        with self._lock:
            self._core.end(fault)
            self._liveness.lost()
        self._waker.wake()
        self._on_change()

    def pause(self) -> None:
        """Something has failed: ask nothing for a while."""
        self._schedule.pause(self._now())

    def wake(self) -> None:
        """There is something to do."""
        self._waker.wake()

    # -- the loop ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._step()
            self._leave()
        except KshareError as error:
            self._end(error)
        except BaseException as error:
            self._end(KshareError(f"the member's thread has ended: {error!r}"))
            raise
        finally:
            self._liveness.lost()
            self._commits.refuse(KafkaError(f"group {self._config.group}: left"))
            self._leader.close()
            self._link.close()
            self._waker.close()
            self._on_change()

    def _end(self, error: KshareError) -> None:
        with self._lock:
            self._lose()
            self._core.state, self._core.fault = State.ENDED, error
        _log.error("group %s: %s", self._config.group, error)

    def _step(self) -> None:
        had_change = self._core.has_change
        try:
            if self._now() >= self._schedule.retry_at:
                self._watch_polls()
                self._watch_answer()
                self._beat()  # before all else: it says whether to join again
                self._act()
                self._commits.serve(self._link)
            if self._wait():
                self._receive()
        except LASTING:
            raise
        except (OSError, KafkaError) as error:
            self._disconnected(error)
        if self._core.has_change and not had_change:
            self._on_change()

    def _wait(self) -> bool:
        """Wait for something to do; return whether JoinGroup or SyncGroup is answered."""
        answer = self._link.fileno
        until = max(self._schedule.beat_at, self._schedule.retry_at)
        seconds = min(max(until - self._now(), 0.0), _LONGEST_WAIT)
        if self._commits.are_waiting and self._now() >= self._schedule.retry_at:
            seconds = 0.0
        return bool(self._waker.wait(seconds, [] if answer is None else [answer]))

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

    def _receive(self) -> None:
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

    def _refused(self, answer: Any) -> None:
        """JoinGroup or SyncGroup was refused."""
        code = _CODES.get(answer.error_code)
        # An unknown answer to SyncGroup: what is wrong with the member is said when it joins again.
        is_joining = self._core.state is State.JOINING
        if code is None and is_joining and error_codes.is_permanent(answer.error_code):
            name = error_codes.name(answer.error_code)
            raise KshareError(f"cannot join group {self._config.group}: {name}")
        with self._lock:
            self._core.refused(code, getattr(answer, "member_id", ""))
            self._hear_of_loss()
        if code in {Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE}:
            self._link.forget()
        if code not in {Code.MEMBER_ID_REQUIRED, Code.REBALANCE_IN_PROGRESS}:
            what = "JoinGroup" if is_joining else "SyncGroup"
            self._say(f"{what} was refused: {error_codes.name(answer.error_code)}")
            self.pause()

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
        if code in {Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE}:
            self._link.forget()
            raise OSError(f"the coordinator has moved ({number})")

    @property
    def _is_waiting(self) -> bool:
        """Whether JoinGroup or SyncGroup was sent, and is not answered."""
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

    def _lose(self) -> None:
        self._core.lose()
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
                self._core.stop_waiting_for_polls()
                self._liveness.lost()
            self._on_change()

    def _disconnected(self, error: Exception) -> None:
        self._say(f"the coordinator: {error}")
        self._link.forget()
        with self._lock:
            self._core.disconnected()
        self.pause()

    def _say(self, trouble: str) -> None:
        """Write what has failed, as a warning if nothing has worked for some seconds."""
        level = logging.INFO
        if self._schedule.is_worth_a_warning(self._now()):
            level, trouble = logging.WARNING, f"is no member, and tries again: {trouble}"
        _log.log(level, "group %s: %s", self._config.group, trouble)

    def _leave(self) -> None:
        with self._lock:
            self._core.leave()
            action = self._core.action()
        if isinstance(action, Leave):
            try:
                self._link.leave(action.member_id)
            except (OSError, KafkaError) as error:
                _log.info("group %s: cannot leave: %s", self._config.group, error)


def _instances(members: Iterable[Any]) -> dict[str, str]:
    """The ``group.instance.id`` of each static member; older brokers do not say."""
    said = ((each.member_id, getattr(each, "group_instance_id", None)) for each in members)
    return {member_id: instance for member_id, instance in said if instance is not None}


def _is_assigned(answer: Any) -> bool:
    """Whether the group's assignment stays, though this member leads (KIP-814)."""
    return bool(getattr(answer, "skip_assignment", False))
