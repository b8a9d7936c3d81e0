"""What the leader of a group does: it plans generations, and watches what it has planned with.

::

    joined as the leader --> look at topics, policies --> plan --> write the epoch --> assign
              ^                                                                         |
              +--- rebalance: topics, policies or loads have changed <-- look, look ... +

What waits for brokers or the log runs in threads of its own. But for one: what a static leader that
is started again asks of its coordinator.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from threading import RLock
from typing import Any, Protocol

from kshare.errors import KshareError
from kshare.group.config.table import ConsumerConfig
from kshare.group.log.epoch_writer import Written
from kshare.group.membership.planned_topics import PlannedTopics, SeenTopics, WholeTopics
from kshare.group.membership.planner import GroupPlanner
from kshare.group.membership.sharing_log import SharingLog
from kshare.group.protocol.leader import Generation, fits_topics, topics_of
from kshare.group.protocol.membership import Membership, Plan, State
from kshare.group.protocol.range_protocol import RANGE, plan_range, topics_of_all
from kshare.group.protocol.records import Epoch

__all__ = ["GroupLeader", "LeaderHost", "WriteEpoch"]

_log = logging.getLogger("kshare.group")

WriteEpoch = Callable[[Epoch, Written, Callable[[], bool]], None]
"""Writes an epoch into the log, as long as it is wanted; see :meth:`.EpochWriter.write`."""


class LeaderHost(Protocol):
    """What a leader needs of its :class:`~kshare.group.membership.thread.MemberThread`.

    That one imports this module.
    """

    def rebalance(self) -> None:
        """Have the group assigned again."""

    def pause(self) -> None:
        """Something has failed: ask nothing for a while."""

    def wake(self) -> None:
        """There is something to do."""


class GroupLeader:
    """The leader's work of one member; it has none while another member leads.

    For the member's thread.

    Args:
        config: The consumer's configuration.
        core: The membership.
        lock: Guards it.
        host: The member's thread.
        write_epoch: Writes an epoch into the log.
        whole_topics: Says which topics' partitions are not to be shared, by policies.
        now: Source of time.

    Attributes:
        sharing: What is said of sharing partitions.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        core: Membership,
        lock: RLock,
        host: LeaderHost,
        write_epoch: WriteEpoch,
        whole_topics: WholeTopics,
        now: Callable[[], float],
    ) -> None:
        self.sharing = SharingLog(config.group)
        self._config = config
        self._core = core
        self._lock = lock
        self._host = host
        self._write_epoch = write_epoch
        self._now = now
        self._planner = GroupPlanner(config, core.said.name)
        self._topics = PlannedTopics(config, whole_topics)
        self._look_at = 0.0
        self._follow_up_at = float("inf")

    def plan(self, plan: Plan) -> None:
        """Plan a generation, and have its epoch written; in a thread of its own."""
        self._beside(self._plan, plan)

    def _plan(self, plan: Plan) -> None:
        topics = topics_of_all if plan.protocol == RANGE else topics_of
        is_wanted = partial(self._core.awaits_plan, plan)  # asked after every wait
        try:
            planned = self._topics.look(topics(plan.members))
            with self._lock:
                if not is_wanted():
                    return
                self._topics.lead(planned)
            if plan.protocol == RANGE:
                self._plan_range(plan, planned)
                return
            generation = self._planner.plan(plan, planned, self._topics.replica_racks, is_wanted)
        except Exception:
            with self._lock:
                if not is_wanted():
                    raise
                self._core.disconnected()  # to be planned in another generation
            self._host.pause()
            self._host.wake()
            raise
        with self._lock:  # so that no epoch is asked for after a later one
            if generation is None or not is_wanted():
                return
            self._follow_up(self._planner.followup_seconds)
            written = partial(self._planned, plan, generation)
            self._write_epoch(generation.epoch, written, is_wanted)
        self.sharing.planned(generation.refusals)

    def _plan_range(self, plan: Plan, topics: SeenTopics) -> None:
        """Plan whole partitions. There is no epoch: the next leader may be a plain consumer."""
        planned = plan_range(plan.members, topics.counts, plan.instances, denied=topics.denied)
        self.sharing.planned(planned.refusals, planned.plain)
        with self._lock:
            if self._core.awaits_plan(plan):
                self._follow_up(None)
                self._core.planned(plan, planned.assignments)
        self._host.wake()

    def _planned(
        self, plan: Plan, generation: Generation, epoch: int | None, topic_id: str
    ) -> None:
        with self._lock:
            self._core.planned(plan, generation.assignments(epoch, topic_id))
        self._host.wake()

    def lead_on(self, members: Mapping[str, bytes], protocol: str, assigned: list[bytes]) -> None:
        """Lead a generation that was planned before this static member was started again."""
        topics = (topics_of_all if protocol == RANGE else topics_of)(members)
        self._beside(self._watch, self._core.joins, topics, assigned)

    def _watch(self, joins: int, topics: set[str], assigned: list[bytes]) -> None:
        """Watch what its predecessor has planned with, and see what it has missed."""
        try:
            seen = self._topics.look(topics)
        except KshareError:
            if self._core.joins == joins:
                self._host.rebalance()  # then it plans, and knows what with
            raise
        with self._lock:
            if self._core.joins != joins:  # that has its own leader, and its own plan
                return
            self._topics.lead(seen)
            probing = self._config.probing_interval_ms / 1000  # when it was to be is not known
            self._follow_up(probing if self._config.measures_load else None)
        if not fits_topics(assigned, seen.counts, seen.whole):
            self._host.rebalance()

    def look(self, now: float) -> None:
        """As the leader, see now and then whether topics, policies or loads have changed."""
        if self._core.state is not State.STABLE or not self._topics.are_planned:
            return
        if now >= self._follow_up_at:
            self._follow_up(None)
            self._host.rebalance()
        elif now >= self._look_at:
            self._look_at = now + self._topics.look_seconds
            self._beside(self._compare, self._topics.have_changed)
        else:
            self._beside(self._compare, self._topics.have_policies_changed)

    def _compare(self, have_changed: Callable[[], bool]) -> None:
        if have_changed():
            self._host.rebalance()

    def follows(self) -> None:
        """Another member leads the group: topics are its concern."""
        self._topics.forget()
        self._follow_up(None)

    def close(self) -> None:
        """Close the connections."""
        self._topics.close()

    def _follow_up(self, seconds: float | None) -> None:
        """Plan again after this time in seconds; None: not before something changes."""
        self._follow_up_at = float("inf") if seconds is None else self._now() + seconds

    def _beside(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do something that waits, in a thread of its own."""

        def run() -> None:
            try:
                work(*arguments)
            except KshareError as error:  # the group's next rebalance does it again
                _log.warning("group %s: %s", self._config.group, error)

        name = f"kshare {self._config.group} plans"
        threading.Thread(target=run, name=name, daemon=True).start()
