"""What a consumer hands out of partitions without key order, and what is still in work of before.

::

    leased --> handed out --its lease ends--> late --the log says that it is done--> forgotten
                   |                            |
                   +--- processed: committed ---+

Facts are true in any order. So what was handed out from a start that has ended counts as soon as it
is processed, under that start: others may have been given it meanwhile, and then it is done twice.
"""

from collections.abc import Collection, Iterator
from typing import Final, cast

from kshare.core.hashing import KeyRanges
from kshare.core.offsets import Bounds, union
from kshare.core.progress import TopicPartition
from kshare.group.core.deliveries import Deliveries, MayCount
from kshare.group.core.delivery import Delivery
from kshare.group.core.handed_out import Offsets
from kshare.group.core.left_out import LeftOut
from kshare.group.core.position import Position
from kshare.group.core.shared_delivery import SharedDelivery
from kshare.group.core.work import LateWork
from kshare.group.delivery_start import DeliveryStart
from kshare.group.protocol.owners.leases import Share, processed_offsets

__all__ = ["LateDeliveries", "SharedDeliveries"]

_MOST: Final = 16
"""Maximum number of late deliveries of a partition."""
_MOST_RECORDS: Final = 1_000_000
"""Maximum number of records of a partition that are late and not acknowledged."""


class LateDeliveries:
    """Deliveries that have ended, with something that may be processed or committed later.

    Attributes:
        warnings: Texts that are to be logged.
    """

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._all: tuple[SharedDelivery, ...] = ()  # in the order in which they have ended
        self._refused = frozenset[TopicPartition]()  # of which a commit has said so
        self._forgotten_parts = 0

    def __iter__(self) -> Iterator[SharedDelivery]:
        """All of them, the oldest one first."""
        return iter(self._all)

    def of(self, partition: TopicPartition) -> list[SharedDelivery]:
        """Those of a partition, the oldest one first."""
        return [each for each in self._all if each.topic_partition == partition]

    def add(self, delivery: SharedDelivery) -> None:
        """A delivery has ended."""
        self._refused -= {delivery.topic_partition}
        if not any(each is delivery for each in self._all):  # else after an interrupt
            self._all = (*self._all, delivery)
        self._drop([each for each in self._all if each.is_over])
        known = self.of(delivery.topic_partition)
        while len(known) > _MOST or sum(each.unacknowledged for each in known) > _MOST_RECORDS:
            first, offsets = known[0], known[0].offsets
            self.warnings.append(
                f"{first.topic_partition}: of offsets {offsets[0]} to {offsets[-1] - 1}, what was "
                "returned and is not committed is not waited for any more: it comes again, also "
                "if it is processed later"
            )
            self._drop([known.pop(0)])

    def forget(self, partition: TopicPartition, processed: Bounds) -> None:
        """The log says that some offsets of a partition are processed."""
        known = self.of(partition)
        for each in known:
            each.forget(processed)
        self._drop([each for each in known if each.is_over])

    def keep(self, may_count: MayCount) -> None:
        """A commit has been refused: forget those that will never be committed.

        Of the others it has been said now: they count if their partition comes back.
        """
        self._drop([each for each in self._all if not may_count(each.topic_partition, each.start)])
        self._refused = frozenset(each.topic_partition for each in self._all)

    @property
    def unrefused(self) -> frozenset[TopicPartition]:
        """The partitions of which no commit has been refused since the last delivery ended."""
        return frozenset(each.topic_partition for each in self._all) - self._refused

    def _drop(self, dropped: Collection[SharedDelivery]) -> None:
        if dropped:
            self._forgotten_parts += sum(each.finished for each in dropped)
            self._all = tuple(each for each in self._all if each not in dropped)

    @property
    def finished(self) -> int:
        """Number of parts that were processed."""
        for each in self._all:
            each.count()
        return self._forgotten_parts + sum(each.finished for each in self._all)


class SharedDeliveries(Deliveries):
    """The deliveries of partitions without key order.

    Attributes:
        late: Those that have ended, and are of interest.
    """

    def __init__(self, left_out: LeftOut, *, explicit: bool, is_transactional: bool) -> None:
        super().__init__(left_out, explicit=explicit, is_transactional=is_transactional)
        self.late = LateDeliveries()

    def _new_delivery(
        self,
        topic_partition: TopicPartition,
        start: DeliveryStart,
        hashes: KeyRanges,  # noqa: ARG002
        before: Position,  # noqa: ARG002
    ) -> Delivery:
        return SharedDelivery(topic_partition, start, explicit=self._explicit)

    def _stop(self, topic_partition: TopicPartition) -> None:
        self._give_up(topic_partition)
        delivery = self.shared[topic_partition]
        delivery.leave()
        self.late.add(delivery)
        super()._stop(topic_partition)

    @property
    def shared(self) -> dict[TopicPartition, SharedDelivery]:
        """The deliveries by partition, all of which are shared ones."""
        return cast("dict[TopicPartition, SharedDelivery]", self.by_partition)

    @property
    def finished(self) -> int:
        """Number of leases that have been processed."""
        for delivery in self.shared.values():
            delivery.count()
        return self.late.finished + sum(each.finished for each in self.shared.values())

    def update(self, topic_partition: TopicPartition, share: Share) -> None:
        """Leases of a partition have come or gone, or members have processed something."""
        self.late.forget(topic_partition, processed_offsets(share.done))
        late = self.late.of(topic_partition)
        known = union(each.processed_offsets(is_batch=True) for each in late)
        self.shared[topic_partition].update(share, known)

    # -- what is processed ------------------------------------------------------------------

    def settle(self) -> None:
        """In implicit mode, what was returned so far is processed."""
        super().settle()
        for delivery in self.late:
            delivery.settle()

    def acknowledge_rows(
        self, topic_partition: TopicPartition, offsets: Offsets, chunks: Collection[int]
    ) -> None:
        """Records are processed, as :meth:`.Deliveries.acknowledge_rows`, however late."""
        super().acknowledge_rows(topic_partition, offsets, chunks)
        for delivery in self.late.of(topic_partition):
            delivery.acknowledge(offsets, chunks)

    def acknowledge_below(
        self, topic_partition: TopicPartition, offset: int, point: int | None = None
    ) -> LateWork | None:
        """What was returned of a partition below an offset is processed, however late."""
        late, gone = self.late.of(topic_partition), None
        if offset > max((each.furthest for each in late), default=-1):
            gone = super().acknowledge_below(topic_partition, offset, point)
        elif topic_partition in self.by_partition:
            late.append(self.shared[topic_partition])
        for delivery in late:
            delivery.acknowledge_below(min(offset, delivery.furthest))
        return gone

    @property
    def late_partitions(self) -> frozenset[TopicPartition]:
        """The partitions of deliveries that have ended, and that a commit is to speak of."""
        return self.late.unrefused

    def keep_late(self, may_count: MayCount) -> None:
        """Forget deliveries that have ended and will never be committed."""
        self.late.keep(may_count)

    def late_work(
        self, partitions: Collection[TopicPartition], *, is_batch: bool
    ) -> tuple[LateWork, ...]:
        """What is processed of deliveries that have ended."""
        return tuple(
            LateWork(each.topic_partition, each.start, each.processed(is_batch=is_batch))
            for each in self.late
            if each.topic_partition in partitions and each.processed_offsets(is_batch=is_batch)
        )
