"""What the source does in a planner's process: ask the cluster, and plan.

A call costs one call of :mod:`kshare.planner`. Tasks do not import this module.
"""

from collections.abc import Sequence

from pyspark.sql.datasource import Filter, InputPartition

from kshare.cluster.cluster import Cluster
from kshare.options import SourceOptions
from kshare.planner import StreamPlanner, plan_batch
from kshare.planner.filters import bounds_of
from spark_plugin.filters import conditions_of
from spark_plugin.planning import as_partitions

__all__ = ["batch_partitions", "open_planner"]


def batch_partitions(options: SourceOptions, filters: Sequence[Filter]) -> list[InputPartition]:
    """Plan a batch query.

    Args:
        options: The query's options.
        filters: Filters that hold for all rows that the query wants.

    Raises:
        OptionsError: The given offsets do not fit the partitions.
        DataLossError: The given offsets are not in the log, and ``failOnDataLoss`` is true.
        KafkaError: The cluster did not answer.
    """
    cluster = Cluster(options.kafka)
    try:
        return as_partitions(plan_batch(options, cluster, bounds_of(conditions_of(filters))))
    finally:
        cluster.close()


def open_planner(options: SourceOptions) -> StreamPlanner:
    """Make the planner of a streaming query; its ``close`` closes its connections, too."""
    return StreamPlanner(options, Cluster(options.kafka))
