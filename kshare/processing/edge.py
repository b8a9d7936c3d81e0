"""What is outside an engine: acknowledgements, dead letters, parked keys, what is kept."""

from collections.abc import Sequence
from typing import Protocol

from kshare.processing.core.outcome import Outcome
from kshare.processing.core.record import Record

__all__ = ["Edge"]


class Edge(Protocol):
    """What is outside an engine. Its methods are called in the event loop's thread."""

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Records have outcomes: acknowledge those that are final."""

    async def deliver(self, record: Record, error: BaseException | None) -> None:
        """Write a dead letter; return when the broker has it.

        Raises:
            Exception: It has not; it is tried again.
        """

    async def begin_sequence(self, record: Record) -> None:
        """Keep in mind that later records of a key go to the dead-letter topic unhandled.

        Raises:
            Exception: It is not kept; it is tried again.
        """

    async def park(self, record: Record, error: BaseException | None) -> None:
        """Park the key of a record.

        Raises:
            Exception: It is not parked; it is tried again.
        """

    def release(self, record: Record) -> None:
        """A record and later ones of its lane are held no more, and pending.

        None of the lane is to be offered before :meth:`take_again`.
        """

    def take_again(self, record: Record) -> None:
        """What was released from a record on may come again."""

    def remember(self, record: Record) -> None:
        """Keep failures and due time of a record through a restart."""

    def forget(self, record: Record) -> None:
        """Keep them no more."""
