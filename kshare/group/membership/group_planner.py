"""How a group's leader plans: with the topics that there are, with which assignors, and when again.

A generation is planned by :mod:`~kshare.group.protocol.plan.generation`; here is what is
not pure about it. The leader's configuration counts. A fault is logged once, not in each rebalance.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from kshare.assignment import TaskAssignor, load_task_assignor
from kshare.core.hashing import HashRange
from kshare.core.progress import TopicPartition
from kshare.errors import AuthorizationError, UnknownTopicError
from kshare.group.config.table import ConsumerConfig
from kshare.group.protocol.membership.report import ROUND_ROBIN
from kshare.group.protocol.membership.requests import PlanRequest
from kshare.group.protocol.membership.subscription import Assigned, Subscription
from kshare.group.protocol.plan.generation import Generation, plan_generation
from kshare.group.protocol.plan.group_plan import Deal
from kshare.group.protocol.plan.load_sharing import LoadSharing
from kshare.group.protocol.plan.task_sharing import TaskPlanning, TaskSharing
from kshare.kafka.cluster import Cluster
from kshare.options.model import Subscribe
from kshare.options.source import made_task_assignor
from kshare.ranges import load_range_assignor

__all__ = ["GroupPlanner", "PlannedTopics", "ReplicaRacks", "SeenTopics", "WholeTopics"]

_log = logging.getLogger("kshare.group")
_MISSING_SECONDS: Final = 5.0
WholeTopics = Callable[[Collection[str]], Mapping[str, str]]
"""Says which of some topics' partitions are not to be shared, and the policy that says so."""
ReplicaRacks = Callable[[Collection[str]], Mapping[TopicPartition, tuple[str | None, ...]]]
"""Says the racks of the replicas of some topics' partitions."""


class SeenTopics(NamedTuple):
    """The topics of a plan: their partitions, and which are not shared or not known.

    Attributes:
        counts: Number of partitions of each topic.
        whole: The topics whose partitions are not shared, each with the policy that says so.
        denied: The topics that this member may not describe; they count as missing.
    """

    counts: dict[str, int]
    whole: Mapping[str, str]
    denied: frozenset[str] = frozenset()


