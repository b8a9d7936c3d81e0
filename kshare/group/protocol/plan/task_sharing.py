"""The leader's plan by a task assignor (KIP-924), which sees the members as Kafka Streams' clients.

::

    partitions --range assignor--> ranges = tasks --+
                                                    +--> task assignor --> members' ranges
    members: tags, racks, what they had, lags ------+

Members that share state, as they are on one instance, are a process with a thread for each; which
of them gets which of its tasks is decided here (:func:`dealt_to_threads`), as in Kafka Streams. Any
other member is a process with one thread. A member's previous tasks are the ranges that it had most
of. Topics with the same subscribers are one application, each topic a subtopology of it.

Laws: the ranges of a partition tile its hash space, and each has one member. An answer that is
wrong (an exception, a task that is missing or there twice, an unknown process) is reported, and
members keep what they have; what nobody has any more goes to one of those that have some of its
partition. A round in which members give hashes up is finished before the assignor is asked again,
so it is the last one. The assignor learns what members are sent, once for each round, whatever
becomes of its answer (:meth:`TaskSharing.notify`).
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias

from kshare.assignment import (
    ApplicationState,
    AssignmentConfigs,
    AssignmentError,
    GroupAssignment,
    GroupSubscription,
    HostInfo,
    KafkaStreamsState,
    ProcessId,
    TaskAssignor,
    TaskId,
    TaskInfo,
    TaskTopicPartition,
)
from kshare.assignment import Assignment as TasksOfMember
from kshare.assignment import Subscription as MemberSubscription
from kshare.assignment.loading import ask, notify
from kshare.core.hashing import ALL_HASHES, NO_HASHES, HashRange, KeyRanges
from kshare.core.progress import TopicPartition
from kshare.core.showing import shown
from kshare.core.slicing import PartitionLoad, RangeAssignor, plan_ranges
from kshare.group.protocol.membership.subscription import Assigned, Subscription
from kshare.group.protocol.plan.group_plan import Dealt, GroupPlan, HeldHashes, deal, instances_of
from kshare.group.protocol.plan.load_sharing import ReportedLoads, unfinished
from kshare.group.protocol.plan.range_parts import shared_width, tiles
from kshare.ranges import round_robin

__all__ = ["TaskPlanning", "TaskSharing", "dealt_to_threads"]

_Ranges: TypeAlias = tuple[HashRange, ...]
"""The ranges that a partition is cut into, ascending."""

_PROBING_MS_MIN = 60_000  # of Kafka's AssignmentConfigs


@dataclass(frozen=True, slots=True)
class TaskPlanning:
    """With what a leader plans tasks.

    Attributes:
        assignor: The task assignor.
        name: Its name, for faults.
        assign_ranges: The range assignor.
        configs: The task assignor's configs.
        min_ranges: Minimum number of ranges of all partitions together; None for as many as there
            are members.
        stateful: Whether members keep state by key range.
        probing_ms: Milliseconds until a follow-up rebalance, as an assignor gets it.
        now_ms: Milliseconds since 1970.
        racks: The rack of each broker that has a replica of a partition, None for one without.
        cuts: The ranges that partitions were cut into by the last plan.
    """

    assignor: TaskAssignor
    name: str
    assign_ranges: RangeAssignor
    configs: Mapping[str, str] = field(default_factory=dict)
    min_ranges: int | None = None
    stateful: bool = False
    probing_ms: int = _PROBING_MS_MIN
    now_ms: int = 0
    racks: Mapping[TopicPartition, tuple[str | None, ...]] = field(default_factory=dict)
    cuts: "Mapping[TopicPartition, _Ranges]" = field(default_factory=dict)


class TaskSharing:
    """Deals partitions and ranges of them out as a task assignor says. For one plan.

    Args:
        subscriptions: What each member has said, by its id.
        planning: With what to plan.

    Attributes:
        faults: Why answers could not be used.
        followup_ms: When the assignor wants to be asked again, in ms since 1970; None: not before
            something changes.
        has_failed: Whether the assignor gave no answer that can be used.
        is_unfinished: Whether a round is finished as it was planned before, so that the assignor
            was not asked.
        cuts: The ranges that each partition is cut into, as far as is known.
    """

    def __init__(self, subscriptions: Mapping[str, Subscription], planning: TaskPlanning) -> None:
        self.faults: list[str] = []
        self.followup_ms: int | None = None
        self.has_failed = False
        self.is_unfinished = False
        self.cuts: dict[TopicPartition, _Ranges] = {}
        self._error: AssignmentError | None = None  # of its answers; None: it gave none
        self._subscriptions = subscriptions
        self._planning = planning
        topics = sorted({topic for said in subscriptions.values() for topic in said.topics})
        self._subtopologies = {topic: number for number, topic in enumerate(topics)}

    def deal(
        self,
        partitions: Sequence[TopicPartition],
        members: Sequence[str],
        sharers: Collection[str],
        holdings: HeldHashes,
    ) -> Dealt:
        """Who gets what of partitions that have the same subscribers, as :func:`.deal`."""
        if not partitions:
            return
        cuts = self._planning.cuts
        self.cuts |= {partition: cuts[partition] for partition in partitions if partition in cuts}
        under_way = unfinished(partitions, members, sharers, self._subscriptions)
        if under_way is not None:
            self.is_unfinished = True
            said = [self._subscriptions[member].followup_ms for member in members]
            self._want(min((ms for ms in said if ms is not None), default=None))
            yield from under_way
            return
        try:
            ranges = self._ranges(partitions, members, sharers, holdings)
        except Exception as fault:  # the range assignor may be the user's
            self.faults.append(f"rangeAssignor: {shown(fault)}")
            ranges = dict.fromkeys(partitions, ALL_HASHES)
        self.cuts |= ranges
        assigned = self._assigned(ranges, members, holdings)
        if assigned is None:
            self.has_failed = True
            kept = _kept(partitions, members, sharers, holdings)
            yield from deal(partitions, members, sharers, holdings) if kept is None else kept
            return
        for member, parts in assigned.items():
            for partition, hashes in parts.items():
                yield member, partition, KeyRanges(hashes)

    def notify(self, plan: GroupPlan) -> None:
        """Let the assignor know what members are sent in this round; what it raises is a fault."""
        planning, error = self._planning, self._error or AssignmentError.NONE
        if self.cuts or self.is_unfinished:
            outcome = partial(self._outcome, plan)
            faults = notify(planning.assignor, outcome, error, planning.configs)
            self.faults += [f"taskAssignor {planning.name}{fault}" for fault in faults]

    def _outcome(self, plan: GroupPlan) -> tuple[GroupAssignment, GroupSubscription]:
        """What each member gets in this round, and what it has said."""
        subscriptions = {
            member: MemberSubscription(
                tuple(sorted(said.topics)), tuple(sorted(tp for tp, _ in said.owned)), said.rack
            )
            for member, said in self._subscriptions.items()
        }
        sent = {member: self._tasks_of(assigned) for member, assigned in plan.now.items()}
        return GroupAssignment(sent), GroupSubscription(subscriptions)

    def _tasks_of(self, assigned: Assigned) -> TasksOfMember:
        """What a member is sent, as tasks; a task of which it gets a part is this part."""
        tasks: list[TaskId] = []
        for (topic, number), hashes in assigned.items():
            cut = self.cuts.get(TopicPartition(topic, number), ())
            parts = [both for part in cut for both in hashes & (part,)]
            if sum(part.width for part in parts) != hashes.width:  # another leader has cut it
                parts = list(hashes)
            tasks += (TaskId(self._subtopologies[topic], number, part) for part in parts)
        return TasksOfMember(tuple(sorted(assigned)), tuple(sorted(tasks)))

    def _want(self, followup_ms: int | None) -> None:
        deadlines = [ms for ms in (self.followup_ms, followup_ms) if ms is not None]
        self.followup_ms = min(deadlines, default=None)

    def _ranges(
        self,
        partitions: Sequence[TopicPartition],
        members: Sequence[str],
        sharers: Collection[str],
        holdings: HeldHashes,
    ) -> Mapping[TopicPartition, _Ranges]:
        """The ranges that each partition is cut into; whole if one of the members cannot share."""
        if not sharers or set(members) - set(sharers):
            return dict.fromkeys(partitions, ALL_HASHES)
        reported = ReportedLoads({member: self._subscriptions[member] for member in members})
        loads = [reported.load(partition) for partition in partitions]
        cut = self._cut(loads, len(members))
        assign_ranges = self._planning.assign_ranges
        if assign_ranges is round_robin:
            return cut
        loads = [_as_cut(load, holdings, members, len(cut[load.topic_partition])) for load in loads]
        min_tasks = max(self._planning.min_ranges or 0, len(members))
        return plan_ranges(loads, assign_ranges, min_tasks=min_tasks, key_ranges=None)

    def _cut(self, loads: Sequence[PartitionLoad], members: int) -> dict[TopicPartition, _Ranges]:
        """Equal ranges, topic by topic: of each as many as there are members, or partitions."""
        least, cut = self._planning.min_ranges or 0, dict[TopicPartition, _Ranges]()
        for _, group in groupby(loads, key=lambda load: load.topic_partition.topic):
            of_topic = tuple(group)
            share = -(-least * len(of_topic) // len(loads))
            cut |= plan_ranges(
                of_topic, round_robin, min_tasks=max(members, share), key_ranges=None
            )
        return cut

    def _assigned(
        self,
        ranges: Mapping[TopicPartition, _Ranges],
        members: Sequence[str],
        holdings: HeldHashes,
    ) -> dict[str, dict[TopicPartition, list[HashRange]]] | None:
        """The ranges of each member; None if there is no answer that can be used."""
        planning = self._planning
        try:
            tasks = self._tasks(ranges)
            previous = _previous(tasks, members, holdings)
            processes = self._processes(members)
            state = self._state(tasks, processes, previous)
        except ValueError as fault:
            self.faults.append(f"taskAssignor {planning.name}: {fault}")
            return None
        answer = ask(lambda: planning.assignor, state, planning.configs)
        self.faults += [f"taskAssignor {planning.name}{fault}" for fault in answer.faults]
        if self._error in (None, AssignmentError.NONE):
            self._error = answer.error
        if answer.assignment is None:
            return None
        self._want(answer.followup_ms)
        assigned: dict[str, dict[TopicPartition, list[HashRange]]] = {}
        for entry in answer.assignment.assignment:
            threads = {member: previous[member] for member in processes[entry.process_id]}
            for member, own in dealt_to_threads(entry.active, threads).items():
                parts: dict[TopicPartition, list[HashRange]] = defaultdict(list)
                for task in own:
                    partition, hashes = tasks[task]
                    parts[partition].append(hashes)
                assigned[member] = parts
        return assigned

    def _processes(self, members: Sequence[str]) -> dict[ProcessId, list[str]]:
        """The members of each process, which has the name of the first one.

        A process has one rack and the same tags, so members with others are processes of their own.

        Raises:
            ValueError: Two processes would have the same name.
        """
        said = self._subscriptions
        # Without state, parts of a partition have no reason to meet, unless members say that they
        # are one: two consumers on a host are two processes in Kafka Streams, too.
        instances = {member: each.instance for member, each in said.items() if each.instance}
        if self._planning.stateful:
            instances = instances_of(said)
        together: dict[tuple[Any, ...], list[str]] = defaultdict(list)
        for member in members:
            alike = said[member].report.tags, said[member].rack
            is_one = member in instances
            together[(instances[member], *alike) if is_one else (member,)].append(member)
        processes = {ProcessId(said[own[0]].name): own for own in together.values()}
        if len(processes) < len(together):
            raise ValueError("two members have the same session's id")
        return processes

    def _tasks(
        self, ranges: Mapping[TopicPartition, _Ranges]
    ) -> dict[TaskId, tuple[TopicPartition, HashRange]]:
        """The partition and the hashes of each task: topics are the subtopologies, in order."""
        return {
            TaskId(self._subtopologies[partition.topic], partition.partition, hashes): (
                partition,
                hashes,
            )
            for partition, parts in ranges.items()
            for hashes in parts
        }

    def _state(
        self,
        tasks: Mapping[TaskId, tuple[TopicPartition, HashRange]],
        processes: Mapping[ProcessId, Sequence[str]],
        previous: Mapping[str, Sequence[TaskId]],
    ) -> ApplicationState:
        planning = self._planning
        infos = [
            TaskInfo(
                task,
                is_stateful=planning.stateful,
                topic_partitions=(
                    TaskTopicPartition(partition, replica_racks=planning.racks.get(partition)),
                ),
            )
            for task, (partition, _) in tasks.items()
        ]
        states = [
            self._process(process, {member: frozenset(previous[member]) for member in own}, tasks)
            for process, own in processes.items()
        ]
        probing = {"probing.rebalance.interval.ms": max(planning.probing_ms, _PROBING_MS_MIN)}
        configs = AssignmentConfigs.from_configs({**probing, **planning.configs})
        return ApplicationState.of(infos, states, configs, now_ms=planning.now_ms)

    def _process(
        self,
        process: ProcessId,
        previous: Mapping[str, frozenset[TaskId]],
        tasks: Mapping[TaskId, tuple[TopicPartition, HashRange]],
    ) -> KafkaStreamsState:
        said = self._subscriptions[next(iter(previous))]
        lags: dict[TaskId, int] = {}
        for member, own in previous.items():
            known = dict(self._subscriptions[member].report.lags)
            lags |= {task: known[tasks[task][0]] for task in sorted(own) if tasks[task][0] in known}
        return KafkaStreamsState(
            process,
            num_processing_threads=len(previous),
            consumer_client_ids=tuple(sorted(previous)),
            previous_active_tasks=frozenset[TaskId]().union(*previous.values()),
            client_tags=dict(said.report.tags),
            rack_id=said.rack,
            host_info=_host_info(said.host),
            task_lags=lags,
            tasks_by_consumer=previous,
        )


def dealt_to_threads(
    tasks: Collection[TaskId], threads: Mapping[str, Sequence[TaskId]]
) -> dict[str, list[TaskId]]:
    """The tasks of each member of a process: evenly many, and as far as that goes those it had.

    Args:
        tasks: The tasks of the process.
        threads: The previous tasks of each member.
    """
    least, extra = divmod(len(tasks), len(threads))
    wanted, dealt = set(tasks), dict[str, list[TaskId]]()
    had = {member: [task for task in own if task in wanted] for member, own in threads.items()}
    for member in sorted(threads, key=lambda member: -len(had[member])):  # sorting is stable
        dealt[member] = had[member][: least + (extra > 0)]
        extra -= len(dealt[member]) > least
    kept = {task for own in dealt.values() for task in own}
    rest = [task for task in sorted(tasks) if task not in kept]
    for member in threads:  # next to each other, so that few of them share a partition
        count = max(least + (extra > 0) - len(dealt[member]), 0)
        extra -= len(dealt[member]) <= least < len(dealt[member]) + count
        dealt[member] = sorted([*dealt[member], *rest[:count]])
        del rest[:count]
    return dealt


def _kept(
    partitions: Sequence[TopicPartition],
    members: Sequence[str],
    sharers: Collection[str],
    holdings: HeldHashes,
) -> list[tuple[str, TopicPartition, KeyRanges]] | None:
    """What members have, and what nobody has; None if they have nothing, or may not keep it."""
    owned = {
        partition: {m: hashes for m, hashes in holdings.get(partition, {}).items() if m in members}
        for partition in partitions
    }
    if not any(owned.values()):
        return None
    widths = dict.fromkeys(members, 0)
    for held in owned.values():
        for member, hashes in held.items():
            widths[member] += hashes.width
    kept = []
    for partition, held in owned.items():
        parts: dict[str, KeyRanges] = dict(held)
        for free in ALL_HASHES - [part for hashes in held.values() for part in hashes]:
            member = min(held or members, key=lambda each: (widths[each], each))
            parts[member] = parts.get(member, NO_HASHES) | [free]
            widths[member] += free.width
        if len(parts) > 1 and not parts.keys() <= set(sharers):
            return None
        kept += [(member, partition, hashes) for member, hashes in parts.items()]
    return kept


def _as_cut(
    load: PartitionLoad, holdings: HeldHashes, members: Sequence[str], count: int
) -> PartitionLoad:
    """A partition's load; with the ranges that members have, if nothing is known of their work."""
    held = holdings.get(load.topic_partition, {})
    parts = [held[member] for member in members if member in held]
    cut = tuple(sorted(part for hashes in parts for part in hashes))
    is_known = any(seen.records for seen in load.observed)
    if is_known or len(cut) != count or not tiles(parts):
        return load
    return replace(load, fixed_ranges=cut)


def _previous(
    tasks: Mapping[TaskId, tuple[TopicPartition, HashRange]],
    members: Sequence[str],
    holdings: HeldHashes,
) -> dict[str, list[TaskId]]:
    """The tasks that each member had most of: ranges may have been cut otherwise then."""
    previous: dict[str, list[TaskId]] = {member: [] for member in members}
    for task, (partition, hashes) in tasks.items():
        held = holdings.get(partition, {})
        shares = {
            member: shared_width(hashes, held[member]) for member in members if member in held
        }
        most = max(shares, key=lambda member: shares[member], default=None)
        if most is not None and shares[most]:
            previous[most].append(task)
    return previous


def _host_info(host: str) -> HostInfo | None:
    """The address of ``application.server``; None if a member has said only its host's name."""
    name, _, port = host.rpartition(":")
    is_address = name and port.isascii() and port.isdigit()
    return HostInfo(name.strip("[]"), int(port)) if is_address else None
