"""Batch queries: they read what is there when they run, as far as their filters can hold for it."""

from collections.abc import Mapping
from secrets import token_hex

from kshare.cluster.policies import PolicyView
from kshare.core.progress import TopicPartition
from kshare.core.slicing import PartitionLoad
from kshare.core.tasks import PlannedSlice, Task
from kshare.errors import OptionsError
from kshare.options import PerPartition, SourceOptions
from kshare.planner.cutting import slice_pending
from kshare.planner.filters import EVERYTHING, RowBounds
from kshare.planner.group_member import GroupView, start_progress
from kshare.planner.key_selection import KeySelection
from kshare.planner.offset_options import TopicView, resolve
from kshare.planner.range_policy import check_ranges
from kshare.planner.task_plan import packed, with_fetch_groups

__all__ = ["plan_batch"]


def plan_batch(
    options: SourceOptions,
    cluster: TopicView,
    bounds: RowBounds = EVERYTHING,
    *,
    group: GroupView | None = None,
    policies: PolicyView | None = None,
) -> tuple[Task, ...]:
    """The tasks of a batch query, with earliest and latest as they are now.

    Args:
        options: The query's options.
        cluster: Where the topics are.
        bounds: Where rows can lie: the rest is not read. Faults of the options are errors all the
            same.
        group: The consumer group that the query starts from, if the options say so.
        policies: What operators do not allow; None: they are not looked at.

    Raises:
        OptionsError: The offsets in the options do not name exactly the partitions that are
            subscribed, or a partition would start after its end. Or they ask for key ranges, and a
            topic's policy does not accept it.
        DataLossError: The offsets in the options are not in the log, and ``failOnDataLoss`` is
            true.
        KafkaError: The cluster did not answer.
    """
    partitions = cluster.partitions(options.topics)
    check_ranges(options, partitions, policies)
    keys = KeySelection.of(options)
    ask = None if group is None else group.committed
    progress = start_progress(options, keys, partitions, cluster, ask)
    starts = {tp: reached.stable for tp, reached in progress.items()}
    ends = resolve(options, "endingOffsets", options.ending, partitions, cluster)
    _check_order(options, starts, ends)
    ranges = _narrowed({tp: (starts[tp], ends[tp]) for tp in partitions}, cluster, bounds)
    loads = [
        PartitionLoad(
            topic=tp.topic,
            partition=tp.partition,
            pending=pending,
            fixed_ranges=keys.chosen(tp),
        )
        for tp, (start, end) in ranges.items()
        if (pending := progress[tp].advance(start).pending_of(end, keys.allowed(tp)))
    ]
    slices = [PlannedSlice(slice_) for slice_ in slice_pending(options, loads)]
    return packed(options, with_fetch_groups(options, token_hex(8), "", slices))


def _check_order(
    options: SourceOptions, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> None:
    """Spark's RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET, with any ``failOnDataLoss``."""
    chosen = options.starting.offsets if isinstance(options.starting, PerPartition) else {}
    for tp, end in ends.items():
        wanted = chosen.get(tp)
        start = wanted if isinstance(wanted, int) else starts[tp]
        if start > end:
            fault = (
                f"{tp} would start at offset {start}, after its end {end}: check starting and "
                "ending offsets and timestamps, or whether the topic was made anew"
            )
            raise OptionsError([fault])


def _narrowed(
    ranges: Mapping[TopicPartition, tuple[int, int]], cluster: TopicView, bounds: RowBounds
) -> dict[TopicPartition, tuple[int, int]]:
    """The ranges without what lies outside the bounds."""
    narrowed = {}
    for tp, (start, end) in ranges.items():
        offsets = bounds.offsets.intersect(start, end)
        assert offsets.start is not None
        assert offsets.end is not None
        if bounds.hold(tp) and offsets.start < offsets.end:
            narrowed[tp] = (offsets.start, offsets.end)
    if bounds.since_ms is None or not narrowed:
        return narrowed
    # By Kafka's promise the answer is the first offset whose record is not older, so what is below
    # it is older. With CreateTime that takes an index of timestamps that are in any order: there
    # the filter is left to Spark, and only where brokers stamp the records are they passed over.
    policies = cluster.policies(sorted({tp.topic for tp in narrowed}))
    stamped = [
        tp
        for tp in narrowed
        if (policy := policies.get(tp.topic)) is not None and policy.log_append_time
    ]
    # Asked for after the ends: a partition without such a record has none below its end.
    since = cluster.at_timestamps(dict.fromkeys(stamped, max(bounds.since_ms, 0)))
    for tp, offset in since.items():
        start, end = narrowed[tp]
        narrowed[tp] = (end if offset is None else min(max(start, offset), end), end)
    return narrowed