class PlannedTopics:
    """The topics that a leader has planned with, and whether they are still so.

    Args:
        config: The consumer's configuration.
        whole_topics: Says which topics' partitions are not to be shared, by policies.
    """

    def __init__(self, config: ConsumerConfig, whole_topics: WholeTopics) -> None:
        kafka = config.kafka
        patient_ms = min(kafka.api_timeout_ms, max(config.max_poll_interval_ms // 2, 1_000))
        self._cluster = Cluster(kafka.within(patient_ms))
        # Who reads a topic that was deleted waits for the next look: no longer than for a request.
        self._longest = min(kafka.metadata_max_age_seconds, kafka.api_timeout_ms / 1000)
        self._look_at = 0.0
        self._planned: SeenTopics | None = None  # None if it does not lead
        self._whole_topics = whole_topics
        self._group = config.group

    def take_due(self, now: float) -> bool:
        """Return True if it is time to look at topics: more often while some are missing."""
        if now < self._look_at:
            return False
        is_missing = self._planned is not None and 0 in self._planned.counts.values()
        self._look_at = now + min(self._longest, _MISSING_SECONDS if is_missing else self._longest)
        return True

    @property
    def are_planned(self) -> bool:
        """True if this member leads the group."""
        return self._planned is not None

    def look(self, topics: set[str]) -> SeenTopics:
        """What is to be known of topics for a plan; those that do not exist have no partitions."""
        counts, denied = self._count(topics)
        for topic in sorted(topic for topic, count in counts.items() if not count):
            wrong = "may not be described" if topic in denied else "does not exist"
            _log.warning(
                "group %s: topic %s %s: nobody is assigned any of it. It is looked for every %g s",
                self._group,
                topic,
                wrong,
                min(self._longest, _MISSING_SECONDS),
            )
        return SeenTopics(counts, self._whole_topics(topics), denied)

    def lead(self, planned: SeenTopics) -> None:
        """This member leads the group, and watches the topics of its plan."""
        self._planned = planned

    def replica_racks(
        self, topics: Collection[str]
    ) -> Mapping[TopicPartition, tuple[str | None, ...]]:
        """The racks of the replicas of some topics' partitions."""
        return self._cluster.replica_racks(topics) if topics else {}

    def forget(self) -> None:
        """Another member leads the group."""
        self._planned = None

    def have_changed(self) -> bool:
        """True if topics have other partitions than those that were planned."""
        planned = self._planned
        if planned is None:
            return False
        return self.have_policies_changed() or self._count(set(planned.counts))[0] != planned.counts

    def have_policies_changed(self) -> bool:
        """True if other topics' partitions are not to be shared now."""
        planned = self._planned
        return planned is not None and self._whole_topics(planned.counts) != planned.whole

    def _count(self, topics: set[str]) -> tuple[dict[str, int], frozenset[str]]:
        """The number of partitions of each topic, and those that may not be described."""
        counts, denied = dict.fromkeys(topics, 0), set[str]()
        for topic in topics:
            try:
                counts[topic] = len(self._cluster.partitions(Subscribe((topic,))))
            except UnknownTopicError:
                pass
            except AuthorizationError:
                denied.add(topic)
        return counts, frozenset(denied)

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()


class _LastPlan(NamedTuple):
    """The parts of the last plan that the next one begins from.

    Attributes:
        target: What each member was to have.
        followup_ms: When to plan again, in ms since 1970; None for not before something changes.
        has_failed: Whether the task assignor gave no answer that could be used.
        cuts: The ranges that the task assignor dealt out, of each partition.
    """

    target: Mapping[str, Assigned] = {}
    followup_ms: int | None = None
    has_failed: bool = False
    cuts: Mapping[TopicPartition, tuple[HashRange, ...]] = {}


class GroupPlanner:
    """Plans the generations of a group. A plan may be late, and another one under way.

    Args:
        config: The leader's configuration.
        name: Id of its session.
        wall_clock: Seconds since 1970.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        name: str,
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._name = name
        self._wall_clock = wall_clock
        self._task_assignor: TaskAssignor | None = None
        self._last = _LastPlan()
        self._logged: set[str] = set()  # of members, in the last plan
        self._forbidden: frozenset[str] = frozenset()  # as was logged last
        self._logged_faults: set[str] = set()  # their kinds: texts may differ each time
        self._lock = threading.Lock()

    def plan(
        self,
        plan: PlanRequest,
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
        plan: PlanRequest,
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
        self._log_forbidden(generation, topics.whole)
        for sharing in made:
            if isinstance(sharing, TaskSharing):
                sharing.notify(generation.plan)
            for fault in sharing.faults:
                kind = fault.partition(": ")[0]
                if kind not in self._logged_faults:
                    self._logged_faults.add(kind)
                    self._warn(f"{fault}; members keep what they have, or get equal parts")
        target = generation.plan.target
        followup_ms = self._next_followup(made[0], target) if made else None
        by_tasks = [each for each in made if isinstance(each, TaskSharing)]
        has_failed = any(each.has_failed for each in by_tasks)
        cuts = by_tasks[0].cuts if by_tasks else {}
        self._last = _LastPlan(target, followup_ms, has_failed, cuts)
        return replace(generation, followup_ms=followup_ms)

    def lead_on(self, followup_ms: int | None) -> None:
        """Go on with what was planned before this static member was started again.

        Args:
            followup_ms: When to plan again, in ms since 1970; None: that is not known.
        """
        self._last = _LastPlan(followup_ms=followup_ms)

    @property
    def followup_seconds(self) -> float | None:
        """Seconds until to plan again, after the last plan; None: not before something changes."""
        followup_ms = self._last.followup_ms
        return None if followup_ms is None else max(followup_ms / 1000 - self._wall_clock(), 0.0)

    def _next_followup(
        self, sharing: "LoadSharing | TaskSharing", target: Mapping[str, Assigned]
    ) -> int | None:
        """When to plan again, in ms since 1970.

        An assignor that wants to be asked again at once is, as long as its answers differ. One that
        has failed is asked again at once, too, and then from time to time.
        """
        now_ms = int(1000 * self._wall_clock())
        probing_ms = now_ms + self._config.probing_interval_ms
        if isinstance(sharing, LoadSharing):
            return probing_ms if sharing.wants_followup else None
        wanted = sharing.followup_ms
        if sharing.is_unfinished and self._last.followup_ms is not None:
            wanted = self._last.followup_ms
        if sharing.has_failed:
            return probing_ms if self._last.has_failed else now_ms
        is_same = target == self._last.target and not sharing.is_unfinished
        if wanted is not None and wanted <= now_ms and is_same:
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
            cuts=self._last.cuts,
        )
        return TaskSharing(subscriptions, planning)

    def _compare(self, subscriptions: Mapping[str, Subscription]) -> None:
        """Warn of members that would plan otherwise."""
        config = self._config
        differing: set[str] = set()
        for said in subscriptions.values():
            for name, other, own in (
                ("rangeAssignor", said.report.range_assignor, config.range_assignor),
                ("taskAssignor", said.report.task_assignor, config.task_assignor),
            ):
                if other != own and said.ordered:
                    differing.add(
                        f"member {said.name} has {name}={other or 'none'}, and the leader, whose "
                        f"counts, {own or 'none'}: give all members the same"
                    )
        for text in sorted(differing - self._logged):
            self._warn(text)
        self._logged = differing

    def _log_forbidden(self, generation: Generation, whole: Mapping[str, str]) -> None:
        """Warn of topics that policies keep from all members: once, until others are."""
        topics = frozenset(topic for own in generation.forbidden.values() for topic, _ in own)
        for topic in sorted(topics - self._forbidden):
            self._warn(
                f"topic {topic} is assigned to nobody, as members share its partitions "
                f"(consumption.order=none), and the policy {whole[topic]} is false"
            )
        self._forbidden = topics

    def _warn(self, text: str) -> None:
        _log.warning("group %s: %s", self._config.group, text)
