"""Spark's pushed filters as conditions of :mod:`kshare.planner.filters`.

Law: conditions say no more than the filters; a filter of another kind is left out, and Spark
applies it. Cost: linear in the filters.
"""

import sys
from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql.datasource import (
    ColumnPath,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from kshare.planner.filters import Comparison, Condition
from spark_plugin.read_info import scans_keep_read_info

__all__ = ["conditions_of", "filters_may_be_pushed"]

_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_COMPARISONS: Final[dict[type[Filter], Comparison]] = {
    EqualTo: "=",
    EqualNullSafe: "=",  # `<=> NULL` has no value of the column's type, and so no say
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    In: "in",
}


def filters_may_be_pushed() -> bool:
    """Whether Spark has started this process to push filters, and what it plans is that query's.

    A reader that can take filters makes Spark refuse the query if they are not switched on
    (``spark.sql.python.filterPushdown.enabled``). That setting cannot be seen here; but where it is
    on and there are filters, Spark plans in a worker of its own module. With what Spark 4.3 does
    next, other queries of the same DataFrame would lack rows: see :mod:`spark_plugin.read_info`.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    started = _PUSHING in sys.modules or getattr(spec, "name", None) == _PUSHING
    return started and scans_keep_read_info()


def conditions_of(filters: Iterable[Filter]) -> list[Condition]:
    """The filters that are comparisons of a column with literals."""
    found = []
    for pushed in filters:
        comparison = _COMPARISONS.get(type(pushed))
        path: ColumnPath = getattr(pushed, "attribute", ())
        if comparison is not None and len(path) == 1:
            value: Any = getattr(pushed, "value", None)
            values = tuple(value) if comparison == "in" else (value,)
            found.append(Condition(path[0], comparison, values))
    return found
