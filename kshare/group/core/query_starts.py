"""True if others have processed what a query is to read: by where its claims start.

A query goes by its checkpoint, so it cannot go on where others have stopped. Mostly its claims say
that another member has taken over. They do not if that member has left and the log was compacted
before the query has read it again: then its session claims anew, and starts behind what is
committed. A session that was made anew after a fault does, too::

    start, started again --> offsets were reset since: as an operator wants it
                         --> all that is committed is what the query has processed: it goes on
                         --> there is more: another member has worked in its place
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from kshare.core.hashing import HashRange
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.group.delivery_start import DeliveryStart

__all__ = ["QueryStarts"]


@dataclass(slots=True)
class QueryStarts:
    """The last start of each partition that a query has claimed."""

    _known: dict[TopicPartition, tuple[DeliveryStart, int]] = field(default_factory=dict)

    @property
    def partitions(self) -> AbstractSet[TopicPartition]:
        """The partitions that have started."""
        return self._known.keys()

    def passed_by(
        self,
        partition: TopicPartition,
        start: DeliveryStart,
        incarnation: int,
        *,
        hashes: Sequence[HashRange],
        processed: Progress,
    ) -> tuple[Rectangle, ...]:
        """What others have committed in the place of the query, since it has started before.

        Args:
            partition: The partition.
            start: From where its session says that it is delivered.
            incarnation: How often its offsets were reset.
            hashes: The key hashes that the query reads.
            processed: What the query has processed, in total.

        Returns:
            Empty if the query may go on. Else, the next call says it again.
        """
        known = self._known.get(partition)
        if known is not None and known[0] != start and known[1] == incarnation:
            # What was ahead of it when it started was so by its checkpoint.
            passed = start.done.within(hashes).minus(processed.union(known[0].done))
            if passed:
                return passed
        self._known[partition] = start, incarnation
        return ()
