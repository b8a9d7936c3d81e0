"""What breaks the log of a group, and what looks at it."""

import subprocess
import uuid

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from integration.kafka import KafkaBroker, kafka_tool
from integration.members import eventually
from integration.topics import Topics
from kshare.core.progress import TopicPartition
from kshare.group.config.consumer_config import consumer_config
from kshare.group.delivery_start import DeliveryStart
from kshare.group.session.session import GroupSession
from kshare.kafka.compacted_topic import CompactedTopic
from kshare.kafka.topics import TopicSpec

__all__ = [
    "compacted_often",
    "consumer_groups",
    "lose_log",
    "records_in",
    "reset_to",
    "starts",
    "unique",
]


def unique(name: str) -> str:
    """A name that no other test has."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def starts(member: GroupSession, at: TopicPartition) -> DeliveryStart | None:
    """The start of a partition, once it has one."""
    member.check()
    return member.started().get(at)


def lose_log(broker: KafkaBroker, log: str, how: str) -> None:
    """Delete a log, or the records of its first partition.

    One that was deleted before is waited for: the living write it again as they next commit.
    """
    if how == "deleted":
        eventually(lambda: _is_deleted(broker, log))
        return
    resource = ConfigResource(ConfigResource.Type.TOPIC, log)
    policy = ConfigEntry(
        "cleanup.policy", "compact,delete", incremental_operation=AlterConfigOpType.SET
    )
    resource.add_incremental_config(policy)
    broker.admin.incremental_alter_configs([resource])[resource].result(30)
    broker.trim(log, 0, broker.latest(log))


def _is_deleted(broker: KafkaBroker, topic: str) -> bool:
    """Delete a topic, if it is there."""
    try:
        # Not waited for until nobody knows it: the living make it again.
        broker.admin.delete_topics([topic])[topic].result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
        return False
    return True


def compacted_often() -> dict[str, object]:
    """The configuration of a topic that brokers compact as often as they can."""
    return {
        "cleanup.policy": "compact",
        "segment.ms": 300,
        "min.cleanable.dirty.ratio": 0.001,
        "delete.retention.ms": 0,
        # Kafka 4.1 ends if it flushes a file that it has just deleted.
        "file.delete.delay.ms": 60_000,
    }


def records_in(broker: KafkaBroker, topic: str) -> int:
    """Number of records that compaction has left."""
    config = consumer_config({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    table = CompactedTopic(config.kafka, TopicSpec(topic, 1))
    rows = table.read().rows
    table.close()
    return len(rows)


def consumer_groups(broker: Topics, group: str, *arguments: str) -> str:
    """What ``kafka-consumer-groups`` prints."""
    tool = kafka_tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand")
    tool += ["--bootstrap-server", broker.bootstrap_servers, "--group", group, *arguments]
    tool += ["--timeout", "60000"]  # else 5 s
    return subprocess.run(tool, capture_output=True, text=True, check=True).stdout


def reset_to(broker: Topics, group: str, at: TopicPartition, offset: int) -> str:
    """Let ``kafka-consumer-groups`` reset a group's offset; what it prints."""
    where = ["--to-offset", str(offset), "--topic", f"{at.topic}:{at.partition}"]
    return consumer_groups(broker, group, "--reset-offsets", *where, "--execute")
