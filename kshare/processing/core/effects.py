"""Effects: what a scheduler asks its driver to do, besides calling handlers; and the edge."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from kshare.dead_letters.record import Outcome, Record
from kshare.processing.core.lane import Call, Lane

__all__ = [
    "Abandon",
    "Cancel",
    "Edge",
    "Effect",
    "Forget",
    "GiveBack",
    "Halt",
    "ParkKey",
    "Remember",
    "TakeAgain",
    "WriteLetter",
]


class Cancel(NamedTuple):
    """Cancel a call that took too long."""

    call: Call


class Abandon(NamedTuple):
    """A call that took too long has not ended in time: what it answers counts no more."""

    call: Call


class Remember(NamedTuple):
    """A record failed and waits: keep its failures and its time through a restart."""

    record: Record


class Forget(NamedTuple):
    """A record that was remembered has its outcome, or is parked and has all its attempts again.

    Attributes:
        record: The record.
        is_parked: Whether it is parked, and so comes again.
    """

    record: Record
    is_parked: bool = False


class WriteLetter(NamedTuple):
    """Write a dead letter; answered by ``letter_written`` or ``ending_failed``.

    Attributes:
        lane: The lane, for the answer.
        record: The record.
        error: Why it failed; None if it only follows an earlier one of its key.
        begins_sequence: Whether later records of its key shall follow it: that is to be kept
            through a restart, before the letter is written.
    """

    lane: Lane
    record: Record
    error: BaseException | None
    begins_sequence: bool


class ParkKey(NamedTuple):
    """Park the key of a record; answered by ``parked`` or ``ending_failed``."""

    lane: Lane
    record: Record
    error: BaseException | None


class GiveBack(NamedTuple):
    """Hold records of some lanes no more: they are pending, and make room for others.

    Attributes:
        firsts: Of each lane, the first one that is not held any more. None of the lane is added
            before :class:`TakeAgain`, and then this one is first.
    """

    firsts: tuple[Record, ...]


class TakeAgain(NamedTuple):
    """Have the records that were given back come again, from this one on."""

    record: Record


class Halt(NamedTuple):
    """End the processor: a record has failed for good."""

    record: Record
    error: BaseException


Effect: TypeAlias = (
    Cancel | Abandon | Remember | Forget | WriteLetter | ParkKey | GiveBack | TakeAgain | Halt
)


class Edge(Protocol):
    """The outside of an engine: acknowledgements, dead letters, parked keys, what is kept.

    Its methods are called in the event loop's thread.
    """

    def seconds_left(self) -> float:
        """Seconds for which handlers may be called; below 0: not now, others may have the records.

        They get no less later, unless the records are revoked.
        """

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Records have outcomes: acknowledge those that are final."""

    async def write_letter(self, record: Record, error: BaseException | None) -> None:
        """Write a dead letter; return when the broker has it.

        Raises:
            Exception: It has not; it is tried again.
        """

    async def begin_sequence(self, record: Record, error: BaseException | None) -> None:
        """Keep in mind that this and later records of a key go to the dead-letter topic unhandled.

        Raises:
            Exception: It is not kept; it is tried again.
        """

    async def park(self, record: Record, error: BaseException | None) -> None:
        """Park the key of a record.

        Raises:
            Exception: It is not parked; it is tried again.
        """

    def give_back(self, firsts: Sequence[Record]) -> None:
        """Records and the later ones of their lanes are held no more, and pending.

        None of these lanes is to be offered before :meth:`take_again`.
        """

    def take_again(self, record: Record) -> None:
        """Have the records that were given back come again, from this one on."""

    def remember(self, record: Record) -> None:
        """Keep failures and due time of a record through a restart."""

    def forget(self, record: Record, *, is_parked: bool) -> None:
        """Forget a record's attempts once it comes no more; at once if it is parked."""
