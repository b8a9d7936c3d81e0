"""What the leader of a group does: it plans generations, and watches what it has planned with.

::

    joined as the leader --> look at topics, policies --> plan --> write the epoch --> assign
              ^                                                                         |
              +--- rebalance: topics, policies or loads have changed <-- look, look ... +

What waits for brokers runs in threads of its own, and so does an assignor of the user.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from kshare.errors import KshareError
from kshare.group.config.table import ConsumerConfig
from kshare.group.core.member import GroupMember, Level
from kshare.group.log.log_link import Written
from kshare.group.membership.group_planner import (
    GroupPlanner,
    PlannedTopics,
    SeenTopics,
    WholeTopics,
)
from kshare.group.protocol.commit_log.records import Epoch
from kshare.group.protocol.membership.membership_state import Membership, State
from kshare.group.protocol.membership.requests import PlanRequest
from kshare.group.protocol.membership.subscription import RANGE
from kshare.group.protocol.plan.generation import (
    Generation,
    RangePlan,
    fits_topics,
    followup_of,
    plan_range,
    topics_of,
    topics_of_all,
)
from kshare.kafka.protocol.background import Beside

__all__ = ["GroupLeader", "SharingLog", "WriteEpoch"]

_T = TypeVar("_T")

WriteEpoch = Callable[[Epoch, Written, Callable[[], bool]], None]
"""Writes an epoch into the log, as long as it is wanted; see :meth:`.EpochWriter.write`."""


class GroupLeader:
    """The leader's work of one member; it has none while another member leads.

    For the session's thread, which holds its lock.

    Args:
        config: The consumer's configuration.
        member: The member.
        beside: Does what waits for brokers.
        write_epoch: Writes an epoch into the log.
        whole_topics: Says which topics' partitions are not to be shared, by policies.
        now: Source of time.

    Attributes:
        sharing: What is said of sharing partitions.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        member: GroupMember,
        beside: Beside,
        write_epoch: WriteEpoch,
        whole_topics: WholeTopics,
        now: Callable[[], float],
    ) -> None:
        self.sharing = SharingLog(member.log_later)
        self._config = config
        self._member = member
        self._run_beside = beside
        self._write_epoch = write_epoch
        self._now = now
        self._planner = GroupPlanner(config, member.membership.said.name)
        self._topics = PlannedTopics(config, whole_topics)
        self._follow_up_at = float("inf")

    @property
    def _membership(self) -> Membership:
        return self._member.membership

    def plan(self, plan: PlanRequest) -> None:
        """Plan a generation, and have its epoch written."""
        self._beside(
            partial(self._make, plan), partial(self._made, plan), partial(self._not_made, plan)
        )

    def _make(self, plan: PlanRequest) -> "tuple[SeenTopics, Generation | RangePlan | None]":
        """Look at topics, and plan with them; in a thread of its own."""
        is_wanted = partial(self._membership.awaits_plan, plan)  # asked after every wait
        topics = topics_of_all if plan.protocol == RANGE else topics_of
        seen = self._topics.look(topics(plan.members))
        if plan.protocol != RANGE:
            return seen, self._planner.plan(plan, seen, self._topics.replica_racks, is_wanted)
        # Whole partitions. There is no epoch: the next leader may be a plain consumer.
        return seen, plan_range(plan.members, seen.counts, plan.instances, denied=seen.denied)

    def _made(
        self, plan: PlanRequest, made: "tuple[SeenTopics, Generation | RangePlan | None]"
    ) -> None:
        seen, planned = made
        if planned is None or not self._membership.awaits_plan(plan):
            return
        self._topics.lead(seen)
        if isinstance(planned, Generation):
            self._follow_up(self._planner.followup_seconds)
            is_wanted = partial(self._membership.awaits_plan, plan)
            self._write_epoch(planned.epoch, partial(self._written, plan, planned), is_wanted)
            self.sharing.planned(planned.refusals)
        else:
            self.sharing.planned(planned.refusals, planned.plain)
            self._follow_up(None)
            self._membership.planned(plan, planned.assignments)

    def _written(
        self, plan: PlanRequest, generation: Generation, epoch: int | None, topic_id: str
    ) -> None:
        """The epoch is read back: the plan is ready for the Sync that `MemberDialogue` asks for."""
        encode = partial(generation.assignments, epoch, topic_id)  # long if there are many members
        self._beside(encode, partial(self._membership.planned, plan), partial(self._not_made, plan))

    def _not_made(self, plan: PlanRequest, error: Exception) -> None:
        if self._membership.awaits_plan(plan):
            self._membership.disconnected()  # to be planned in another generation
            self._member.schedule.pause(self._now())
        self._warn(error)

    def lead_on(self, members: Mapping[str, bytes], protocol: str, assigned: list[bytes]) -> None:
        """Lead a generation that was planned before this static member was started again."""
        topics = (topics_of_all if protocol == RANGE else topics_of)(members)
        joins = self._membership.standing.number

        def failed(error: Exception) -> None:
            if self._membership.standing.number == joins:
                self._membership.rebalance()  # then it plans, and knows what with
            self._warn(error)

        look = partial(self._topics.look, topics)
        self._beside(look, partial(self._watch, joins, assigned), failed)

    def _watch(self, joins: int, assigned: list[bytes], seen: SeenTopics) -> None:
        """Watch what its predecessor has planned with, and see what it has missed."""
        if self._membership.standing.number != joins:  # that has its own leader, and its own plan
            return
        self._topics.lead(seen)
        self._planner.lead_on(followup_of(assigned))
        # Leaders of older versions did not say it.
        probing = self._config.probing_interval_ms / 1000 if self._config.measures_load else None
        seconds = self._planner.followup_seconds
        self._follow_up(probing if seconds is None else seconds)
        is_ordered = self._membership.said.ordered
        if not fits_topics(assigned, seen.counts, seen.whole, is_ordered=is_ordered):
            self._membership.rebalance()

    def look(self, now: float) -> None:
        """As the leader, see now and then whether topics, policies or loads have changed."""
        if self._membership.state is not State.STABLE or not self._topics.are_planned:
            return
        if now >= self._follow_up_at:
            self._follow_up(None)
            self._membership.rebalance()
        elif self._topics.take_due(now):
            self._beside(self._topics.have_changed, self._compared, self._warn)
        else:
            self._beside(self._topics.have_policies_changed, self._compared, self._warn)

    def _compared(self, have_changed: bool) -> None:
        if have_changed:
            self._membership.rebalance()

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

    def _beside(
        self,
        call: Callable[[], _T],
        done: Callable[[_T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        def taken(result: _T) -> None:
            try:
                done(result)
            except Exception as error:  # of the plan, not of the session that takes it
                failed(error)

        self._run_beside.begin(call, f"kshare {self._config.group} plans", taken, failed)

    def _warn(self, error: Exception) -> None:
        """Say what has failed; the group's next rebalance does it again."""
        if isinstance(error, KshareError):
            self._member.log_later(Level.WARNING, str(error))
        else:
            self._member.log_later(Level.ERROR, "planning failed", error)


class SharingLog:
    """Logs whether the group shares key ranges, and what there is to say of others: each once.

    Args:
        log_later: Logs a text of the group.
    """

    def __init__(self, log_later: Callable[[Level, str], None]) -> None:
        self._log_later = log_later
        self._shares: bool | None = None  # as was said last
        self._plain: tuple[str, ...] = ()

    def assigned(self, shares: bool | None) -> None:
        """Something was assigned.

        Args:
            shares: Whether key ranges are shared; None if nothing was assigned.
        """
        if shares is None or shares == self._shares:
            return
        self._shares = shares
        if shares:
            self._log_later(Level.INFO, "all members are kshare consumers: key ranges are shared")
        else:
            self._log_later(
                Level.WARNING,
                "a member is no kshare consumer: partitions are assigned whole (by range), and key "
                "ranges are shared once all members are",
            )

    def planned(self, refusals: Mapping[str, str], plain: tuple[str, ...] = ()) -> None:
        """This member has planned a generation.

        Args:
            refusals: Why members take no part.
            plain: Ids of the members that are no kshare consumers.
        """
        for refusal in refusals.values():
            self._log_later(Level.WARNING, refusal)
        if plain and plain != self._plain:
            self._log_later(Level.INFO, f"no kshare consumers: {', '.join(plain)}")
        self._plain = plain
