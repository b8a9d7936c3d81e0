"""Start and end offsets of the logs of existing partitions."""

from collections.abc import Callable, Iterable

from kshare.cluster.cluster import Cluster
from kshare.core.progress import TopicPartition
from kshare.errors import UnknownTopicError
from kshare.options import Subscribe

__all__ = ["log_bounds"]


def log_bounds(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    on_missing: Callable[[UnknownTopicError], object] = lambda _: None,
) -> dict[TopicPartition, tuple[int, int]]:
    """First offset and end of the partitions that exist.

    Args:
        cluster: The cluster.
        partitions: The partitions.
        on_missing: Called for each topic that does not exist.

    Raises:
        KafkaError: The cluster did not answer, or refused.
    """
    wanted = set(partitions)
    there: set[TopicPartition] = set()
    for topic in sorted({tp.topic for tp in wanted}):
        try:
            there.update(cluster.partitions(Subscribe((topic,))))
        except UnknownTopicError as error:
            on_missing(error)
    first, end = cluster.earliest(there & wanted), cluster.latest(there & wanted)
    return {tp: (first[tp], end[tp]) for tp in sorted(first)}
