"""Hands out the records that a consumer has in hand, to calls that return them or give them back.

::

    fetched --> in hand --> chunk --> rows --> collected by a call --> returned, or back in hand
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, TypeAlias

from kshare.core.progress import TopicPartition
from kshare.core.waits import Wait
from kshare.group.core.deliveries import Deliveries, MayCount, Starts
from kshare.group.core.delivery import Delivery
from kshare.group.message import Chunk, Message, Rows

__all__ = ["Begins", "ByPartition", "Call", "HandingOut", "are_in_place"]

Begins: TypeAlias = Callable[[Chunk], None]
"""Called with each chunk whose records are handed out next."""

_UNACKNOWLEDGED_MAX: Final = 1_000_000
"""Number of records that are handed out and not acknowledged, above which nothing more is read."""
_FULL: Final = Wait(
    f"nothing more is read, as {_UNACKNOWLEDGED_MAX:,} records are not acknowledged",
    "some of them are acknowledged",
)


class HandingOut:
    """Hands out what the deliveries of a consumer have in hand, and says if more is to be fetched.

    For one thread at a time.

    Args:
        deliveries: The deliveries.
        explicit: Whether records are acknowledged one by one.
    """

    def __init__(self, deliveries: Deliveries, *, explicit: bool) -> None:
        self._deliveries = deliveries
        self._by_partition = deliveries.by_partition
        self._fetched = deliveries.fetched
        self._left_out = deliveries.left_out
        self._explicit = explicit

    def begun(self, begins: Begins) -> Rows | None:
        """The rows of the next chunk that is in hand; None if there is none."""
        following = next(self._fetched.rest, None)
        if following is None:
            return None
        chunk, end = following
        begins(chunk)
        self._fetched.partition = chunk.topic_partition
        delivery = self._by_partition[chunk.topic_partition]
        chunk.belongs_to(delivery.start)
        rows = delivery.begin(chunk, end)
        self._left_out.mark(chunk)
        return rows

    @property
    def current(self) -> TopicPartition:
        """The partition of what may be handed out now; there is something."""
        batch = self._fetched.batch
        partition = self._fetched.partition if batch is None else batch[0].topic_partition
        assert partition is not None
        return partition

    def waits(self) -> dict[Hashable, Wait]:
        """The wait that keeps it from reading more, while too much is not acknowledged."""
        if not self._explicit:
            return {}
        deliveries = list(self._by_partition.values())
        if sum([each.unacknowledged_at_most for each in deliveries]) < _UNACKNOWLEDGED_MAX:
            return {}
        waiting = sum([each.unacknowledged for each in deliveries])
        return {"full": _FULL} if waiting >= _UNACKNOWLEDGED_MAX else {}

    @property
    def delivery(self) -> Delivery:
        """The delivery of what may be handed out now; there is something."""
        return self._by_partition[self.current]

    def collect(self, most: int, into: list[Message]) -> None:
        """Hand out messages in hand, at least one, until it is known what becomes of them.

        Tell the call of their :attr:`delivery` first: then they go back after an interrupt.

        Args:
            most: Maximum number of messages.
            into: The call's messages. At any moment, each message is either here or in hand.
        """
        self.delivery.collect()
        into.extend(islice(self._fetched.rows.messages, most))

    def collect_batch(self, begins: Begins) -> Chunk:
        """Hand out the batch in hand as one chunk, until it is known what becomes of it."""
        batch = self._fetched.batch
        assert batch is not None
        chunk, end = batch
        delivery = self._by_partition[chunk.topic_partition]
        delivery.collect()
        chunk.belongs_to(delivery.start)
        delivery.hand_out(chunk, end)
        begins(chunk)
        self._fetched.batch = None  # last: until then, nothing passes over it
        return chunk


ByPartition: TypeAlias = Mapping[TopicPartition, Delivery]
"""Deliveries by partition."""


def are_in_place(
    some: ByPartition, present: ByPartition, started: Starts, may_count: MayCount
) -> bool:
    """Tell whether some deliveries go on.

    Args:
        some: The deliveries.
        present: Those of the consumer now.
        started: From where each partition is delivered, by what the session says now. What belongs
            to another start counts no more.
        may_count: Tells whether what a provisional one hands out counts.
    """
    return all(
        present.get(partition) is each
        and (
            may_count(partition, each.start)
            if each.is_provisional
            else started.get(partition) == each.start
        )
        for partition, each in some.items()
    )


class Call:
    """Records that one call has collected and has not returned yet.

    ::

        took, took ... --the right is there when the call returns--> confirm: it is returned
                       --it is not, or the call ends otherwise----> give_back: it comes again

    Guarantees: what was not confirmed counts in no commit, and is handed out again, in order. Not
    for use by several threads at a time.

    Attributes:
        messages: The messages, in the order in which they are returned.
        is_cancelled: Whether nobody waits for the call any more.
        is_gathered: Whether no thread collects anything for it now.
        made: What was made of the records, by whoever collects them; None if nothing was.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.is_cancelled = False
        self.is_gathered = False
        self.made: Any = None
        self._deliveries: dict[TopicPartition, Delivery] = {}

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to return."""
        return not self._deliveries

    def took(self, delivery: Delivery) -> None:
        """Note whose messages, or batch, it collects; before it does, as an interrupt may come."""
        self._deliveries[delivery.topic_partition] = delivery

    def may_return(
        self, seconds: float, present: ByPartition, started: Starts, may_count: MayCount
    ) -> bool:
        """Tell whether what it has collected may be returned at this moment.

        Args:
            seconds: For how long the member may deliver; below 0: not now.
            present: The deliveries of the consumer now.
            started: As for :func:`are_in_place`.
            may_count: As for that.
        """
        is_in_time = not self.is_cancelled and seconds >= 0
        return is_in_time and are_in_place(self._deliveries, present, started, may_count)

    def was_stopped(self, present: ByPartition) -> bool:
        """True if the delivery of some of it has ended or was begun again."""
        return any(present.get(tp) is not each for tp, each in self._deliveries.items())

    def confirm(self) -> list[Message]:
        """It is returned."""
        for delivery in self._deliveries.values():
            delivery.confirm()
        messages, self.messages = self.messages, []
        self._deliveries.clear()
        return messages

    def give_back(self, present: ByPartition) -> Iterator[TopicPartition]:
        """It is not returned: yield the partitions to take back, whose records come again.

        If their delivery has ended, its successor decides what comes. After an interrupt amid that,
        the same goes back by another call.
        """
        while self._deliveries:
            partition, delivery = next(iter(self._deliveries.items()))
            if present.get(partition) is delivery:
                yield partition
            left = [each for each in self.messages if each.topic_partition != partition]
            # Last, and without a call, so that no interrupt comes between.
            self.messages = left
            del self._deliveries[partition]
