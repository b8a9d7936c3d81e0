"""What brokers know of partitions that a consumer is given: whether they exist, and where they end.

Guarantees: brokers that do not answer within 2 s keep nobody from assigning partitions that exist.

Cost: a client, and one or two round trips.
"""

import logging
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from kshare.cluster.cluster import Cluster
from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError, UnknownTopicError
from kshare.options import KafkaConfig, Subscribe

__all__ = ["check_existence", "log_offsets"]

_log = logging.getLogger("kshare.group")

_PATIENCE_SECONDS: Final = 2.0


def check_existence(kafka: KafkaConfig, partitions: Collection[TopicPartition]) -> None:
    """Refuse partitions that do not exist.

    Raises:
        UnknownTopicError: A topic does not exist, or has fewer partitions.
    """
    if not partitions:
        return
    topics = tuple(sorted({tp.topic for tp in partitions}))
    with closing(Cluster(replace(kafka, offset_attempts=1))) as cluster:
        cluster.shorten_timeout(_PATIENCE_SECONDS)
        try:
            existing = {*cluster.partitions(Subscribe(topics))}
        except UnknownTopicError:
            raise
        except KafkaError as error:  # the session says it, should it last
            _log.info("cannot see whether %s exist: %s", ", ".join(topics), error)
            return
    for tp in sorted(partitions):
        count = sum(each.topic == tp.topic for each in existing)
        if tp not in existing:
            raise UnknownTopicError(
                f"{tp} does not exist: topic {tp.topic} has partitions 0 to {count - 1}",
                topic=tp.topic,
                partition=tp.partition,
            )


def log_offsets(
    kafka: KafkaConfig, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Offsets, with those of the log in place of ``OFFSET_BEGINNING`` and ``OFFSET_END``.

    Raises:
        KafkaError: The cluster did not answer, or refused.
    """
    first = [tp for tp, offset in offsets.items() if offset == OFFSET_BEGINNING]
    last = [tp for tp, offset in offsets.items() if offset == OFFSET_END]
    if not first and not last:
        return dict(offsets)
    with closing(Cluster(kafka)) as cluster:
        return {**offsets, **cluster.earliest(first), **cluster.latest(last)}
