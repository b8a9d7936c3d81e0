"""How a group's leader plans: with the assignors of its configuration, and when to plan again.

A generation is planned by :mod:`~kshare.group.protocol.leader`; here is what it is not pure about.
The leader's configuration counts. A fault is logged once, not in each rebalance.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from kshare.assignment import TaskAssignor, load_task_assignor
from kshare.core.progress import TopicPartition
from kshare.group.config.table import ConsumerConfig
from kshare.group.membership.planned_topics import SeenTopics
from kshare.group.protocol.group_plan import Deal
from kshare.group.protocol.leader import Generation, plan_generation
from kshare.group.protocol.load_sharing import LoadSharing
from kshare.group.protocol.membership import Plan
from kshare.group.protocol.report import ROUND_ROBIN
from kshare.group.protocol.subscription import Assigned, Subscription
from kshare.group.protocol.task_sharing import TaskPlanning, TaskSharing
from kshare.options.source import made_task_assignor
from kshare.ranges import load_range_assignor

__all__ = ["GroupPlanner", "ReplicaRacks"]

_log = logging.getLogger("kshare.group")

ReplicaRacks = Callable[[Collection[str]], Mapping[TopicPartition, tuple[str | None, ...]]]
"""Says the racks of the replicas of some topics' partitions."""


class GroupPlanner:
    """Plans the generations of a group. A plan may be late, and another one under way.

    Args:
        config: The leader's configuration.
        name: Name of its session.
        wall_clock: Seconds since 1970.

    Attributes:
        followup_seconds: In how many seconds to plan again, after the last plan; None for not
            before something changes.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        name: str,
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.followup_seconds: float | None = None
        self._config = config
        self._name = name
        self._wall_clock = wall_clock
        self._task_assignor: TaskAssignor | None = None
        self._followup_ms: int | None = None  # since 1970
        self._has_failed = False  # the task assignor, when it was asked last
        self._target: Mapping[str, Assigned] = {}  # of the last plan
        self._told: set[str] = set()  # of members, in the last plan
        self._told_faults: set[str] = set()  # their kinds: texts may differ each time
        self._lock = threading.Lock()

    def plan(
        self,
        plan: Plan,
        topics: SeenTopics,
        replica_racks: ReplicaRacks,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Generation | None:
        """Plan a generation; None if it is wanted no more when it is its turn.

        Args:
            plan: What the members have said.
            topics: What is to be known of their topics.
            replica_racks: Says the racks of replicas; asked if there is a task assignor.
            is_wanted: Whether the generation is still the last one.

        Raises:
            KafkaError: The racks of replicas cannot be read.
        """
        racks: Mapping[TopicPartition, tuple[str | None, ...]] = {}
        if self._config.task_assignor is not None:
            racks = replica_racks([topic for topic, count in topics.counts.items() if count])
        with self._lock:  # an assignor of a user's is asked one question at a time
            return self._plan(plan, topics, racks) if is_wanted() else None

    def _plan(
        self,
        plan: Plan,
        topics: SeenTopics,
        racks: Mapping[TopicPartition, tuple[str | None, ...]],
    ) -> Generation:
        made: list[LoadSharing | TaskSharing] = []

        def choose_deal(subscriptions: Mapping[str, Subscription]) -> Deal | None:
            self._compare(subscriptions)
            if self._config.task_assignor is not None:
                made.append(self._by_tasks(subscriptions, racks))
            elif self._config.range_assignor != ROUND_ROBIN:
                name = self._config.range_assignor
                seconds = self._config.probing_interval_ms / 1000
                assign = load_range_assignor(name)
                made.append(LoadSharing(subscriptions, assign, name, seconds))
            return made[0].deal if made else None

        generation = plan_generation(
            plan.generation,
            self._name,
            plan.members,
            topics.counts,
            whole_topics=topics.whole,
            denied=topics.denied,
            choose_deal=choose_deal,
        )
        for sharing in made:
            for fault in sharing.faults:
                kind = fault.partition(": ")[0]
                if kind not in self._told_faults:
                    self._told_faults.add(kind)
                    self._warn(f"{fault}; members keep what they have, or get equal parts")
        is_same, self._target = generation.plan.target == self._target, generation.plan.target
        self._followup_ms = self._next_followup(made[0], is_same=is_same) if made else None
        if self._followup_ms is None:
            self.followup_seconds = None
        else:
            self.followup_seconds = max(self._followup_ms / 1000 - self._wall_clock(), 0.0)
        return replace(generation, followup_ms=self._followup_ms)

    def _next_followup(self, sharing: "LoadSharing | TaskSharing", *, is_same: bool) -> int | None:
        """When to plan again, in ms since 1970.

        An assignor that wants to be asked again at once is, as long as its answers differ. One that
        has failed is asked again at once, too, and then from time to time.
        """
        now_ms = int(1000 * self._wall_clock())
        probing_ms = now_ms + self._config.probing_interval_ms
        if isinstance(sharing, LoadSharing):
            return probing_ms if sharing.wants_followup else None
        wanted = sharing.followup_ms
        if sharing.is_unfinished and self._followup_ms is not None:
            wanted = self._followup_ms
        had_failed, self._has_failed = self._has_failed, sharing.has_failed
        if sharing.has_failed:
            return probing_ms if had_failed else now_ms
        if wanted is not None and wanted <= now_ms and is_same and not sharing.is_unfinished:
            wanted = probing_ms
        if self._config.range_assignor == ROUND_ROBIN:
            return wanted
        return probing_ms if wanted is None else min(wanted, probing_ms)

    def _by_tasks(
        self,
        subscriptions: Mapping[str, Subscription],
        racks: Mapping[TopicPartition, tuple[str | None, ...]],
    ) -> TaskSharing:
        config = self._config
        assert config.task_assignor is not None
        if self._task_assignor is None:
            made = made_task_assignor(config.task_assignor_configs)
            self._task_assignor = made or load_task_assignor(
                config.task_assignor, config.task_assignor_configs
            )
        planning = TaskPlanning(
            self._task_assignor,
            config.task_assignor,
            load_range_assignor(config.range_assignor),
            config.task_assignor_configs,
            min_ranges=config.min_ranges,
            stateful=config.stateful,
            probing_ms=config.probing_interval_ms,
            now_ms=int(1000 * self._wall_clock()),
            racks=racks,
        )
        return TaskSharing(subscriptions, planning)

    def _compare(self, subscriptions: Mapping[str, Subscription]) -> None:
        """Tell of members that would plan otherwise."""
        config = self._config
        told: set[str] = set()
        for said in subscriptions.values():
            for name, other, own in (
                ("rangeAssignor", said.report.range_assignor, config.range_assignor),
                ("taskAssignor", said.report.task_assignor, config.task_assignor),
            ):
                if other != own and said.ordered:
                    told.add(
                        f"member {said.name} has {name}={other or 'none'}, and the leader, whose "
                        f"counts, {own or 'none'}: give all members the same"
                    )
        for text in sorted(told - self._told):
            self._warn(text)
        self._told = told

    def _warn(self, text: str) -> None:
        _log.warning("group %s: %s", self._config.group, text)
