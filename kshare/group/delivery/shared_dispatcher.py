"""What a consumer reads of partitions without key order: offsets that it has leased.

::

    probe at the lowest free offset --records are there--> lease --> read the lease --> hand it out
            ^                                                ^                              |
            +------- nothing is free ------------------------+---- one lease is ahead <-----+

One lease is read at a time, to its end, and the next one is leased meanwhile. A member that finds
nothing free waits for records with a long poll where the next ones will be. One that has processed
many leases asks for none before some of them are committed.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kshare.core.hashing import WHOLE, KeyRanges
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice, Stripe, TopicPartition
from kshare.errors import KshareError
from kshare.group.config.table import ConsumerConfig
from kshare.group.core.shared_deliveries import SharedDeliveries
from kshare.group.core.shared_delivery import SharedDelivery
from kshare.group.delivery.dispatcher import Dispatcher
from kshare.group.message import ReleaseCount
from kshare.group.metrics import PartitionMetrics
from kshare.group.protocol.owners.leases import Share
from kshare.group.session.session import GroupSession
from kshare.read.reader.tail_reader import NO_END, TailReader, TailRecords

__all__ = ["SharedDispatcher"]

_log = logging.getLogger("kshare.group")

_MOST_UNCOMMITTED: Final = 200
"""How many leases of a partition may be processed and not committed."""


class SharedDispatcher(Dispatcher):
    """Hands out the records of partitions that are shared by leases. For one thread at a time.

    Args:
        config: The consumer's configuration.
        session: Leases offsets.
        reader: Fetches.
        release_count: For :attr:`.Chunk.release_count`.
        obstacle: Says why nothing is committed; None as long as something will be.
    """

    state: SharedDeliveries
    state_class = SharedDeliveries

    def __init__(
        self,
        config: ConsumerConfig,
        session: GroupSession,
        reader: TailReader,
        release_count: ReleaseCount,
        obstacle: Callable[[], str | None],
    ) -> None:
        super().__init__(config, session, reader, release_count)
        self._obstacle = obstacle
        self._bounds: dict[TopicPartition, tuple[int, int]] = {}  # of the logs, as seen last
        self._probes: dict[TopicPartition, int] = {}  # where records are waited for

    @property
    def finished_leases(self) -> int:
        """Number of leases that have been processed."""
        return self.state.finished

    def refresh(self, *, continues: bool = False, begins: bool = False) -> None:
        """Follow the session: start what has started, drop what has not, and go on."""
        super().refresh(continues=continues, begins=begins)
        for topic_partition, delivery in list(self.state.shared.items()):
            share = self._session.share(topic_partition)
            if share is None:
                continue
            self.state.update(topic_partition, share)
            if topic_partition not in self.state.paused:
                self._go_on(topic_partition, delivery, share)
        warnings = self.state.late.warnings
        while warnings:
            _log.warning("group %s, %s", self._config.group, warnings.pop(0))

    def seek(self, topic_partition: TopicPartition, offset: int, *, is_batch: bool = True) -> None:  # noqa: ARG002
        """Not possible.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            f"{topic_partition}: cannot seek to {offset}: with consumption.order=none, members "
            "take chunks as they are free"
        )

    def _metrics(
        self, topic_partition: TopicPartition, hashes: KeyRanges, *, is_batch: bool
    ) -> PartitionMetrics:
        metrics = super()._metrics(topic_partition, hashes, is_batch=is_batch)
        # What others have done is not known here.
        return replace(metrics, stable_offset=None, retention_margin=None)

    def _go_on(
        self, topic_partition: TopicPartition, delivery: SharedDelivery, share: Share
    ) -> None:
        """Lease, read or wait: what is next for a partition."""
        bounds = self._reader.bounds(topic_partition)
        if bounds is not None:
            self._bounds[topic_partition] = bounds
        is_read = self._reader.delivered(topic_partition) >= delivery.end
        if (
            is_read
            and not delivery.is_handed_out
            and self.state.fetched.has_all_out(topic_partition)
        ):
            delivery.pass_to(delivery.end)
        if delivery.is_handed_out and delivery.has_new:
            self.state.fetched.anew[topic_partition] = None
            delivery.next_part()
            self._read_anew()
        if not delivery.has_new and not share.is_asking and not _is_full(delivery):
            self._lease(topic_partition, delivery, share)

    def _lease(
        self, topic_partition: TopicPartition, delivery: SharedDelivery, share: Share
    ) -> None:
        """Ask for a lease if something is known to be free; else, with nothing to do, look."""
        first, end = self._bounds.get(topic_partition, (0, 0))
        if share.free < end:
            self._session.want(topic_partition, first, end)
        elif delivery.is_handed_out and self._probes.get(topic_partition) != share.free:
            self._probes[topic_partition] = share.free
            rectangle = Rectangle(OffsetRange(share.free, NO_END), WHOLE)
            self._reader.read(Slice(*topic_partition, (rectangle,)))

    def _check_committed(self) -> None:
        for topic_partition, delivery in list(self.state.shared.items()):
            is_stuck = delivery.is_handed_out and not delivery.has_new and _is_full(delivery)
            if is_stuck and (why := self._obstacle()) is not None:
                raise KshareError(
                    f"group {self._config.group}, {topic_partition}: {delivery.uncommitted} chunks "
                    f"are processed and not committed, so no more are taken: {why}"
                )

    def _begin(self, topic_partition: TopicPartition, wanted: tuple[Stripe, ...]) -> None:
        """Read the rest of the part that is handed out, in place of a probe, too."""
        self._probes.pop(topic_partition, None)
        super()._begin(topic_partition, wanted)

    def _fetch(self, seconds: float) -> TailRecords | None:
        """Fetch; what a probe brings is not leased, and says only that it is there.

        Raises:
            KshareError: Too many leases are not committed; no more are asked for.
        """
        self._check_committed()
        records = super()._fetch(seconds)
        is_probe = records is not None and records.topic_partition in self._probes
        for topic_partition, free in list(self._probes.items()):
            bounds = self._reader.bounds(topic_partition)
            if bounds is not None and bounds[1] > free:
                self._bounds[topic_partition] = bounds
                self._reader.drop(topic_partition)
                del self._probes[topic_partition]
        return None if is_probe else records


def _is_full(delivery: SharedDelivery) -> bool:
    delivery.count()
    return delivery.uncommitted >= _MOST_UNCOMMITTED
