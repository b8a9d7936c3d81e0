"""Looks at a cluster for people: brokers, rights on topics, the newest time, the bounds of logs."""

from collections.abc import Collection, Iterable

from confluent_kafka import IsolationLevel, KafkaException, Node, TopicCollection
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec

from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError
from kshare.kafka.cluster import Cluster, OnFault

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
    cluster: Cluster, partitions: Iterable[TopicPartition], on_fault: OnFault
) -> dict[TopicPartition, tuple[int, int]]:
    """First offset and end of the partitions of which that is known.

    The others wait for a few seconds at most: a partition without a leader hides no others.

    Args:
        cluster: The cluster.
        partitions: The partitions.
        on_fault: Called for each topic that does not exist or may not be described, and for each
            partition that does not answer or refuses.

    Raises:
        KafkaError: Nothing that exists answered, or all refused.
    """
    wanted = set(partitions)
    there = cluster.known_partitions({tp.topic for tp in wanted}, on_fault)
    first = cluster.earliest(wanted.intersection(there), on_fault)
    end = cluster.latest(first, on_fault)
    return {tp: (first[tp], end[tp]) for tp in sorted(end)}
