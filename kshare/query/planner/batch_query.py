"""Batch queries: they read what is there when they run, as far as their filters can hold for it.

Guarantees: a row that the filters may hold for lies within the bounds. What is not understood cuts
nothing: other columns, other types than the column's, nulls. Spark applies the filters again to
what is read.
Cost: linear in the conditions, and again for each partition.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import eq, ge, gt, le, lt
from secrets import token_hex
from typing import Any, Final, Literal, TypeAlias

from kshare.core.progress import TopicPartition
from kshare.core.slicing import PartitionLoad
from kshare.core.tasks import PlannedSlice, Task
from kshare.errors import OptionsError
from kshare.kafka.policies import PolicyWatch
from kshare.options import PerPartition, SourceOptions
from kshare.query.planner.cluster_view import ClusterLike
from kshare.query.planner.fetch_sharing import with_fetch_groups
from kshare.query.planner.key_selection import KeySelection, check_ranges
from kshare.query.planner.offset_options import resolve
from kshare.query.planner.query_group import GroupView, start_progress
from kshare.query.planner.task_plan import packed, slice_pending

__all__ = [
    "EVERYTHING",
    "Comparison",
    "Condition",
    "Interval",
    "RowBounds",
    "bounds_of",
    "plan_batch",
]

Comparison: TypeAlias = Literal["=", "<", "<=", ">", ">=", "in"]

_HOLDS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": eq,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}
_TYPES: Final[Mapping[str, type]] = {
    "topic": str,
    "partition": int,
    "offset": int,
    "timestamp": datetime,
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a column with literals. It holds for no row whose value is null.

    Attributes:
        column: The column's name.
        comparison: The operator; ``in`` holds if one of the values is equal.
        values: The literals; one, unless the comparison is ``in``.
    """

    column: str
    comparison: Comparison
    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        """True if it holds for a value of the literals' type."""
        if self.comparison == "in":
            return value in self.values
        return _HOLDS[self.comparison](value, self.values[0])


@dataclass(frozen=True, slots=True)
class Interval:
    """Offsets ``[start, end)``; None is no bound on that side. Empty if start is not below end."""

    start: int | None = None
    end: int | None = None

    def intersect(self, start: int | None, end: int | None) -> "Interval":
        """The intersection."""
        starts = [bound for bound in (self.start, start) if bound is not None]
        ends = [bound for bound in (self.end, end) if bound is not None]
        return Interval(max(starts, default=None), min(ends, default=None))


@dataclass(frozen=True, slots=True)
class RowBounds:
    """Bounds of the matching rows.

    Attributes:
        offsets: The offsets in every partition.
        partitions: Conditions on ``topic`` and ``partition``, all of which hold.
        since_ms: No row is older; milliseconds since 1970. None: rows may be of any age.
    """

    offsets: Interval = Interval()
    partitions: tuple[Condition, ...] = ()
    since_ms: int | None = None

    def hold(self, partition: TopicPartition) -> bool:
        """True if rows can lie in a partition."""
        return all(
            condition.holds(partition.topic if condition.column == "topic" else partition.partition)
            for condition in self.partitions
        )


EVERYTHING: Final = RowBounds()
"""Rows may lie anywhere."""


def bounds_of(conditions: Iterable[Condition]) -> RowBounds:
    """The bounds within which all of some conditions can hold."""
    offsets, partitions, since_ms = Interval(), [], None
    for unchecked in conditions:
        condition = _understood(unchecked)
        if condition is None:
            continue
        if condition.column == "offset":
            offsets = offsets.intersect(*_offsets(condition))
        elif condition.column == "timestamp":
            since_ms = _later(since_ms, _since_ms(condition))
        else:
            partitions.append(condition)
    return RowBounds(offsets, tuple(partitions), since_ms)


def _understood(condition: Condition) -> Condition | None:
    """The condition, if its literals are of the column's type; without the nulls of an ``in``."""
    wanted = _TYPES.get(condition.column)
    values = condition.values
    if condition.comparison == "in":
        values = tuple(value for value in values if value is not None)
    if wanted is None or not values:
        return None
    # True is an int to Python, and a time without a zone is not an instant.
    if any(type(value) is not wanted for value in values):
        return None
    if wanted is datetime and any(value.tzinfo is None for value in values):
        return None
    return Condition(condition.column, condition.comparison, values)


def _offsets(condition: Condition) -> tuple[int | None, int | None]:
    """The smallest range of offsets that holds all for which a condition holds."""
    lowest, highest = min(condition.values), max(condition.values)
    match condition.comparison:
        case "<":
            return None, highest
        case "<=":
            return None, highest + 1
        case ">":
            return lowest + 1, None
        case ">=":
            return lowest, None
        case _:
            return lowest, highest + 1


def _since_ms(condition: Condition) -> int | None:
    """The first millisecond for which a condition can hold; records are stamped with these.

    There is no last one: in a log, a later record may be older.
    """
    first: timedelta = min(condition.values) - _EPOCH
    match condition.comparison:
        case "<" | "<=":
            return None
        case ">":
            return first // _MILLISECOND + 1
        case _:
            return -(-first // _MILLISECOND)


def _later(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


# -- the plan --------------------------------------------------------------------------------------


def plan_batch(
    options: SourceOptions,
    cluster: ClusterLike,
    bounds: RowBounds = EVERYTHING,
    *,
    group: GroupView | None = None,
    policies: PolicyWatch | None = None,
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
    return with_fetch_groups(options, token_hex(8), "", packed(options, slices))


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
    ranges: Mapping[TopicPartition, tuple[int, int]], cluster: ClusterLike, bounds: RowBounds
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
    configs = cluster.topic_configs(sorted({tp.topic for tp in narrowed}))
    stamped = [
        tp
        for tp in narrowed
        if (config := configs.get(tp.topic)) is not None and config.log_append_time
    ]
    # Asked for after the ends: a partition without such a record has none below its end.
    since = cluster.at_timestamps(dict.fromkeys(stamped, max(bounds.since_ms, 0)))
    for tp, offset in since.items():
        start, end = narrowed[tp]
        narrowed[tp] = (end if offset is None else min(max(start, offset), end), end)
    return narrowed
