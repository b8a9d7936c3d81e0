"""The rate of a stream: hands out tickets, collects what tasks report, and sets the next limits.

What is learned is a hint, never a fact. What gets lost (a restart, a message) changes how fast
ranges go, and nothing else. What tasks report is joined to what they read by the slice.
Cost: linear in the slices of a batch.
"""

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kshare.core.hashing import HashRange
from kshare.core.progress import Slice, TopicPartition
from kshare.core.range_speed import RangeSpeed
from kshare.core.rate import LastBatch, PlannedLimits, learn_from, plan_limits
from kshare.core.slice_end import SliceEnd
from kshare.core.slicing import RangeObservation
from kshare.core.tasks import PlannedSlice
from kshare.options import SourceOptions
from kshare.query.feedback.messages import Executor
from kshare.query.feedback.server import FeedbackServer
from kshare.query.planner.batch_history import RecentBatch, Run
from kshare.ranges import BY_PENDING

__all__ = ["RateController"]

# Messages are on their way when a batch ends; those of processes that end with it, a bit longer.
_WAIT_SECONDS = 0.25
_WAIT_HELD_SECONDS = 1.0
# Where only reports show what tasks did, a task is measured this often: its worker ends with it.
_SHOW_TIMES_EVERY_SECONDS = 60.0


