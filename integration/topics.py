"""What the tests do to the topics of a running broker or cluster."""

import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import cached_property

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka.protocol.admin import AlterClientQuotasRequest

from kshare.kafka.protocol.connection import Connection
from kshare.options import KafkaConfig
from kshare.testing import RecordLike, produce, produce_all, watermarks
from kshare.testing.records import producer_config
from tests.support.clock import until

WAIT_S = 30


class Topics:
    """Needs ``bootstrap_servers``, and adds topics, records, trims and access rules."""

    # Whether no test stops or kills a broker here: then no answer to a producer is lost, and it
    # sends nothing twice. Idempotence costs each call half a second, until the producer has its id.
    is_calm = False

    @property
    def bootstrap_servers(self) -> str:
        raise NotImplementedError

    @cached_property
    def admin(self) -> AdminClient:
        """A confluent-kafka admin client."""
        # log_level 2: that a broker is gone is what the tests do on purpose.
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 2})

    def wait_for_leaders(self) -> None:
        """Return when every partition has a leader."""
        until(
            lambda: not self._leaderless(),
            shown=lambda: f"without a leader: {', '.join(self._leaderless())}",
        )

    def _leaderless(self) -> list[str]:
        topics = self.admin.list_topics(timeout=WAIT_S).topics.values()
        return [
            f"{topic.topic}-{number}"
            for topic in topics
            for number, partition in topic.partitions.items()
            if partition.leader == -1
        ]

    def create_topic(
        self,
        topic: str | None = None,
        partitions: int = 1,
        *,
        replication: int = 1,
        config: Mapping[str, object] | None = None,
        on: int | None = None,
    ) -> str:
        """Create a topic (``None``: with a new name), and return its name.

        Args:
            topic: Its name.
            partitions: Number of partitions.
            replication: Number of copies of each.
            config: Its configuration.
            on: Node id of the only broker that has it; None: brokers decide.
        """
        topic = topic or f"topic-{uuid.uuid4().hex[:12]}"
        settings = {name: str(value) for name, value in (config or {}).items()}
        if on is None:
            new = NewTopic(topic, partitions, replication, config=settings)
        else:
            new = NewTopic(
                topic, partitions, replica_assignment=[[on]] * partitions, config=settings
            )
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                self.admin.create_topics([new])[topic].result(WAIT_S)
                break
            except KafkaException as error:
                # A broker that has just started, or that a busy machine kept from its heartbeats.
                is_fenced = error.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR
                if not is_fenced or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        # It is made when the controller says so; brokers know of it a moment later.
        self._wait_for_partitions(topic, partitions)
        return topic

    def _wait_for_partitions(self, topic: str, count: int) -> None:
        until(
            lambda: len(self._partitions(topic)) == count,
            shown=lambda: f"{topic}: {self._partitions(topic)} of {count} partitions",
        )

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and wait until brokers know it no more."""
        self.admin.delete_topics([topic])[topic].result(WAIT_S)
        until(
            lambda: topic not in self.admin.list_topics(timeout=WAIT_S).topics,
            shown=lambda: f"{topic} is still there",
        )

    def add_partitions(self, topic: str, total: int) -> None:
        """Raise the number of a topic's partitions to ``total``, and wait until brokers know it."""
        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(WAIT_S)
        self._wait_for_partitions(topic, total)

    def produce(
        self,
        topic: str,
        records: Iterable[RecordLike],
        *,
        partition: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> int:
        """Produce records, and return how many; see ``kshare.testing.produce``."""
        settings = {"enable.idempotence": False, "max.in.flight": 1} if self.is_calm else {}
        return produce(
            self.bootstrap_servers,
            topic,
            records,
            partition=partition,
            config=settings | dict(config or {}),
        )

    def produce_transaction(
        self,
        topic: str,
        records: Iterable[RecordLike],
        *,
        commit: bool = True,
        partition: int | None = None,
        transactional_id: str | None = None,
        config: Mapping[str, object] | None = None,
    ) -> int:
        """Produce records in one transaction, which is committed or aborted at the end.

        Returns when the markers of its end are in the log, which brokers write a moment later.
        """
        before = self._ends(topic)
        producer = self.transaction(transactional_id, config=config)
        count = produce_all(producer, topic, records, partition=partition)
        producer.flush(WAIT_S)
        written = {number: end for number, end in self._ends(topic).items() if end > before[number]}
        if commit:
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)
        until(
            lambda: all(self.latest(topic, number) > end for number, end in written.items()),
            shown=lambda: f"{topic}: no end of the transaction in the log",
        )
        return count

    def _ends(self, topic: str) -> dict[int, int]:
        return {number: self.latest(topic, number) for number in self._partitions(topic)}

    def _partitions(self, topic: str) -> list[int]:
        return list(self.admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions)

    def transaction(
        self, transactional_id: str | None = None, *, config: Mapping[str, object] | None = None
    ) -> Producer:
        """Return a producer with a begun transaction, to be ended by the caller."""
        settings = producer_config(self.bootstrap_servers) | {
            "transactional.id": transactional_id or f"tx-{uuid.uuid4().hex[:12]}",
        }
        producer = Producer(settings | dict(config or {}))
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        return producer

    def trim(self, topic: str, partition: int, before_offset: int) -> None:
        """Delete the records below an offset."""
        place = Place(topic, partition, before_offset)
        for future in self.admin.delete_records([place]).values():
            future.result(WAIT_S)

    def earliest(self, topic: str, partition: int = 0) -> int:
        """Return the log start offset."""
        return watermarks(self.bootstrap_servers, topic, partition)[0]

    def latest(self, topic: str, partition: int = 0) -> int:
        """Return the high watermark."""
        return watermarks(self.bootstrap_servers, topic, partition)[1]

    def set_quotas(self, client_id: str, **quotas: float) -> None:
        """Bound what a client may do: ``consumer_byte_rate``, ``request_percentage``, ..."""
        host, port = self.bootstrap_servers.split(",")[0].rsplit(":", 1)
        config = KafkaConfig(bootstrap_servers=((host, int(port)),))
        entry = AlterClientQuotasRequest.EntryData
        with closing(Connection(host, int(port), config)) as connection:
            # Not one of kshare's own requests, which have a table.
            version = min(1, connection.api_versions[AlterClientQuotasRequest.API_KEY][1])
            entity = entry.EntityData(entity_type="client-id", entity_name=client_id)
            ops = [entry.OpData(key=key, value=most, remove=False) for key, most in quotas.items()]
            request = AlterClientQuotasRequest(
                version=version, entries=[entry(entity=[entity], ops=ops)], validate_only=False
            )
            (answer,) = connection.call(request).entries
            assert answer.error_code == 0, answer.error_message

    def deny(
        self, topic: str, user: str = "stranger", operation: AclOperation = AclOperation.READ
    ) -> None:
        """Deny one user one operation on a topic; all others may do everything."""
        self._deny(ResourceType.TOPIC, topic, user, operation)

    def deny_on_cluster(self, operation: AclOperation, user: str = "stranger") -> None:
        """Deny one user one operation on the cluster; all others may do everything."""
        self._deny(ResourceType.BROKER, "kafka-cluster", user, operation)

    def _deny(self, kind: ResourceType, name: str, user: str, operation: AclOperation) -> None:
        rules = [
            ("User:*", AclOperation.ALL, AclPermissionType.ALLOW),
            (f"User:{user}", operation, AclPermissionType.DENY),
        ]
        literal = ResourcePatternType.LITERAL
        bindings = [
            AclBinding(kind, name, literal, principal, "*", what, permission)
            for principal, what, permission in rules
        ]
        for future in self.admin.create_acls(bindings).values():
            future.result(WAIT_S)
        rule = _denial(name, user, operation, kind)
        until(lambda: self.admin.describe_acls(rule).result(WAIT_S))

    def allow_again(self, topic: str, operation: AclOperation, user: str = "stranger") -> None:
        """Deny a user an operation on a topic no more."""
        rule = _denial(topic, user, operation)
        (deleted,) = self.admin.delete_acls([rule]).values()
        assert len(deleted.result(WAIT_S)) == 1
        until(lambda: not self.admin.describe_acls(rule).result(WAIT_S))


def _denial(
    name: str, user: str, operation: AclOperation, kind: ResourceType = ResourceType.TOPIC
) -> AclBindingFilter:
    literal, denied = ResourcePatternType.LITERAL, AclPermissionType.DENY
    return AclBindingFilter(kind, name, literal, f"User:{user}", "*", operation, denied)
