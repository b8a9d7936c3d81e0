"""What earlier runs and operators have left for an engine: attempts, sequences, released keys."""

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Final

from kshare.errors import KafkaError
from kshare.group.log.retry_log import Remembered
from kshare.processing.consumer_edge import ConsumerEdge
from kshare.processing.core.record import Record
from kshare.processing.engine import Engine

__all__ = ["RetryState"]

_log = logging.getLogger("kshare.processing")

_LOOK_SECONDS: Final = 2.0


class RetryState:
    """Reads attempts and sequences from the group's log, and which keys are parked no more.

    For the reader's thread.

    Args:
        engine: The engine, in its event loop.
        edge: Where that is read.
        loop: The event loop.
        has_sequences: Whether keys with a dead letter are sequences.
    """

    def __init__(
        self,
        engine: Engine,
        edge: ConsumerEdge,
        loop: asyncio.AbstractEventLoop,
        *,
        has_sequences: bool,
    ) -> None:
        self._engine = engine
        self._edge = edge
        self._loop = loop
        self._has_sequences = has_sequences
        self._remembered = Remembered()
        self._next_look = 0.0
        self._said_unused = False

    def recall(self, records: Iterable[Record]) -> None:
        """Give records the attempts that they have had."""
        if self._remembered.attempts:
            for record in records:
                self._remembered.recall(record)

    def read(self) -> None:
        """Read attempts, and the marks of keys whose records follow a dead letter."""
        sequences = self._engine.scheduler.sequences
        had = set(sequences)  # before the log is read: their marks were written before
        known = self._edge.retry_log.read()
        self._remembered = known
        if not self._has_sequences:  # what marks mean, only that policy knows
            self._say_unused(len(known.sequences))
            return
        self._loop.call_soon_threadsafe(sequences.difference_update, had - known.sequences)
        self._loop.call_soon_threadsafe(sequences.update, known.sequences)

    def _say_unused(self, marks: int) -> None:
        if marks and not self._said_unused:
            self._said_unused = True
            _log.warning(
                "%d keys have dead letters that later records were to follow "
                "(DeadLetter(sequence=True), in an earlier run): without it, these are handled",
                marks,
            )

    def look_for_released(self) -> None:
        """Handle the records of keys again that an operator has released (``kshare unpark``)."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_SECONDS
        try:
            # The lanes first: a key that is parked meanwhile is in the list that is read then.
            parked = dict(self._engine.scheduler.parked_lanes)
            unparked = self._edge.unparked(parked)
            if unparked or self._has_sequences:
                self.read()  # first: what has been parked has all its attempts again
            for lane in unparked:
                self._loop.call_soon_threadsafe(self._engine.unparked, lane)
        except KafkaError as error:
            _log.warning("cannot see which keys are released: %s", error)