class RateController:
    """Hands out tickets to tasks, collects their reports, and sets the limits of ranges by them.

    It starts the server that tasks report to, decides which of them are measured, and keeps what
    progress events show of ranges.

    Args:
        options: The query's options.
        feedback: What tasks report to; None starts a server when it is needed.
        clock: Seconds.
    """

    def __init__(
        self,
        options: SourceOptions,
        feedback: FeedbackServer | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._clock = clock
        self._feedback = feedback
        self._last = LastBatch()
        self._shown = _ShownRanges()

    @property
    def _needs_reports(self) -> bool:
        """True if the next batches depend on what tasks report."""
        return self._options.limits_records or self._options.range_assignor not in BY_PENDING

    def observed(self, partition: TopicPartition) -> tuple[RangeObservation, ...]:
        """Tasks' reports on a partition's ranges, ascending."""
        return self._last.observed.get(partition, ())

    def shown(self, partition: TopicPartition) -> Sequence[RangeObservation]:
        """A partition's ranges in progress events, used for limits or not."""
        return self.observed(partition) or self._shown.ranges.get(partition, ())

    def limits(self, ranges: Mapping[TopicPartition, Sequence[HashRange]]) -> PlannedLimits:
        """The limit of each range in the next batch; changes nothing.

        Args:
            ranges: The ranges of the next batch by partition, ascending, disjoint.
        """
        return plan_limits(
            self._last,
            ranges,
            target_seconds=self._options.target_task_seconds,
            max_records=self._options.max_records_per_task,
        )

    def start_batch(
        self,
        batch: RecentBatch,
        slices: Sequence[PlannedSlice],
        recent: Collection[str] = (),
        *,
        locate: bool = False,
    ) -> Run:
        """Hand out tickets: a batch is about to run.

        Args:
            batch: The batch.
            slices: What its tasks will read.
            recent: The batches whose reports are still wanted; this one is in any case.
            locate: Whether tasks shall report where they run, even if nothing else depends on them.
        """
        shows = not self._needs_reports and self._shown.has_answers and _share_partitions(slices)
        if slices and (self._needs_reports or locate or shows) and self._starts_listening():
            assert self._feedback is not None
            self._feedback.retain({*recent, batch.name})
            measured = batch.limits.measured
            # A measured slice has a task of its own, so with maxTasks there would be more tasks.
            holds_all = (
                shows
                and self._options.max_tasks is None
                and self._clock() >= self._shown.measure_at
            )
            if holds_all:
                measure_at = self._clock() + _SHOW_TIMES_EVERY_SECONDS
                self._shown = replace(self._shown, measure_at=measure_at)
            numbered = []
            for number, planned in enumerate(slices):
                tp = planned.slice.topic_partition
                hold = holds_all or _range_of(batch.limits, planned.slice) in measured.get(tp, ())
                ticket = self._feedback.ticket(batch.name, number, hold=hold)
                numbered.append(replace(planned, ticket=ticket))
            slices = numbered
        return Run(tuple(slices), self._clock(), not self._needs_reports and not shows)

    def finish_batch(self, batch: RecentBatch) -> dict[Slice, SliceEnd]:
        """Wait for what the tasks of a batch report, and learn from it; to be called once.

        Returns:
            Where they ended, by their slices, as far as is known.
        """
        ended, run = self._clock(), batch.run
        if run is None or not run.slices:
            return {}
        reports = self._reports(batch, run)
        ends = {
            planned.slice: reports[planned.ticket.number]
            for planned in run.slices
            if planned.ticket is not None and planned.ticket.number in reports
        }
        observed = self._observations(batch, run, ends)
        # Of packed tasks, only some slices report then: what they read is not that of all ranges.
        is_partial = run.locates_only and self._options.max_tasks is not None
        self._shown = self._shown.see(observed, is_partial=is_partial)
        # Workers that had to start do not make a batch slow.
        began = max((end.began for end in ends.values() if end.began is not None), default=0.0)
        self._last = learn_from(
            self._last.of(batch.offsets.progress),  # not of partitions that are gone
            batch.limits,
            observed if self._needs_reports else {},
            tasks=len(run.slices),
            seconds=ended - max(began, run.started),
            target_seconds=self._options.target_task_seconds,
        )
        return ends

    def speed_in(self, batch: RecentBatch) -> Callable[[PlannedSlice], float | None]:
        """Speeds of a batch's slices: seconds per record, None if unknown."""

        def seconds_per_record(planned: PlannedSlice) -> float | None:
            speed = _speed_of(batch.limits, planned.slice)
            return None if speed is None else speed.seconds_per_record

        return seconds_per_record

    def executors(self, batch: RecentBatch) -> dict[Slice, Executor]:
        """Reported executors of a batch's tasks, by slice."""
        if self._feedback is None or batch.run is None:
            return {}
        known = self._feedback.executors(batch.name)
        return {
            planned.slice: known[planned.ticket.number]
            for planned in batch.run.slices
            if planned.ticket is not None and planned.ticket.number in known
        }

    def close(self) -> None:
        """Stop listening."""
        if self._feedback is not None:
            self._feedback.close()

    def _starts_listening(self) -> bool:
        if self._feedback is None:
            self._feedback = FeedbackServer(self._options.kafka.bootstrap_servers[0])
        return self._feedback.start()

    def _reports(self, batch: RecentBatch, run: Run) -> Mapping[int, SliceEnd]:
        """The reports of a batch's tasks; waits for them if something depends on it."""
        if self._feedback is None or all(planned.ticket is None for planned in run.slices):
            return {}
        is_held = any(planned.ticket and planned.ticket.hold for planned in run.slices)
        if self._needs_reports:
            wait = _WAIT_HELD_SECONDS if is_held else _WAIT_SECONDS
        else:
            wait = _WAIT_SECONDS if is_held else 0.0
        return self._feedback.reports(batch.name, wait_seconds=wait)

    def _observations(
        self, batch: RecentBatch, run: Run, ends: Mapping[Slice, SliceEnd]
    ) -> dict[TopicPartition, list[RangeObservation]]:
        observed: defaultdict[TopicPartition, list[RangeObservation]] = defaultdict(list)
        for planned in run.slices:
            slice_, end = planned.slice, ends.get(planned.slice)
            if end is not None:
                observed[slice_.topic_partition].append(
                    RangeObservation(
                        _range_of(batch.limits, slice_),
                        end.records,
                        max(end.end - slice_.offsets.start, 1),
                        end.task_seconds,
                        end.sample,
                        planned.max_records,
                        end.hot_keys,
                    )
                )
        return observed


@dataclass(frozen=True, slots=True)
class _ShownRanges:
    """Ranges in progress events, where nothing depends on tasks' reports.

    Attributes:
        ranges: The ranges of each partition as the last batch has read them.
        has_answers: Whether tasks have reported before: they do not where a firewall is.
        measure_at: When tasks are to be measured again, by the planner's clock.
    """

    ranges: Mapping[TopicPartition, Sequence[RangeObservation]] = field(default_factory=dict)
    has_answers: bool = False
    measure_at: float = float("-inf")

    def see(
        self,
        observed: Mapping[TopicPartition, Sequence[RangeObservation]],
        *,
        is_partial: bool = False,
    ) -> "_ShownRanges":
        """Keep the reports of a batch to show; none if only some of its slices were to report."""
        has_answers = self.has_answers or bool(observed)
        return replace(self, ranges={} if is_partial else observed, has_answers=has_answers)


def _share_partitions(slices: Sequence[PlannedSlice]) -> bool:
    """True if some slices are of one partition."""
    return len({planned.slice.topic_partition for planned in slices}) < len(slices)


def _range_of(limits: PlannedLimits, slice_: Slice) -> HashRange:
    """The planned range that a slice is of: wider if some of it was not pending."""
    speed = _speed_of(limits, slice_)
    return slice_.hashes if speed is None else speed.hashes


def _speed_of(limits: PlannedLimits, slice_: Slice) -> RangeSpeed | None:
    """The speed of a slice's range; None if no limits were planned for it."""
    hashes = slice_.hashes
    speeds = limits.speeds.get(slice_.topic_partition, ())
    number = bisect_right(speeds, hashes.lo, key=_lowest) - 1
    if number >= 0 and hashes.hi <= speeds[number].hashes.hi:
        return speeds[number]
    return None


def _lowest(speed: RangeSpeed) -> int:
    return speed.hashes.lo
