"""The micro-batches of one query.

Law: holds nothing that a restart would miss. Ranges that stand at different offsets, and the ends
of limited batches, are in the offset dict or follow from it and the log.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from secrets import token_hex
from typing import Any

from kshare.cluster.cluster import Cluster
from kshare.cluster.group_offsets import committer
from kshare.cluster.parked_keys import ParkWatch
from kshare.core.admission import admit, should_wait
from kshare.core.checkpoint import Offsets, RangeLimit, decode, encode
from kshare.core.hashing import WHOLE, HashRange, complement, key_hash, without
from kshare.core.progress import Progress, Rectangle, Slice, TopicPartition
from kshare.core.slicing import PartitionLoad, plan_ranges
from kshare.errors import CheckpointError
from kshare.feedback.server import FeedbackServer
from kshare.monitor.report import encode_report, partition_report
from kshare.options import Earliest, PerPartition, SourceOptions
from kshare.planner.cutting import cut_by_records
from kshare.planner.data_loss import LossGuard
from kshare.planner.end_offsets import (
    Scan,
    Settler,
    limited_tasks,
    scan_log,
    unassigned_hashes,
)
from kshare.planner.offset_options import PinnedView, resolve
from kshare.planner.rate_controller import Pacer
from kshare.planner.retention import RetentionWatch
from kshare.planner.task_order import Placement
from kshare.planner.tasks import Task, allowed_hashes, batch_name, chosen_ranges, with_fetch_groups
from kshare.ranges import load_range_assignor

__all__ = ["StreamPlanner"]

_log = logging.getLogger("kshare.planner")

_REMEMBERED = 2
Parked = Mapping[str, frozenset[int]]


class StreamPlanner:
    """Plans the micro-batches of one query.

    Args:
        options: the query's.
        cluster: where the topics are.
        parking: where parked keys are kept; None reads Kafka's.
        feedback: what tasks report to; None starts one when it is needed.
        scan: finds the end of a limited slice in the log.
        clock: seconds, for the speed of batches.
    """

    def __init__(
        self,
        options: SourceOptions,
        cluster: Cluster,
        *,
        parking: ParkWatch | None = None,
        feedback: FeedbackServer | None = None,
        scan: Scan = scan_log,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._view: Cluster | PinnedView = cluster
        self._loss = LossGuard(fail=options.fail_on_data_loss)
        self._pacer = Pacer(options, feedback, clock=clock)
        self._clock = clock
        self._went: float | None = None  # when a trigger last did not wait for more
        self._commits = committer(options)
        self._parking = parking or ParkWatch(options.kafka)
        self._placement = Placement(options, clock=clock)
        self._last: tuple[str, tuple[Task, ...]] = ("", ())
        self._always_parked = frozenset(key_hash(key, 0) for key in options.parked_keys)
        self._retention = RetentionWatch(cluster)
        self._settler = Settler(options, scan)
        self._seen: dict[TopicPartition, int] = {}
        self._ran: deque[str] = deque(maxlen=_REMEMBERED)  # batches whose tasks were planned here
        # What this planner wrote last, so that it need not read it again: it may be megabytes.
        self._written: dict[str, tuple[Offsets, list[Task]]] = {}
        self._compacted: dict[str, bool] = {}
        self._shown: Offsets | None = None
        self._run = token_hex(8)  # by which tasks on a host know their fetch group
        self._has_fetch_groups = False

    def initial_offsets(self) -> dict[str, Any]:
        """Where the query starts: partitions that have started, but made no progress yet.

        Spark does not write this down. So it holds nothing but the start, which
        :meth:`latest_offsets` carries over into the dict of batch 0, and that one is written.
        """
        partitions = self._view.partitions(self._options.topics)
        starts = resolve(
            self._options, "startingOffsets", self._options.starting, partitions, self._view
        )
        return encode(Offsets(progress={}, started=starts))

    def pin_latest(self) -> None:
        """Trigger.AvailableNow: what is there now is all that this run will read."""
        partitions = self._cluster.partitions(self._options.topics)
        self._view = PinnedView(self._cluster, self._cluster.latest(partitions))

    def latest_offsets(
        self, start: Mapping[str, Any], max_offsets: int | None, *, may_wait: bool = False
    ) -> dict[str, Any]:
        """The end of the next batch.

        Args:
            start: the dict of the batch before, or of :meth:`initial_offsets`.
            max_offsets: the limit of the batch, over all partitions; None is none.
            may_wait: whether ``minOffsetsPerTrigger`` counts in this trigger.

        Raises:
            DataLossError: partitions or offsets are gone, and ``failOnDataLoss`` is true.
        """
        name = batch_name(start)
        before, tasks = self._read(name, start)
        available = self._view.latest(self._view.partitions(self._options.topics))
        self._placement.saw(self._last[1], self._pacer.executors(self._last[0]))
        settled = self._settled(name, before, tasks)
        if self._commits is not None:
            self._commits.commit({place: reached.stable for place, reached in settled.items()})
        if may_wait and self._waits(settled, before, available):
            self._seen = available
            return dict(start)
        progress, started = self._begin(settled, before, available)
        available = {place: available[place] for place in progress}
        self._seen = available
        self._retention.look(progress, available, started)
        parked = self._parked({place.topic for place in progress})
        ends = self._ends(progress, available, parked, max_offsets)
        limited: list[Task] = []
        if self._options.limits_records:
            after, limited = self._limited(progress, started, ends, parked)
        else:
            reached = {
                place: self._advanced(place, progress[place], end, parked)
                for place, end in ends.items()
            }
            after = Offsets(progress=reached, started=started)
        self._shown = after
        written = encode(after)
        while len(self._written) >= _REMEMBERED:
            del self._written[next(iter(self._written))]
        self._written[batch_name(written)] = (after, limited)
        return written

    def seen_offsets(self) -> dict[str, Any] | None:
        """The ends of partitions, for Spark's progress report, as Spark's own source tells them.

        Beside them the ranges of partitions that are uneven, limited, observed or at risk.
        """
        if not self._seen:
            return None
        shown = self._shown or Offsets(progress={})
        reports = {}
        for place, reached in shown.progress.items():
            limits, observed = shown.limits.get(place, ()), self._pacer.observed(place)
            at_risk = place in self._retention.at_risk
            if place in self._seen and (limits or observed or at_risk or not reached.is_level):
                end = self._seen[place]
                reports[place] = partition_report(end, reached, limits, observed, at_risk=at_risk)
        return encode_report(reports, self._seen)

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> tuple[Task, ...]:
        """The tasks of the batch between two dicts.

        Raises:
            CheckpointError: the two do not say where a partition starts.
        """
        begun, name = batch_name(start), batch_name(end)
        self._ran.append(name)
        before, limited_before = self._read(begun, start)
        after, limited = self._read(name, end)
        settled = self._settled(begun, before, limited_before)
        tasks = list(limited)
        loads = []
        for place, reached in sorted(after.progress.items()):
            if place in after.limits:
                continue
            pending = reached.minus(self._begun(place, settled, before, after))
            if pending:
                loads.append(self._load(place, pending))
        tasks += [Task(slice_) for slice_ in cut_by_records(self._options, loads)]
        planned = self._pacer.began(name, tasks, asks=self._placement.asks(tasks))
        planned = with_fetch_groups(self._options, self._run, name, planned)
        self._has_fetch_groups |= any(task.fetch_group is not None for task in planned)
        self._last = (name, planned)
        return self._placement.ordered(planned)

    def close(self) -> None:
        """Let go of the cluster, and of what tasks have fetched for each other on this host."""
        if self._has_fetch_groups:
            from kshare.wire.sharing.chunks import forget_query  # noqa: PLC0415 - most do without

            forget_query(self._run)
        self._pacer.close()
        self._parking.close()
        if self._commits is not None:
            self._commits.close()
        self._cluster.close()

    def _read(self, name: str, value: Mapping[str, Any]) -> tuple[Offsets, list[Task]]:
        """What a dict says, and the tasks of its limits."""
        known = self._written.get(name)
        if known is not None:
            return known
        offsets = decode(value)
        self._compare_assigned(offsets)
        return offsets, limited_tasks(offsets)

    def _compare_assigned(self, offsets: Offsets) -> None:
        """A hash that no query read stands as far as any: one that is behind was read by the last.

        Only dicts of a run before this one are read, and compared: a planner knows its own.
        """
        for place, reached in offsets.progress.items():
            if not reached.is_level:
                unassigned = unassigned_hashes(self._options, place)
                pending = reached.pending_of(reached.front, unassigned)
                if pending:
                    self._loss.no_longer_assigned(place, pending)

    def _waits(
        self,
        settled: Mapping[TopicPartition, Progress],
        before: Offsets,
        available: Mapping[TopicPartition, int],
    ) -> bool:
        """Whether there is not enough to read yet (``minOffsetsPerTrigger``)."""
        least = self._options.min_offsets_per_trigger
        if least is None or before.limits:  # ranges that are behind need no new offsets
            return False
        now = self._clock()
        if should_wait(
            {place: reached.stable for place, reached in settled.items()} or before.started,
            available,
            min_offsets=least,
            max_delay_seconds=self._options.max_trigger_delay_seconds,
            seconds_since_batch=None if self._went is None else now - self._went,
        ):
            return True
        self._went = now
        return False

    def _settled(
        self, name: str, before: Offsets, tasks: list[Task]
    ) -> dict[TopicPartition, Progress]:
        """How far each partition is when the batch of a dict is done."""
        told = self._pacer.ended(name)
        return self._settler.settle(name, before, tasks, told, ran_here=name in self._ran)

    # -- where the batch begins -------------------------------------------------------------

    def _begin(
        self,
        settled: Mapping[TopicPartition, Progress],
        before: Offsets,
        available: Mapping[TopicPartition, int],
    ) -> tuple[dict[TopicPartition, Progress], dict[TopicPartition, int]]:
        """How far each partition is, and which of them begin with this batch, and where."""
        progress, started = dict(settled), {}
        if not progress:  # the first batch: the dict must carry its start
            started = dict(before.started)
        new = available.keys() - progress.keys() - started.keys()
        if new:
            started.update(self._start_new(sorted(new)))
        for place, offset in started.items():
            progress[place] = Progress.at(offset)
        progress = self._loss.without_deleted(progress, available)
        uneven = [place for place, reached in progress.items() if not reached.is_level]
        if uneven:
            progress = self._loss.without_trimmed(progress, self._view.earliest(uneven))
        return progress, {place: at for place, at in started.items() if place in progress}

    def _start_new(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Partitions that came up while the query runs are read from their first record."""
        earliest = self._view.earliest(partitions)
        for place, offset in earliest.items():
            if offset > 0:
                self._loss.new(place, offset)
        _log.info("new partitions, read from their earliest offsets: %s", _names(earliest))
        return earliest

    def _begun(
        self,
        place: TopicPartition,
        settled: Mapping[TopicPartition, Progress],
        before: Offsets,
        after: Offsets,
    ) -> Progress:
        """Where a partition stands when the batch begins."""
        if place in after.started:
            return Progress.at(after.started[place])
        if place in settled:
            return settled[place]
        if place in before.started:
            return self._begun_by_spark(place, before.started[place])
        raise CheckpointError(
            f"the checkpoint does not say where {place} starts: it is in a batch's offsets, but "
            "not in those of the batch before"
        )

    def _begun_by_spark(self, place: TopicPartition, offset: int) -> Progress:
        """Batch 0 was planned by another source, which kept its start elsewhere.

        The start is known all the same if the options give it, or if nothing was trimmed.
        """
        starting = self._options.starting
        exact = isinstance(starting, PerPartition) and isinstance(starting.offsets.get(place), int)
        untouched = isinstance(starting, Earliest) and offset == 0
        if exact or untouched:
            return Progress.at(offset)
        raise CheckpointError(
            f"batch 0 of this checkpoint was planned by another source and not finished, so where "
            f"{place} started is not known here. Let format('kafka') finish that batch (start it "
            "once, then stop it), and switch then."
        )

    # -- where the batch ends ---------------------------------------------------------------

    def _ends(
        self,
        progress: Mapping[TopicPartition, Progress],
        available: Mapping[TopicPartition, int],
        parked: Parked,
        max_offsets: int | None,
    ) -> dict[TopicPartition, int]:
        """Below which offset each partition is read, whatever its ranges may do below it."""
        front, top = {}, {}
        for place, reached in progress.items():
            bound = available[place]
            if self._has_too_many_gaps(place, reached, parked):
                bound = reached.front  # those that lag first, until the gaps are fewer
            if self._options.max_offsets_ahead is not None:
                slowest = self._slowest(place, reached, parked)
                bound = min(bound, slowest + self._options.max_offsets_ahead)
            top[place] = max(bound, reached.stable)
            front[place] = min(reached.front, top[place])
        return admit(front, top, max_offsets)

    def _has_too_many_gaps(self, place: TopicPartition, reached: Progress, parked: Parked) -> bool:
        """Whether individual commits are at their limit, and reading can make them fewer."""
        if reached.is_level or reached.gaps < self._options.max_ranges_in_checkpoint:
            return False
        return bool(reached.pending_of(reached.front, self._readable(place, parked)))

    def _slowest(self, place: TopicPartition, reached: Progress, parked: Parked) -> int:
        """The position of the slowest range. Parked keys do not count: they would stop all."""
        if reached.is_level:
            return reached.stable
        hashes = self._readable(place, parked)
        return reached.position_of(hashes) if hashes else reached.stable

    def _advanced(
        self, place: TopicPartition, reached: Progress, end: int, parked: Parked
    ) -> Progress:
        if not parked.get(place.topic):
            return reached.advance(end)
        unassigned = complement(allowed_hashes(self._options, place))
        offsets = reached.pending_of(end, self._readable(place, parked))
        return reached.commit([*offsets, *reached.pending_of(end, unassigned)])

    def _limited(
        self,
        progress: dict[TopicPartition, Progress],
        started: dict[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        parked: Parked,
    ) -> tuple[Offsets, list[Task]]:
        """A batch with record limits: where it begins, and its tasks."""
        loads = [
            self._load(place, pending)
            for place, reached in progress.items()
            if (pending := reached.pending_of(ends[place], self._readable(place, parked)))
        ]
        ranges = plan_ranges(
            loads,
            load_range_assignor(self._options.range_assignor),
            min_tasks=self._options.min_partitions,
            key_ranges=self._options.key_ranges,
        )
        records = self._pacer.limits(ranges)
        limits: dict[TopicPartition, tuple[RangeLimit, ...]] = {}
        tasks: dict[TopicPartition, list[Task]] = {}
        for load in loads:
            place = load.topic_partition
            points = parked.get(place.topic, frozenset())
            found, planned = [], []
            for hashes, n in zip(ranges[place], records[place], strict=True):
                parts = without((hashes,), points)
                pending = progress[place].pending_of(ends[place], parts)
                if pending:
                    found.append(RangeLimit(parts, ends[place], n))
                    planned.append(Task(Slice(place.topic, place.partition, pending), n))
            limits[place], tasks[place] = tuple(found), planned
        eager = [place for place in limits if self._is_compacted(place.topic)]
        if eager:
            chosen = [task for place in eager for task in tasks.pop(place)]
            progress = {**progress, **self._settler.scanned(progress, chosen)}
            limits = {place: given for place, given in limits.items() if place not in set(eager)}
        started = {place: at for place, at in started.items() if place not in limits}
        offsets = Offsets(
            progress=progress,
            started=started,
            limits=limits,
            read_committed=bool(limits) and self._options.kafka.read_committed,
        )
        return offsets, [task for place in sorted(tasks) for task in tasks[place]]

    def _is_compacted(self, topic: str) -> bool:
        """Whether records of a topic vanish from its middle; if that cannot be found out, yes."""
        if topic not in self._compacted:
            policy = self._cluster.policies([topic]).get(topic)
            if policy is None:
                _log.info("cannot see whether %s is compacted: limits are found by scanning", topic)
            self._compacted[topic] = policy is None or policy.compacted
        return self._compacted[topic]

    # -- key hashes -------------------------------------------------------------------------

    def _parked(self, topics: set[str]) -> Parked:
        """The hashes of the keys that are parked, by topic."""
        parked = {topic: set(self._always_parked) for topic in topics}
        for topic, key in self._parking.current(topics):
            parked[topic].add(key_hash(key, 0))
        return {topic: frozenset(hashes) for topic, hashes in parked.items()}

    def _readable(self, place: TopicPartition, parked: Parked) -> tuple[HashRange, ...]:
        return without(allowed_hashes(self._options, place), parked.get(place.topic, frozenset()))

    def _load(self, place: TopicPartition, pending: tuple[Rectangle, ...]) -> PartitionLoad:
        allowed = allowed_hashes(self._options, place)
        if allowed != (WHOLE,):
            pieces = [
                Rectangle(piece.offsets, shared)
                for piece in pending
                for part in allowed
                if (shared := piece.hashes.intersect(part)) is not None
            ]
            pending = tuple(pieces)
        return PartitionLoad(
            topic=place.topic,
            partition=place.partition,
            pending=pending,
            allowed=chosen_ranges(self._options, place),
            observed=self._pacer.observed(place),
        )


def _names(partitions: Any) -> str:
    shown = [f"{topic}-{partition}" for topic, partition in sorted(partitions)]
    more = f" and {len(shown) - 10} more" if len(shown) > 10 else ""
    return ", ".join(shown[:10]) + more
