"""Effects: what a scheduler asks its driver to do, besides calling handlers."""

from typing import NamedTuple, TypeAlias

from kshare.processing.core.lane import Call, Lane
from kshare.processing.core.record import Record

__all__ = [
    "Cancel",
    "Deliver",
    "Effect",
    "Forget",
    "GiveBack",
    "Halt",
    "ParkKey",
    "Remember",
    "TakeAgain",
]


class Cancel(NamedTuple):
    """End a call that took too long: what it answers counts no more."""

    call: Call


class Remember(NamedTuple):
    """A record failed and waits: keep its failures and its time through a restart."""

    record: Record


class Forget(NamedTuple):
    """A record that was remembered has its outcome."""

    record: Record


class Deliver(NamedTuple):
    """Write a dead letter; answered by ``delivered`` or ``undelivered``.

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
    """Park the key of a record; answered by ``parked`` or ``undelivered``."""

    lane: Lane
    record: Record
    error: BaseException | None


class GiveBack(NamedTuple):
    """Hold the records of a lane from one on no more: they are pending, and make room for others.

    None of the lane is added before :class:`TakeAgain`, and then this one is first.
    """

    record: Record


class TakeAgain(NamedTuple):
    """What was given back from a record on may come again."""

    record: Record


class Halt(NamedTuple):
    """End the processor: a record has failed for good."""

    record: Record
    error: BaseException


Effect: TypeAlias = Cancel | Remember | Forget | Deliver | ParkKey | GiveBack | TakeAgain | Halt
