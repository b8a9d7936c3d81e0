"""How far a partition's delivery is, as metrics."""

from kshare.core.hashing import HashRange
from kshare.core.progress import Progress
from kshare.group.core.delivery import Delivery
from kshare.group.metrics import PartitionMetrics
from kshare.monitor.report import lag

__all__ = ["delivery_metrics", "pending_offsets"]


def delivery_metrics(
    delivery: Delivery,
    hashes: tuple[HashRange, ...],
    bounds: tuple[int | None, int | None],
    waiting: int,
    *,
    is_batch: bool,
) -> PartitionMetrics:
    """The metrics of a partition that has started.

    Args:
        delivery: What hands it out.
        hashes: The key hashes that are owned.
        bounds: The first offset of the log, and its end; None if they are not known.
        waiting: Number of records that are kept back for their keys.
        is_batch: As for :meth:`.Delivery.processed`.
    """
    processed = delivery.processed(is_batch=is_batch)
    first, end = bounds
    stable = delivery.start.union(processed).position_of(hashes)
    return PartitionMetrics(
        hashes,
        delivery.position,
        end,
        None if end is None else pending_offsets(delivery.start, processed, end, hashes),
        max(delivery.in_flight(is_batch=is_batch) - waiting, 0),
        stable_offset=stable,
        gaps=delivery.gaps,
        held=waiting,
        oldest_unacknowledged_ms=delivery.oldest_unacknowledged_ms,
        retention_margin=None if first is None else max(stable - first, 0),
    )


def pending_offsets(
    start: Progress, processed: Progress, end: int, hashes: tuple[HashRange, ...]
) -> int:
    """Number of offsets below the end with something pending of some key hashes.

    Args:
        start: What had been processed at the start of the delivery.
        processed: What has been processed since.
        end: The end of the log.
        hashes: The key hashes, ascending.
    """
    return lag(start.union(processed), end, hashes)
