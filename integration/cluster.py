"""Several real brokers, for leaders that move: one JVM each, 3.5 s to start three."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Self

from confluent_kafka import ElectionType
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import PartitionMetadata

from integration.kafka import KafkaBroker
from integration.topics import Topics
from kshare.group.config.consumer_config import consumer_config
from kshare.kafka.coordinator import find_coordinator
from tests.support.clock import until

WAIT_S = 120.0  # for a leader, after a restart


class KafkaCluster(Topics):
    """Several brokers, the first of them the controller: kill and stop the others.

    Args:
        brokers: How many.
        config: More properties for all of them.
        heap_mib: Each JVM's -Xmx.
        racks: Each broker's rack, in order; empty: no racks.
    """

    def __init__(
        self,
        brokers: int = 2,
        *,
        config: Mapping[str, str] | None = None,
        heap_mib: int = 320,
        racks: Sequence[str] = (),
    ) -> None:
        settings = {"replica.lag.time.max.ms": "5000", **(config or {})}
        configs = [{"broker.rack": rack} for rack in racks] or [{} for _ in range(brokers)]
        first = KafkaBroker(config=settings | configs[0], heap_mib=heap_mib)
        others = [
            KafkaBroker(
                config=settings | configs[number - 1],
                heap_mib=heap_mib,
                node_id=number,
                cluster_id=first.cluster_id,
                controller=first.controller,
            )
            for number in range(2, brokers + 1)
        ]
        self.brokers = {broker.node_id: broker for broker in (first, *others)}

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of every broker."""
        return ",".join(broker.bootstrap_servers for broker in self.brokers.values())

    def start(self) -> Self:
        """Start all brokers at once, and return when they serve."""
        for broker in self.brokers.values():
            broker.launch()
        for broker in self.brokers.values():
            broker.wait_until_started()
        return self

    def close(self) -> None:
        """Stop all brokers, the controller last, and remove their data."""
        for broker in reversed(self.brokers.values()):
            broker.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def leader(self, topic: str, partition: int = 0) -> KafkaBroker:
        """Return the broker that leads a partition; wait until there is one."""
        return self.brokers[self._with_leader(topic, partition).leader]

    def _with_leader(self, topic: str, partition: int) -> PartitionMetadata:
        """A partition's metadata: a broker that has just started may know nothing of it."""

        def look() -> PartitionMetadata | None:
            found = (
                self.admin.list_topics(topic, timeout=30).topics[topic].partitions.get(partition)
            )
            return found if found is not None and found.leader in self.brokers else None

        found: PartitionMetadata = until(look, WAIT_S, lambda: f"{topic}-{partition} has no leader")
        return found

    def wait_for_topic(self, topic: str) -> None:
        """Return when the broker that is asked knows of a topic's partitions."""
        until(
            lambda: self.admin.list_topics(topic, timeout=30).topics[topic].partitions,
            shown=lambda: f"no partitions of {topic}",
        )

    def wait_until_in_sync(self, topic: str) -> None:
        """Return when each replica of a topic has all its records."""
        until(
            lambda: self.are_in_sync([(topic, number) for number in self._partitions(topic)]),
            shown=lambda: f"replicas of {topic} are behind",
        )

    def are_in_sync(self, partitions: Sequence[tuple[str, int]]) -> bool:
        """Whether each replica of some partitions has all their records."""
        topics = self.admin.list_topics(timeout=30).topics
        found = [topics[name].partitions[number] for name, number in partitions]
        return all(len(each.isrs) == len(each.replicas) for each in found)

    def kill9(self, node_id: int) -> None:
        """Kill -9 a broker, when no client of the tests' own knows it any more."""
        for topics in (self, *self.brokers.values()):
            topics.__dict__.pop("admin", None)
        self.brokers[node_id].kill9()

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Make another replica of a partition its leader, with all brokers up."""
        metadata = self._with_leader(topic, partition)
        order = [node_id, *(other for other in metadata.replicas if other != node_id)]
        from kafka import KafkaAdminClient, TopicPartition  # librdkafka has no reassignments

        wanted = [Place(topic, partition)]
        with closing(
            KafkaAdminClient(bootstrap_servers=self.brokers[1].bootstrap_servers)
        ) as client:

            def leads() -> bool:
                # A refusal, such as of a fenced broker, is no exception: it is asked again.
                client.alter_partition_reassignments({TopicPartition(topic, partition): order})
                if self.leader(topic, partition).node_id == node_id:
                    return True
                self.admin.elect_leaders(ElectionType.PREFERRED, wanted).result(30)
                return False

            until(leads, WAIT_S, lambda: f"{topic}-{partition}: broker {node_id} does not lead")

    def coordinator(self, group: str) -> int:
        """Node id of the broker that coordinates a group."""
        config = consumer_config({"bootstrap.servers": self.bootstrap_servers, "group.id": group})
        _, port = find_coordinator(config.kafka, group)
        (node_id,) = (
            number
            for number, broker in self.brokers.items()
            if broker.bootstrap_servers.endswith(f":{port}")
        )
        return node_id

    def group_of(self, prefix: str, node_id: int) -> str:
        """A name for a group, such that a broker coordinates it."""
        names = (f"{prefix}-{number}" for number in range(100))
        return next(name for name in names if self.coordinator(name) == node_id)
