"""Records that a call has collected and has not returned yet: it returns them, or they go back.

::

    took, took ... --the right is there when the call returns--> confirm: it is returned
                   --it is not, or the call ends otherwise----> give_back: it comes again

Guarantees: what was not confirmed counts in no commit, and is handed out again, in order. Not for
use by several threads at a time.
"""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from kshare.core.progress import Progress, TopicPartition
from kshare.group.core.delivery import Delivery
from kshare.group.message import Message

__all__ = ["ByPartition", "Call", "are_in_place"]

ByPartition: TypeAlias = Mapping[TopicPartition, Delivery]
"""Deliveries by partition."""


def are_in_place(
    some: ByPartition, present: ByPartition, started: Mapping[TopicPartition, Progress]
) -> bool:
    """Tell whether some deliveries go on.

    Args:
        some: The deliveries.
        present: Those of the consumer now.
        started: From where each partition is delivered, by what the session says now. What belongs
            to another start counts no more; the object says which one it is.
    """
    return all(
        present.get(partition) is each
        and (each.is_provisional or started.get(partition) is each.start)
        for partition, each in some.items()
    )


class Call:
    """Records that one call has collected.

    Attributes:
        messages: The messages, in the order in which they are returned.
        is_cancelled: Whether nobody waits for the call any more.
        is_gathered: Whether no thread collects anything for it now.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.is_cancelled = False
        self.is_gathered = False
        self._deliveries: dict[TopicPartition, Delivery] = {}

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to return."""
        return not self._deliveries

    def took(self, delivery: Delivery) -> None:
        """Note whose messages, or batch, it collects; before it does, as an interrupt may come."""
        self._deliveries[delivery.topic_partition] = delivery

    def may_return(
        self, seconds: float, present: ByPartition, started: Mapping[TopicPartition, Progress]
    ) -> bool:
        """Tell whether what it has collected may be returned at this moment.

        Args:
            seconds: For how long the member may deliver; below 0: not now.
            present: The deliveries of the consumer now.
            started: As for :func:`are_in_place`.
        """
        is_in_time = not self.is_cancelled and seconds >= 0
        return is_in_time and are_in_place(self._deliveries, present, started)

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

    def give_back(self, present: ByPartition) -> Iterator[tuple[TopicPartition, list[Message]]]:
        """It is not returned: what has to be taken back, and is handed out again.

        What is of deliveries that have ended comes as their successors say. After an interrupt amid
        that, the same goes back by another call.
        """
        while self._deliveries:
            partition, delivery = next(iter(self._deliveries.items()))
            if present.get(partition) is delivery:
                yield (
                    partition,
                    [each for each in self.messages if each.topic_partition == partition],
                )
            left = [each for each in self.messages if each.topic_partition != partition]
            # Last, and without a call, so that no interrupt comes between.
            self.messages = left
            del self._deliveries[partition]
