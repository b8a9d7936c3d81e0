"""Looks at a cluster for people: brokers, rights on topics, the newest time, the bounds of logs."""

from collections.abc import Callable, Collection, Iterable

from confluent_kafka import IsolationLevel, KafkaException, Node, TopicCollection
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec

from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError, UnknownTopicError
from kshare.kafka.cluster import Cluster
from kshare.options import Subscribe

__all__ = ["ExaminedCluster", "log_bounds"]


class ExaminedCluster(Cluster):
    """A cluster, and what its brokers allow whom the options log in as.

    Every method raises a :class:`~kshare.errors.KafkaError` if the cluster does not answer within
    ``default.api.timeout.ms``, or refuses.
    """

    def brokers(self) -> list[str]:
        """The brokers, as ``host:port``, sorted."""
        return sorted(f"{node.host}:{node.port}" for node in self._nodes())

    def broker_config(self, name: str) -> str | None:
        """A setting of one of the brokers; None if it says nothing of it."""
        resource = ConfigResource(ConfigResource.Type.BROKER, str(self._nodes()[0].id))
        answers = self._asked(
            lambda client, seconds: client.describe_configs([resource], request_timeout=seconds),
            self._deadline(),
        )
        try:
            entry = answers[resource].result(timeout=0).get(name)
        except (KafkaException, TimeoutError) as error:
            raise self._error(error, "describe a broker's configuration") from None
        return None if entry is None else entry.value

    def _nodes(self) -> list[Node]:
        answers = self._asked(
            lambda client, seconds: {None: client.describe_cluster(request_timeout=seconds)},
            self._deadline(),
        )
        try:
            nodes: list[Node] = answers[None].result(timeout=0).nodes
        except (KafkaException, TimeoutError) as error:
            raise self._error(error, "list the brokers") from None
        return nodes

    def rights(self, topics: Collection[str]) -> dict[str, frozenset[str] | KafkaError | None]:
        """Permitted operations on topics, by name.

        Returns:
            Operations such as ``READ``; the error if the broker does not describe the topic; None
            if it does not say what may be done.
        """
        asked = TopicCollection([*topics])
        futures = self._asked(
            lambda client, seconds: client.describe_topics(
                asked, include_authorized_operations=True, request_timeout=seconds
            ),
            self._deadline(),
        )
        found: dict[str, frozenset[str] | KafkaError | None] = {}
        for topic, future in futures.items():
            try:
                operations = future.result(timeout=0).authorized_operations
            except (KafkaException, TimeoutError) as error:
                found[topic] = self._error(error, "describe the partitions", topic)
            else:
                # Without an authorizer, librdkafka's list is None or empty.
                found[topic] = frozenset(each.name for each in operations) if operations else None
        return found

    def newest_ms(self, partitions: Iterable[TopicPartition]) -> int | None:
        """The latest timestamp in some partitions, in milliseconds; None if brokers do not say."""
        newest = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
        specs = {RdTopicPartition(*each): newest for each in partitions}
        request = self._list_offsets(specs, IsolationLevel.READ_UNCOMMITTED)
        futures = self._asked(request, self._deadline())
        done = [future for future in futures.values() if future.done() and not future.exception()]
        return max((time for each in done if (time := each.result().timestamp) >= 0), default=None)


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
