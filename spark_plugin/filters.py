"""Spark's pushed filters as conditions of :mod:`kshare.planner.batch_query`.

Conditions never exclude a row that the filters accept. A filter of another kind is left out; Spark
applies all filters again.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from kshare.planner.batch_query import Comparison, Condition

if TYPE_CHECKING:
    from pyspark.sql.datasource import ColumnPath, Filter

__all__ = ["conditions_of"]

# By name, as Spark 4.0 has none of these classes.
_COMPARISONS: Final[dict[str, Comparison]] = {
    "EqualTo": "=",
    "EqualNullSafe": "=",  # `<=> NULL` has no value of the column's type, and excludes nothing
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "In": "in",
}


def conditions_of(filters: "Iterable[Filter]") -> list[Condition]:
    """Return the filters that compare a column with literals."""
    conditions = []
    for pushed in filters:
        comparison = _COMPARISONS.get(type(pushed).__name__)
        path: ColumnPath = getattr(pushed, "attribute", ())
        if comparison is not None and len(path) == 1:
            value: Any = getattr(pushed, "value", None)
            values = tuple(value) if comparison == "in" else (value,)
            conditions.append(Condition(path[0], comparison, values))
    return conditions
