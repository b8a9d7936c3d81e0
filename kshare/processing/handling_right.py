"""The right to call handlers: a member's right to deliver, once nothing of before is held.

A consumer begins anew when others may have come and gone unseen: it claims all again, and what it
returned before comes again.
"""

from collections.abc import Callable

from kshare.dead_letters.record import Source
from kshare.group.consumer.receiver import Receiver
from kshare.group.message import Chunk

__all__ = ["HandlingRight"]


class HandlingRight:
    """The right of a processor to call handlers. For any thread, but one calls :meth:`follow`.

    Args:
        receiver: That of the consumer.
    """

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._times_followed = receiver.times_anew

    def seconds_left(self) -> float:
        """Seconds for which handlers may be called; below 0: they may not."""
        if self._times_followed != self._receiver.times_anew:
            return -1.0
        return self._receiver.seconds_to_deliver()

    def counts(self, source: Source) -> bool:
        """True if the outcomes of records of a chunk may be committed; else they come again.

        Of keys that are parked, or put off, only the place is known: nothing of them is held.
        """
        return not isinstance(source, Chunk) or self._receiver.counts(source)

    def follow(self, drop: Callable[[], None], read: Callable[[], None]) -> None:
        """Hold no records of before, if the consumer has begun anew; then handlers are called.

        Args:
            drop: Drops what is held, and counts no more.
            read: Reads what others have kept; both are called again if it fails.
        """
        times = self._receiver.times_anew
        if times != self._times_followed:
            drop()
            read()
            self._times_followed = times
