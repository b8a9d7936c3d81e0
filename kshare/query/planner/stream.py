"""The micro-batches of one query: ask, decide, write.

::

    Spark calls          the planner                                           a batch is
    -------------------  ----------------------------------------------------  --------------------
    initialOffset        resolve startingOffsets; nothing is written down; an error is kept
                         for latestOffset
                                                                               (none yet)
    latestOffset(start)  finish the batch of ``start``: wait for reports,
                         learn from them, find what they do not say  --------> done: its progress
                         ask the cluster: partitions, ends, parked keys        is known
                         wait?  yes: the answer is ``start`` again
                         decide (core/batch.py, core/rate.py): where the next
                         batch begins and ends, its ranges and limits
                         nothing to read?  the answer is ``start`` again
                         write the dict  ------------------------------------> planned: the dict
    (the dict is in Spark's offset log from here on)                           says all it reads
    partitions(start,    read both dicts, cut what lies between into slices,
               end)      hand out tickets, pack and order the tasks  --------> running
    (tasks read and report; Spark commits the batch)

    killed here or there: another planner reads the same dicts, plans the same slices, and looks
    into the log for what was not reported.

Guarantees: nothing is held here that a restart would miss. Ranges that stand at different offsets,
and the ends of limited batches, are in the dict or follow from it and the log.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Final

from kshare.core.batch import (
    BatchStart,
    advanced,
    begin,
    implied_starts,
    is_idle,
    limit_ranges,
    needs_earliest,
    start_of,
    surely_read_whole,
    unwritten_starts,
    with_gaps,
    written_starts,
)
from kshare.core.checkpoint import BatchOffsets, encode
from kshare.core.listing import join_names
from kshare.core.losses import new_partitions
from kshare.core.progress import Progress, TopicPartition
from kshare.core.rate import PlannedLimits
from kshare.core.tasks import OpenTask, PlannedSlice, Task
from kshare.errors import DataLossError, OptionsError
from kshare.kafka.committer import Committer, committer
from kshare.kafka.parked_keys import ParkWatch
from kshare.kafka.policies import PolicyWatch
from kshare.options import SourceOptions
from kshare.query.feedback.server import FeedbackServer
from kshare.query.planner.batch_bounds import BatchBounds, BatchEnd, TriggerGate
from kshare.query.planner.batch_history import BatchHistory, RecentBatch, batch_name, raise_or_warn
from kshare.query.planner.cluster_view import ClusterLike, ClusterView
from kshare.query.planner.end_offsets import EndOffsetResolver, Scan, scan_log
from kshare.query.planner.key_selection import KeySelection
from kshare.query.planner.live_board import LiveBoard
from kshare.query.planner.offset_options import is_certain_start
from kshare.query.planner.open_batches import EndLogLike, OpenBatches
from kshare.query.planner.query_group import QueryGroup, QueryMemberLike
from kshare.query.planner.rate_controller import RateController
from kshare.query.planner.schema_pins import SchemaPins
from kshare.query.planner.stream_report import StreamReport
from kshare.query.planner.task_plan import TaskPlan
from kshare.query.planner.time_alignment import LogTimes, TimeAlignment

__all__ = ["StreamPlanner"]

_log = logging.getLogger("kshare.planner")

_NOWHERE: Final = encode(BatchOffsets({}))
"""A start without a partition."""


class StreamPlanner:
    """Plans the micro-batches of one query.

    Args:
        options: The query's options.
        cluster: Where the topics are.
        parking: Where parked keys are kept; None reads Kafka's list.
        feedback: What tasks report to; None starts a server when it is needed.
        scan: Finds the ends of limited slices of a partition in the log.
        clock: Seconds, for the speed of batches.
        group: The consumer group that the query starts from or is a member of, if the options say
            so.
        policies: What operators do not allow; None: they are not looked at.
        commits: Creates the committer of stable offsets, if the options ask for it.
        times: Timestamps in the log; None for Kafka's.
        wall_clock: Seconds since 1970, for timestamps in the future.
        schemas: The reader schemas of typed rows; None: keys and values are bytes.
        end_log: Makes the log of ends of a topic, for ``realTime``; None: Kafka's.
    """

    def __init__(
        self,
        options: SourceOptions,
        cluster: ClusterLike,
        *,
        parking: ParkWatch | None = None,
        feedback: FeedbackServer | None = None,
        scan: Scan = scan_log,
        clock: Callable[[], float] = time.monotonic,
        group: QueryMemberLike | None = None,
        policies: PolicyWatch | None = None,
        commits: Callable[[SourceOptions], Committer | None] = committer,
        times: LogTimes | None = None,
        wall_clock: Callable[[], float] = time.time,
        schemas: SchemaPins | None = None,
        end_log: Callable[[str], EndLogLike] | None = None,
    ) -> None:
        self._options = options
        self._schemas = schemas or SchemaPins()
        self._keys = KeySelection.of(options)
        self._view = ClusterView(
            cluster, options.topics, parking or ParkWatch(options.kafka), policies, clock=clock
        )
        rates = RateController(options, feedback, clock=clock)
        self._tasks = TaskPlan(options, self._keys, rates, clock=clock)
        self._open = OpenBatches(options, self._keys, self._tasks.cut, end_log, clock=clock)
        self._live = LiveBoard(options.kafka, feedback)
        self._history = BatchHistory(
            options,
            self._keys,
            EndOffsetResolver(options, self._keys, scan, self._view.compaction.now),
            rates.finish_batch,
            self._open.finish,
        )
        self._report = StreamReport(
            self._view.retention, rates.shown, options.max_ranges_in_checkpoint
        )
        self._group = QueryGroup(options, self._keys, self._view, group, commits)
        self._refused: OptionsError | DataLossError | None = None  # raised by latest_offsets
        self._bounds = BatchBounds(
            options,
            TimeAlignment(options, self._view, times, wall_clock=wall_clock),
            TriggerGate(options, clock=clock),
        )

    def initial_offsets(self) -> dict[str, Any]:
        """The start of the query: partitions that have started, but made no progress yet.

        Spark does not write this down. So it holds nothing but the start, which
        :meth:`latest_offsets` carries over into the dict of batch 0, and that one is written.

        Spark also asks when it runs batch 0 again, whose dict says more than the options of today.
        So options that fit the cluster no longer are an error only once a batch is to start there:
        in :meth:`latest_offsets`.
        """
        self._refused = None
        try:
            return encode(self._group.start())
        except (OptionsError, DataLossError) as error:
            self._refused = error
            return dict(_NOWHERE)

    def pin_latest(self) -> None:
        """Make the present end offsets the end of this run (``Trigger.AvailableNow``)."""
        self._view.pin()

    def unpin_latest(self) -> None:
        """Let the log grow again: this run has no end any more."""
        self._view.unpin()

    def latest_offsets(
        self,
        start: Mapping[str, Any],
        max_offsets: int | None,
        *,
        may_wait: bool = False,
    ) -> dict[str, Any]:
        """The end of the next batch.

        Args:
            start: The dict of the batch before, or of :meth:`initial_offsets`.
            max_offsets: Maximum number of offsets of the batch, over all partitions; None for none.
            may_wait: Whether ``minOffsetsPerTrigger`` counts in this trigger.

        Raises:
            DataLossError: Partitions or offsets are gone, and ``failOnDataLoss`` is true.
            OptionsError: The options say no start that the cluster has; or they ask for key ranges,
                and a topic's policy does not accept it.
        """
        if self._refused is not None and start == _NOWHERE:
            raise self._refused.with_traceback(None)  # each trigger raises it
        last = self._finish(start)
        before, reached = last.offsets, last.progress
        available, keys = self._look(before, reached)
        if may_wait and self._bounds.waits(before, reached, available, keys):
            self._report.wait(available)
            return self._idle(start)
        moved = self._history.ends.past_vacant(reached, self._view.retention.at_risk, keys)
        reached = {**reached, **moved}
        batch = self._begin(before, reached, available)
        available = {tp: available[tp] for tp in batch.progress}
        starting = unwritten_starts(before, batch.progress)
        starting |= {tp: batch.progress[tp] for tp in moved if tp in batch.progress}  # read next
        after, limited, limits = self._planned(
            batch, available, starting, keys, reached, max_offsets
        )
        self._view.retention.look(batch.progress, available, batch.started)
        self._report.batch(available, after, self._view.parked_counts(), keys)
        if is_idle(last.progress, last.limited, after):
            return self._idle(start)
        written = encode(after)
        planned = RecentBatch(batch_name(written), after, limited, limits)
        if after.open is not None:
            planned.available = available
        self._history.recent.add(planned)
        return written

    def seen_offsets(self) -> dict[str, Any] | None:
        """The offsets in Spark's progress report: see :class:`StreamReport`."""
        return self._report.encoded()

    def open_tasks(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> tuple[OpenTask, ...] | None:
        """The tasks of the batch between two dicts, if it is open; None if not: see :meth:`tasks`.

        Raises:
            CheckpointError: A dict cannot be read.
        """
        if start == end:  # of a query that goes on without this source
            return ()
        batch = self._history.batch(end)
        if batch.offsets.open is None:
            return None
        self._schemas.compare(batch.offsets)
        tasks = self._open.tasks(batch.offsets)  # the dict says all that decides
        tasks = self._tasks.shared(batch, tasks)
        return self._live.follow(batch.offsets.open, tasks)

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> tuple[Task, ...]:
        """The tasks of the batch between two dicts, which is not open; none if they are the same.

        Raises:
            CheckpointError: It is not known where a partition starts.
            DataLossError: A partition that is new in a batch of Spark's source has lost records,
                and ``failOnDataLoss`` is true.
        """
        if start == end:  # of a query that goes on without this source; the dict may say a start
            return ()
        last = self._history.finished(start)
        self._tasks.observe(last)  # Spark calls this first when it runs a batch again
        batch = self._history.batch(end)
        self._schemas.compare(batch.offsets)
        limited = self._history.limited_tasks(batch)
        begins = self._begins(last, batch.offsets)
        pending = {tp: batch.offsets.progress[tp].minus(at) for tp, at in begins.items()}
        return self._tasks.tasks(batch, limited, pending, self._history.recent.names)

    def close(self) -> None:
        """Close the connections, and drop what tasks have fetched for each other on this host."""
        with ExitStack() as closing:  # all of them, also if one raises
            for each in (self._view, self._group, self._tasks, self._open, self._live):
                closing.callback(each.close)

    # -- the batch before -------------------------------------------------------------------

    def _finish(self, start: Mapping[str, Any]) -> RecentBatch:
        """Find how far the batch of a dict has come, and commit that for the group."""
        last = self._history.finished(start)
        self._tasks.observe(last)
        self._schemas.compare(last.offsets)
        self._open.forget(last.offsets)
        self._group.commit(last.progress)
        return last

    def _idle(self, start: Mapping[str, Any]) -> dict[str, Any]:
        """There is nothing to read: the time to wait for commits, as the query may end now."""
        self._group.flush()
        return dict(start)

    def _begins(self, last: RecentBatch, after: BatchOffsets) -> dict[TopicPartition, Progress]:
        """The begins of partitions without limits in a batch, by its dict and the one before."""
        before, reached = last.offsets, last.progress
        unsaid = implied_starts(before, reached, after)
        there = set(self._view.partitions()) if unsaid else set()
        new = self._view.earliest([tp for tp in unsaid if tp in there])
        raise_or_warn(new_partitions(new), fail=self._options.fail_on_data_loss)
        new |= {tp: 0 for tp in unsaid if tp not in there}  # their tasks say that they are gone
        is_certain = partial(is_certain_start, self._options)
        return {
            tp: start_of(tp, before, reached, after, new, is_certain=is_certain)
            for tp in sorted(after.progress.keys() - after.limits.keys())
        }

    # -- the next batch ---------------------------------------------------------------------

    def _look(
        self, before: BatchOffsets, reached: Mapping[TopicPartition, Progress]
    ) -> tuple[dict[TopicPartition, int], KeySelection]:
        """Ask the cluster where the logs end, and which keys the query may read now.

        Raises:
            OptionsError: A topic's policy does not accept key ranges, and they are asked for.
        """
        available = self._view.ends({tp: progress.front for tp, progress in reached.items()})
        self._view.check_policies(self._options, available)
        self._group.publish(before, reached, available)
        parked = self._view.parked({tp.topic for tp in available})
        self._bounds.name_parked(
            (topic, key) for topic in parked for key in {*parked[topic], *self._options.parked_keys}
        )
        return available, self._keys.with_parked(parked)

    def _begin(
        self,
        before: BatchOffsets,
        reached: Mapping[TopicPartition, Progress],
        available: Mapping[TopicPartition, int],
    ) -> BatchStart:
        """Decide where the batch begins.

        Raises:
            DataLossError: Partitions or offsets are gone, and ``failOnDataLoss`` is true.
        """
        earliest = self._view.earliest(needs_earliest(before, reached, available))
        batch = begin(before, reached, available, earliest, self._view.recreated())
        if batch.new:
            _log.info(
                "new partitions, read from their earliest offsets: %s",
                join_names(sorted(batch.new)),
            )
        raise_or_warn(batch.losses, fail=self._options.fail_on_data_loss)
        return batch

    def _planned(
        self,
        batch: BatchStart,
        available: Mapping[TopicPartition, int],
        starting: Mapping[TopicPartition, Progress],
        keys: KeySelection,
        reached: Mapping[TopicPartition, Progress],
        max_offsets: int | None,
    ) -> tuple[BatchOffsets, list[PlannedSlice], PlannedLimits]:
        """The content of a batch's dict; the slices of its limits, and the limits.

        Args:
            batch: Where the batch begins.
            available: The ends of the partitions' logs.
            starting: Partitions that read nothing: the dict only records where they stand.
            keys: What the query reads.
            reached: How far each partition is when the batch before is done.
            max_offsets: Maximum number of offsets of the batch; None for none.
        """
        time_left = self._bounds.open_time(batch, available, keys)
        opened = self._open.plan(batch.progress, available, keys, time_left)
        if opened is not None:  # its dict says where all partitions begin
            after = BatchOffsets(batch.progress, schemas=self._schemas.pins, open=opened)
            return after, [], PlannedLimits()
        end = self._bounds.of(
            batch,
            available,
            starting,
            keys,
            max_offsets,
            lambda ends: self._plan_limits(batch, ends, keys),
        )
        if self._options.limits_records:
            after, limited = self._limited(batch, end, keys)
        else:
            after, limited = (
                BatchOffsets(advanced(batch.progress, end.ends, keys), batch.started),
                [],
            )
        started = written_starts(after.started, reached, after.progress)
        after = replace(after, started=started, schemas=self._schemas.pins)
        return with_gaps(after, starting) if starting else after, limited, end.limits

    def _plan_limits(
        self, batch: BatchStart, ends: Mapping[TopicPartition, int], keys: KeySelection
    ) -> PlannedLimits:
        """The ranges of a batch with record limits, and what each may read; else none."""
        if not self._options.limits_records:
            return PlannedLimits()
        pending = {
            tp: progress.pending_of(ends[tp], keys.readable(tp))
            for tp, progress in batch.progress.items()
            if tp in ends
        }
        return self._tasks.limits(pending)

    def _limited(
        self,
        batch: BatchStart,
        batch_end: BatchEnd,
        keys: KeySelection,
    ) -> tuple[BatchOffsets, list[PlannedSlice]]:
        """A batch with record limits: its offsets and its slices."""
        limited = {
            tp: limit_ranges(
                tp,
                batch.progress[tp],
                batch_end.ends[tp],
                batch_end.limits.by_range(tp),
                keys.parked(tp),
            )
            for tp in batch_end.limits.speeds
        }
        limited = {tp: entries for tp, entries in limited.items() if entries}
        if all(surely_read_whole(each) for entries in limited.values() for _, each in entries):
            known = [*limited]  # no limit ends a task
        else:
            # Records vanish from the middle of a compacted log: that would move a limit's end.
            topics = self._view.compaction.of({tp.topic for tp in limited})
            known = [tp for tp in limited if tp.topic in topics]
        ahead = [planned for tp in known for _, planned in limited.pop(tp)]
        offsets = BatchOffsets(
            progress=self._history.ends.resolve_ahead(batch.progress, ahead),
            started={tp: offset for tp, offset in batch.started.items() if tp not in limited},
            limits={tp: tuple(limit for limit, _ in entries) for tp, entries in limited.items()},
            read_committed=bool(limited) and self._options.kafka.read_committed,
        )
        return offsets, [planned for tp in sorted(limited) for _, planned in limited[tp]]
