"""The source in a planner's process: ask the cluster, and plan.

A call costs one call of :mod:`kshare.planner`. Tasks do not import this module.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from kshare.cluster.cluster import Cluster
from kshare.cluster.policies import PolicyWatch
from kshare.options import FromGroup, SourceOptions
from kshare.planner import StreamPlanner, plan_batch
from kshare.planner.batch_query import bounds_of
from kshare.planner.key_selection import KeySelection
from kshare.planner.query_group import QueryInGroup
from spark_plugin.filters import conditions_of
from spark_plugin.planning import as_partitions

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

__all__ = ["batch_partitions", "open_planner"]


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
    cluster, policies = Cluster(options.kafka), PolicyWatch(options.kafka)
    try:
        bounds, group = bounds_of(conditions_of(filters)), _group_of(options)
        tasks = plan_batch(options, cluster, bounds, group=group, policies=policies)
        return as_partitions(tasks)
    finally:
        policies.close()
        cluster.close()


def open_planner(options: SourceOptions) -> StreamPlanner:
    """Make the planner of a streaming query; its ``close`` closes its connections, too."""
    return StreamPlanner(
        options,
        Cluster(options.kafka),
        group=_group_of(options),
        policies=PolicyWatch(options.kafka),
    )


def _group_of(options: SourceOptions) -> QueryInGroup | None:
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
