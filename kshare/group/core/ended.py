"""Deliveries that have ended: a commit of what they had returned says what of it is lost.

With key order that counts no more, unless the session has it committed: see :class:`.LateWork`.
"""

from dataclasses import dataclass

from kshare.core.progress import Progress, TopicPartition
from kshare.core.region import EMPTY, Region
from kshare.group.core.delivery import Delivery
from kshare.group.core.work import LateWork
from kshare.group.delivery_start import DeliveryStart

__all__ = ["EndedDeliveries"]


@dataclass(frozen=True, slots=True)
class _Ended:
    """The deliveries of one partition that have ended.

    Attributes:
        start: One of its own, that no session takes anything of.
        end: The offset after the last record that was returned.
        returned: What was returned.
    """

    start: DeliveryStart
    end: int
    returned: Region


class EndedDeliveries:
    """The deliveries of a consumer that have ended. Cost: some offsets a partition, no records.

    Attributes:
        stops: How often the delivery of a partition has ended, or was begun again.
    """

    def __init__(self) -> None:
        self.stops = 0
        self._partitions: dict[TopicPartition, _Ended] = {}

    def add(self, delivery: Delivery) -> None:
        """A delivery has ended."""
        before = self._partitions.get(delivery.topic_partition)
        self._partitions[delivery.topic_partition] = _Ended(
            DeliveryStart.new(delivery.start.done),
            max(delivery.furthest, self.end(delivery.topic_partition)),
            delivery.all_returned | (EMPTY if before is None else before.returned),
        )

    def end(self, partition: TopicPartition) -> int:
        """The offset after the last record that was returned of a partition; -1 if none was."""
        ended = self._partitions.get(partition)
        return -1 if ended is None else ended.end

    def work(self, partition: TopicPartition, among: Region) -> LateWork | None:
        """Some records as far as they were returned, to be refused; None if none of them was."""
        ended = self._partitions.get(partition)
        some = EMPTY if ended is None else ended.returned & among
        if ended is None or not some:
            return None
        return LateWork(partition, ended.start, Progress.of_stripes(0, some.stripes))
