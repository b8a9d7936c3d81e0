"""Tells which records are of committed transactions, for a consumer that reads all of them."""

import time
from collections import defaultdict
from collections.abc import Collection
from contextlib import closing
from dataclasses import replace
from typing import Final

from kshare.core.hashing import WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice, TopicPartition
from kshare.dead_letters.record import Record
from kshare.errors import FetchTimeoutError
from kshare.group.config.table import ConsumerConfig
from kshare.group.delivery.dispatcher import read_options
from kshare.kafka.cluster import Cluster
from kshare.read.reader.read_slice import read_slice

__all__ = ["committed_of"]

_WAIT_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.05


def committed_of(records: Collection[Record], config: ConsumerConfig) -> set[Record]:
    """Those of some records that a reader with ``isolation.level=read_committed`` sees.

    Waits until it is decided.

    Args:
        records: The records.
        config: The consumer's configuration.

    Raises:
        FetchTimeoutError: A transaction is open for too long: ask again.
        KafkaError: The cluster did not answer, or refused.
    """
    kafka = replace(config.kafka, read_committed=True)
    options = replace(read_options(replace(config, kafka=kafka)), columns=("offset",))
    by_partition = defaultdict[TopicPartition, dict[int, Record]](dict)
    for record in records:
        by_partition[record.topic_partition][record.offset] = record
    with closing(Cluster(kafka)) as cluster:
        _wait(cluster, {tp: max(found) for tp, found in by_partition.items()})
    committed = set[Record]()
    for tp, found in by_partition.items():
        slice_ = Slice(*tp, [Rectangle(OffsetRange(min(found), max(found) + 1), WHOLE)])
        for batch in read_slice(slice_, options):
            offsets = batch.column("offset").to_pylist()
            committed |= {found[offset] for offset in offsets if offset in found}
    return committed


def _wait(cluster: Cluster, last: dict[TopicPartition, int]) -> None:
    """Wait until all transactions up to some offsets have ended."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        ends = cluster.latest(list(last))
        late = [tp for tp, offset in last.items() if ends[tp] <= offset]
        if not late:
            return
        if time.monotonic() > deadline:
            raise FetchTimeoutError(
                f"{late[0]} offset {last[late[0]]} was put back in a transaction that has not "
                "ended yet, and its key waits for that: kshare replay may have been killed, then "
                "the brokers end it",
                topic=late[0].topic,
                partition=late[0].partition,
                offset=last[late[0]],
            )
        time.sleep(_LOOK_SECONDS)
