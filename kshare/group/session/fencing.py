"""Shutting out producers: of former owners, and of whoever hides the end of the log for long.

Groups share a partition of the log, and it is read to its last stable offset. A process that is
killed or frozen between its facts and the end of its transaction hides from then on what all these
groups write, until ``transaction.timeout.ms``. So a session that sees the same transaction open for
some seconds fences its transactional id.

It need not know whether the other one is dead: a fence is what a successor does, too. One that
lives gets :class:`~kshare.errors.TransactionAbortedError`, and its records come again. The fence
names producer and epoch, so it never meets a later producer of that id. It may come at any step:
so may the time-out of the coordinator, which is what the explorer of transactions tries.

Cost: nothing while transactions end in time; then two questions to brokers, in a thread of their
own. Brokers before Kafka 3.0 cannot tell whose the transaction is.
"""

import logging
from collections.abc import Callable, Collection
from contextlib import closing
from functools import partial
from typing import Final

from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError, KshareError
from kshare.group.log.tail import LogTail
from kshare.kafka.lacking import missing_apis
from kshare.kafka.protocol import error_codes
from kshare.kafka.protocol.apis import Feature
from kshare.kafka.protocol.background import OneCall
from kshare.kafka.protocol.broker_pool import BrokerPool
from kshare.kafka.protocol.retry import CHANCE
from kshare.kafka_python import DescribeProducersRequest
from kshare.options import KafkaConfig
from kshare.query.produce.coordinator import Coordinators

__all__ = ["HiddenEnd", "Watch", "fence_ids"]

_log = logging.getLogger("kshare.group")
_PATIENCE_SECONDS: Final = 4.0
_PATIENCE_MAX_SECONDS: Final = 60.0


def fence_ids(kafka: KafkaConfig, transactional_ids: Collection[str]) -> None:
    """Fence transactional ids, and wait until none of them has a transaction any more.

    Raises:
        AuthorizationError: The principal may not.
        KafkaError: A coordinator did not answer in time, or refused.
    """
    ids = "transactional ids of the group's members"
    with closing(Coordinators(kafka, ids=ids)) as coordinators:
        for transactional_id in sorted(transactional_ids):
            coordinators.fence(transactional_id, until_ended=True)


Producer = tuple[int, int]
"""Id and epoch of a producer."""


class Watch:
    """Sees that a transaction hides the end of the log for long.

    After each time it is more patient, up to a minute, until there was a minute without: brokers
    may be so slow that transactions take long.

    Args:
        now: Source of time.
        chance: A number from 0 to 1: the members of a partition do not all act at a time.
    """

    def __init__(self, now: Callable[[], float], chance: float) -> None:
        self._now = now
        self._least = self._patience = _PATIENCE_SECONDS * (1 + chance / 2)
        self._stable, self._end, self._since = -1, -1, 0.0
        self._acted_at = float("-inf")

    def look(self, stable: int, end: int) -> int | None:
        """Look at the last answer.

        Args:
            stable: The last stable offset.
            end: The log's end, as far as it is replicated.

        Returns:
            The offset before which transactions that are open are to be ended; None for none.
        """
        now = self._now()
        if stable >= end or stable != self._stable:
            if now - self._acted_at > _PATIENCE_MAX_SECONDS:
                self._patience = self._least
            is_open = stable < end
            self._stable, self._end, self._since = stable if is_open else -1, end, now
            return None
        if now - self._since < self._patience:
            return None
        self._since = self._acted_at = now
        self._patience = min(2 * self._patience, _PATIENCE_MAX_SECONDS)
        return self._end


class HiddenEnd:
    """Ends what hides the end of the log. For the session's thread.

    Args:
        kafka: How to reach the cluster.
        group: Id of the group, for the log.
        now: Source of time.
    """

    def __init__(self, kafka: KafkaConfig, group: str, now: Callable[[], float]) -> None:
        self._kafka = kafka
        self._group = group
        self._watch = Watch(now, CHANCE.random())
        self._is_possible = True
        self._ending = OneCall(f"kshare {group} ends a transaction")

    def look(self, partition: TopicPartition, tail: LogTail) -> None:
        """Look at the last answer of the log, and act beside the session's thread."""
        before = self._watch.look(*tail.last.bounds)
        if before is not None and self._is_possible:
            self._ending.begin(partial(self._end, partition, before))

    def _end(self, partition: TopicPartition, before: int) -> None:
        try:
            broker, missing = missing_apis(self._kafka, Feature.FENCING)
            if missing:
                self._is_possible = False
                _log.warning(
                    "group %s: a transaction hides what is written to %s. Broker %s does not know "
                    "%s, so nobody can tell whose it is, and hanging transactions are not fenced: "
                    "they end by their transaction.timeout.ms. All else works",
                    self._group, partition, broker, ", ".join(missing),
                )  # fmt: skip
                return
            ended = end_open(self._kafka, partition, before)
        except (KshareError, OSError) as error:
            _log.warning(
                "group %s: a transaction hides what is written to %s, and cannot be ended: %s",
                self._group, partition, error,
            )  # fmt: skip
        else:
            for name in ended:
                _log.warning(
                    "group %s: a transaction of %s has hidden what is written to %s for some "
                    "seconds: it is aborted",
                    self._group, name, partition,
                )  # fmt: skip


def end_open(kafka: KafkaConfig, partition: TopicPartition, before: int) -> list[str]:
    """Fence those whose transactions have written to a partition before an offset, and are open.

    Returns:
        Their transactional ids.

    Raises:
        AuthorizationError: The principal may not.
        KafkaError: Brokers refused, cannot tell, or do not know the transaction.
        OSError: A broker did not answer.
    """
    producers = open_producers(kafka, partition, before)
    ids = "transactional ids of all groups that share the log"
    fenced: list[str] = []
    with closing(Coordinators(kafka, ids=ids)) as coordinators:
        for producer in producers:
            names = coordinators.ids_of(producer[0])
            if not names:
                raise KafkaError(
                    f"no coordinator names the transactional id of producer {producer[0]}: the "
                    f"principal needs Describe on the {ids}; or Kafka has lost the transaction, "
                    "and kafka-transactions.sh abort ends it"
                )
            for name in names:
                coordinators.fence(name, producer=producer)
            fenced += names
    return fenced


def open_producers(kafka: KafkaConfig, partition: TopicPartition, before: int) -> list[Producer]:
    """The producers whose open transactions have written to a partition before an offset."""
    pool = BrokerPool(kafka)
    leader = pool.leaders([partition])[partition]
    if isinstance(leader, Exception):
        raise leader
    connection = pool.connect(leader)
    try:
        request = DescribeProducersRequest(
            version=connection.version(DescribeProducersRequest),
            topics=[
                DescribeProducersRequest.TopicRequest(
                    name=partition.topic, partition_indexes=[partition.partition]
                )
            ],
        )
        (topic,) = connection.call(request).topics
    finally:
        connection.close()
    (answer,) = topic.partitions
    if answer.error_code:
        raise KafkaError(
            f"cannot describe the producers of {partition}: {error_codes.name(answer.error_code)}"
        )
    return [
        (each.producer_id, each.producer_epoch)
        for each in answer.active_producers
        if 0 <= each.current_txn_start_offset < before
    ]
