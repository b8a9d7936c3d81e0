"""The records that a processor holds, as a text, for those who wait until it is less."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from kshare.core.waits import Wait
from kshare.dead_letters.record import Record
from kshare.processing.core.lane import Figures

__all__ = ["SAY_SECONDS", "full", "held"]

SAY_SECONDS: Final = 1.0
"""How often those who wait look whether that is to be said."""


def full(figures: Figures, firsts: Sequence[Record]) -> Wait:
    """The wait of a reader without room.

    Args:
        figures: What is held.
        firsts: The first record of each lane.
    """
    until = "records are processed, or their time has come"
    return Wait(
        "nothing is read, as max_records or max_bytes is full", until, detail=held(figures, firsts)
    )


def held(figures: Figures, firsts: Sequence[Record]) -> str:
    """The text of all that is held, and for what it waits.

    Args:
        figures: What is held.
        firsts: The first record of each lane.
    """
    first = min(firsts, key=lambda record: record.due, default=None)
    following = ""
    if first is not None and first.due > time.time():
        due = datetime.fromtimestamp(first.due, UTC).isoformat(timespec="seconds")
        following = f"; the next one, {first!r}, until {due}"
    return (
        f"{figures.records} records of {figures.lanes} keys, of which {figures.waiting} wait for "
        "their time (another attempt, RetryAfter, a header not-before), "
        f"{figures.ending} for a dead letter or to be parked, and {figures.calls} calls of the "
        f"handler are under way{following}"
    )
