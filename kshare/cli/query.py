"""A query as commands see it: its checkpoint, beside what the broker has."""

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace

from kshare.core.live import decode_live
from kshare.core.open_batch import open_ranges, read_so_far
from kshare.core.progress import TopicPartition
from kshare.core.range_end import RangeId
from kshare.errors import DataLossError, KafkaError
from kshare.kafka.cluster import Cluster
from kshare.kafka.end_log import EndLog
from kshare.kafka.examination import log_bounds
from kshare.kafka.parked_keys import ParkedKeys
from kshare.monitor.status import Checkpoint, Source, Status, describe, read_checkpoint
from kshare.options import KafkaConfig

__all__ = ["observed_status", "query_status", "with_ends"]

_log = logging.getLogger(__name__)


def observed_status(
    directory: str,
    kafka: KafkaConfig | None,
    on_warning: Callable[[str], object] = lambda _: None,
) -> Status:
    """Look at a query once.

    Args:
        directory: Its ``checkpointLocation``.
        kafka: How to reach the cluster; None to look at the checkpoint alone.
        on_warning: As of :func:`query_status`.

    Raises:
        CheckpointError: The checkpoint cannot be read.
        KafkaError: The cluster did not answer, or refused.
    """
    checkpoint = read_checkpoint(directory)
    if kafka is None:
        return describe(checkpoint)
    checkpoint = with_ends(checkpoint, kafka)
    with closing(ParkedKeys(kafka)) as keys, closing(Cluster(kafka)) as cluster:
        return query_status(checkpoint, cluster, keys, on_warning)


def with_ends(checkpoint: Checkpoint, kafka: KafkaConfig) -> Checkpoint:
    """A checkpoint whose last batch reads for a while, with where it ended, or where it is now.

    Where that cannot be read, what is said to be processed is what was when the batch began.

    Args:
        checkpoint: What the checkpoint says.
        kafka: How to reach the cluster.
    """
    sources = tuple(_seen(each, kafka, checkpoint.is_done) for each in checkpoint.sources)
    return replace(checkpoint, sources=sources)


def _seen(source: Source, kafka: KafkaConfig, is_done: bool) -> Source:
    batch, begin = source.planned.open, source.planned.progress
    if batch is None:
        return source
    try:
        with EndLog(kafka, batch.topic) as log:
            ends = log.read(batch.log, open_ranges(batch, begin))
            said = None if log.live is None or is_done else decode_live(log.live)
    except (KafkaError, DataLossError, ValueError) as error:
        _log.info("where the last batch is, or has ended, is not known: %s", error)
        return source
    if is_done:
        return replace(source, done=read_so_far(batch, begin, ends))
    if said is None or said.batch != batch.name or not said.is_fresh(time.time()):
        return source
    positions = {RangeId(batch.name, *each[:2]): each.position for each in said.ranges}
    live = read_so_far(batch, begin, ends, positions)
    return replace(source, live=live, latency=(said.recent, said.latency))


def query_status(
    checkpoint: Checkpoint,
    cluster: Cluster,
    keys: ParkedKeys,
    on_warning: Callable[[str], object],
) -> Status:
    """Compare a query's checkpoint with its cluster, as far as that is known.

    Args:
        checkpoint: What the checkpoint says.
        cluster: The cluster.
        keys: The list of the parked keys.
        on_warning: Called with a text for each topic and partition of which nothing is known: it
            does not exist, does not answer, or may not be described; and if parked keys are not.

    Raises:
        KafkaError: The cluster did not answer, or refused all.
    """

    def on_fault(error: KafkaError) -> None:
        on_warning(str(error))

    def at(time_ms: int, asked: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offsets that are not older than a time; the logs' ends if all are.

        Without partitions that have no record at any time: their records have no timestamps, or
        their broker, such as librdkafka's mock, looks none up.
        """
        found = cluster.at_timestamps(dict.fromkeys(asked, time_ms), on_fault)
        older = [tp for tp, offset in found.items() if offset is None and logs[tp][0] < logs[tp][1]]
        ever = cluster.at_timestamps(dict.fromkeys(older, 0), on_fault) if older else {}
        return {
            tp: logs[tp][1] if offset is None else offset
            for tp, offset in found.items()
            if tp not in older or ever.get(tp) is not None
        }

    wanted = {partition for source in checkpoint.sources for partition in source.done}
    logs = log_bounds(cluster, wanted, on_fault)  # first: it says if nothing answers
    limited = {tp for source in checkpoint.sources for tp in source.planned.limits if tp in logs}
    return describe(
        checkpoint,
        logs,
        keys.known(on_warning),
        at(checkpoint.watermark_ms, limited) if checkpoint.can_drop_late_rows else None,
        at(checkpoint.planned_ms, logs) if checkpoint.is_done and checkpoint.planned_ms else None,
    )
