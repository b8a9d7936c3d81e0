"""Outcomes: what became of each record, as data."""

from enum import StrEnum
from typing import Any, NamedTuple

from kshare.processing.core.record import Record

__all__ = ["FILTERED", "Outcome", "Status", "error_text"]


class Status(StrEnum):
    """What became of a record."""

    DONE = "done"
    FILTERED = "filtered"
    """The handler returned :data:`FILTERED`: nothing was to be done."""
    FAILED = "failed"
    """All attempts have failed, and the processor stops (:class:`~kshare.processing.Stop`)."""
    DEAD_LETTERED = "dead_lettered"
    """The broker has it in the dead-letter topic."""
    PARKED = "parked"
    """Its key is parked; the record is pending."""
    LEFT_OVER = "left_over"
    """It was not processed, and is pending."""

    @property
    def is_final(self) -> bool:
        """True if the record is acknowledged: it does not come again."""
        return self is Status.DONE or self in _FINAL


_FINAL = frozenset((Status.DONE, Status.FILTERED, Status.DEAD_LETTERED))


def error_text(error: BaseException) -> str:
    """What an error says, in characters that UTF-8 has: what is said of a record is written."""
    try:
        text = str(error)
    except Exception as fault:  # the error's own method fails
        text = f"its text cannot be made: {type(fault).__name__}"
    return text.encode(errors="backslashreplace").decode()


class Outcome(NamedTuple):
    """What became of a record.

    Attributes:
        record: The record.
        status: What became of it.
        result: What the handler returned; None if it did not succeed.
        error: Why the last attempt failed; None if none did.
        attempts: Number of attempts; 0 if there was none.
    """

    record: Record
    status: Status
    result: Any = None
    error: BaseException | None = None
    attempts: int = 1


class _Filtered:
    def __repr__(self) -> str:
        return "FILTERED"


FILTERED = _Filtered()
"""What a handler returns if a record is none of its business; it counts as processed."""
