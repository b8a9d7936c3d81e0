"""The source in a planner's process: ask the cluster, and plan.

A call costs one call of :mod:`kshare.query.planner`. Tasks do not import this module.
"""

import logging
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition

from kshare.kafka.cluster import Cluster
from kshare.kafka.listening import START_SECONDS, check_listening
from kshare.kafka.policies import PolicyWatch
from kshare.operating_system import OperatingSystem, this_system
from kshare.options import FromGroup, SourceOptions
from kshare.query.planner import StreamPlanner, plan_batch
from kshare.query.planner.batch_query import Comparison, Condition, bounds_of
from kshare.query.planner.key_selection import KeySelection
from kshare.query.planner.query_group import QueryMemberLike
from kshare.query.planner.schema_pins import SchemaPins
from spark_plugin.partitions import as_partitions

if TYPE_CHECKING:
    from pyspark.sql.datasource import ColumnPath, Filter

    from kshare.formats.schemas import ReaderSchemas


__all__ = ["batch_partitions", "conditions_of", "open_planner", "say_what_lacks"]

_log = logging.getLogger("kshare")


def batch_partitions(options: SourceOptions, filters: "Sequence[Filter]") -> list[InputPartition]:
    """Plan a batch query.

    Args:
        options: The query's options.
        filters: Filters that hold for all rows that the query wants.

    Raises:
        OptionsError: The given offsets do not fit the partitions.
        DataLossError: The given offsets are not in the log, and ``failOnDataLoss`` is true.
        KafkaError: The cluster did not answer.
    """
    say_what_lacks(this_system())
    check_listening(options.kafka, START_SECONDS)
    cluster, policies = Cluster(options.kafka), PolicyWatch(options.kafka)
    try:
        bounds, group = bounds_of(conditions_of(filters)), _group_of(options)
        tasks = plan_batch(options, cluster, bounds, group=group, policies=policies)
        return as_partitions(tasks)
    finally:
        policies.close()
        cluster.close()


def open_planner(options: SourceOptions, schemas: "ReaderSchemas | None" = None) -> StreamPlanner:
    """Make the planner of a streaming query; its ``close`` closes its connections, too.

    Args:
        options: The query's options.
        schemas: The reader schemas of typed rows; None: keys and values are bytes.

    Raises:
        KafkaError: No bootstrap server listens.
    """
    say_what_lacks(this_system())
    check_listening(options.kafka, START_SECONDS)
    return StreamPlanner(
        options,
        Cluster(options.kafka),
        group=_group_of(options),
        policies=PolicyWatch(options.kafka),
        schemas=SchemaPins(schemas, options.kafka),
    )


@cache
def say_what_lacks(system: OperatingSystem) -> None:
    """Say, once in each process, what it costs that this is not Linux."""
    costs = system.costs()
    if costs:
        _log.info("%s; nothing is lost (docs/tuning.md, Other systems)", "; ".join(costs))


def _group_of(options: SourceOptions) -> QueryMemberLike | None:
    """The key-shared group that a query starts from or is a member of; None for neither."""
    group = options.kafka.group_id
    if group is None or not (
        options.commits_individually or isinstance(options.starting, FromGroup)
    ):
        return None
    # Brings the reader of the group's log: 0.5 s that other planners do without.
    from kshare.group.query_member import QueryMember  # noqa: PLC0415

    return QueryMember(
        options.kafka,
        group,
        KeySelection.of(options).allowed,
        log_topic=options.individual_commit_topic,
    )


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
