"""How a group's leader plans: with the assignors of its configuration, and when to plan again.

A generation is planned by :mod:`~kshare.group.protocol.leader`; here is what it is not pure about.
The leader's configuration counts. What is wrong is told once, not in each rebalance.
"""

import logging
from collections.abc import Collection, Mapping

from kshare.group.config import ConsumerConfig
from kshare.group.protocol.assignor import Deal
from kshare.group.protocol.leader import Generation, plan_generation
from kshare.group.protocol.load_sharing import LoadSharing
from kshare.group.protocol.membership import Plan
from kshare.group.protocol.report import ROUND_ROBIN
from kshare.group.protocol.subscription import Subscription
from kshare.ranges import load_range_assignor

__all__ = ["GroupPlanner"]

_log = logging.getLogger("kshare.group")


class GroupPlanner:
    """Plans the generations of a group. For one thread at a time.

    Args:
        config: The leader's configuration.
        name: Name of its session.

    Attributes:
        followup_seconds: In how many seconds to plan again, after the last plan; None for not
            before something changes.
    """

    def __init__(self, config: ConsumerConfig, name: str) -> None:
        self.followup_seconds: float | None = None
        self._config = config
        self._name = name
        self._told: set[str] = set()

    def plan(
        self, plan: Plan, partitions: Mapping[str, int], whole_topics: Collection[str]
    ) -> Generation:
        """Plan a generation.

        Args:
            plan: What the members have said.
            partitions: Number of partitions of each topic that exists.
            whole_topics: Topics whose partitions are not to be shared.
        """
        made: list[LoadSharing] = []

        def policy(subscriptions: Mapping[str, Subscription]) -> Deal | None:
            made.extend(self._sharing(subscriptions))
            return made[0].deal if made else None

        generation = plan_generation(
            plan.generation,
            self._name,
            plan.members,
            partitions,
            whole_topics=whole_topics,
            policy=policy,
        )
        self.followup_seconds = None
        for sharing in made:
            for fault in sharing.faults:
                self._tell(f"{fault}; members keep their key ranges, or get equal ones")
            if sharing.wants_followup:
                self.followup_seconds = self._config.probing_interval_ms / 1000
        return generation

    def _sharing(self, subscriptions: Mapping[str, Subscription]) -> list[LoadSharing]:
        """What deals partitions out; none for what is always done."""
        own = self._config.range_assignor
        for said in subscriptions.values():
            other = said.report.range_assignor
            if other != own and said.ordered:
                self._tell(
                    f"member {said.name} has rangeAssignor={other}, and the leader, whose counts, "
                    f"{own}: give all members the same"
                )
        if own == ROUND_ROBIN:
            return []
        return [LoadSharing(subscriptions, load_range_assignor(own), own)]

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            _log.warning("group %s: %s", self._config.group, text)
