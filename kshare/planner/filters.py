"""Bounds: where the rows of a batch query can lie, by its filters.

Guarantees: a row that the filters may hold for lies within the bounds. What is not understood cuts
nothing: other columns, other types than the column's, nulls. Spark applies the filters again to
what is read.
Cost: linear in the conditions, and again for each partition.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import eq, ge, gt, le, lt
from typing import Any, Final, Literal, TypeAlias

from kshare.core.progress import TopicPartition

__all__ = ["EVERYTHING", "Comparison", "Condition", "Interval", "RowBounds", "bounds_of"]

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
