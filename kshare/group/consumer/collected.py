"""What a call has collected, and has not returned yet: it is returned, or it goes back.

::

    collect, collect ... --the right is there when the call returns--> confirm: it is returned
                         --it is not, or the call ends otherwise----> give_back: it comes again

Guarantees: what was not confirmed counts in no commit, and is handed out again, in order. Not for
use by several threads at a time.
"""

import pyarrow as pa

from kshare.core.progress import TopicPartition
from kshare.group.delivery.delivery import Delivery
from kshare.group.delivery.tail import Tail
from kshare.group.message import Message

__all__ = ["Collected"]


class Collected:
    """What one call has collected.

    Args:
        tail: Hands records out.

    Attributes:
        messages: The messages, in the order in which they are returned.
        is_cancelled: Whether nobody waits for the call any more.
        is_gathered: Whether no thread collects anything for it now.
    """

    def __init__(self, tail: Tail) -> None:
        self.messages: list[Message] = []
        self.is_cancelled = False
        self.is_gathered = False
        self._tail = tail
        self._deliveries: dict[TopicPartition, Delivery] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to return."""
        return not self._deliveries

    def collect(self, most: int) -> None:
        """Take messages that may be handed out, so many at most."""
        partition, messages = self._tail.collect(most)
        self._deliveries[partition] = self._tail.deliveries[partition]
        self.messages += messages

    def collect_batch(self) -> pa.RecordBatch:
        """Take the record batch that is ready."""
        partition, self.messages, batch = self._tail.collect_batch()
        self._deliveries[partition] = self._tail.deliveries[partition]
        return batch

    def is_in_place(self) -> bool:
        """Whether all that it is of is delivered still, by what the session says now."""
        return self._tail.are_in_place(self._deliveries)

    def was_stopped(self) -> bool:
        """Whether the delivery of some of it has ended or was begun again."""
        deliveries = self._tail.deliveries
        return any(deliveries.get(tp) is not each for tp, each in self._deliveries.items())

    def confirm(self) -> list[Message]:
        """It is returned."""
        for delivery in self._deliveries.values():
            delivery.confirm()
        messages, self.messages = self.messages, []
        self._deliveries.clear()
        return messages

    def give_back(self) -> None:
        """It comes again; what is of deliveries that have ended comes as their successors say."""
        messages, self.messages = self.messages, []
        for partition, delivery in self._deliveries.items():
            if self._tail.deliveries.get(partition) is delivery:
                of_it = [each for each in messages if each.topic_partition == partition]
                self._tail.take_back(partition, of_it)
        self._deliveries.clear()
