"""What a task of an open batch says while it reads: where it is, and how late records are.

Cost: some microseconds for each batch of rows, whatever their number; a call a second.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from kshare.core.live import BOUNDS, Latency

__all__ = ["ReadingMeter", "Says", "say_nothing"]

_EVERY_SECONDS: Final = 1.0
_BOUNDS_US: Final = np.array(BOUNDS) * 1e6


class Says(Protocol):
    """Tells whoever looks."""

    def __call__(self, positions: Sequence[int], ends: Sequence[int], latency: Latency, /) -> None:
        """Tell it.

        Args:
            positions: Where each range of the task is.
            ends: Where the log of each one's partition ends; 0 if that is not known.
            latency: That of all records so far.
        """


def say_nothing(_: Sequence[int], __: Sequence[int], ___: Latency, /) -> None:
    """Tell nobody."""


class ReadingMeter:
    """Counts how late records are handed over, and says so, with positions, about each second.

    Args:
        says: Hears it.
        seconds: Source of time.
        wall_clock: Seconds since 1970, to which timestamps are compared.
    """

    def __init__(
        self,
        says: Says,
        seconds: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._says = says
        self._seconds = seconds
        self._wall_clock = wall_clock
        self._due_at = seconds()
        self._counts = np.zeros(len(BOUNDS) + 1, np.int64)

    @property
    def is_due(self) -> bool:
        """Whether it is time to say something."""
        return self._seconds() >= self._due_at

    def take(self, batch: pa.RecordBatch) -> None:
        """Count records that are handed over now; without their timestamps, none."""
        number = batch.schema.get_field_index("timestamp")
        if number < 0:
            return
        times = batch.column(number).view(pa.int64()).to_numpy(zero_copy_only=False)
        late = self._wall_clock() * 1e6 - times[times > 0]  # a record may have none
        buckets = np.searchsorted(_BOUNDS_US, late)
        self._counts += np.bincount(buckets, minlength=len(self._counts))

    def say(self, places: Sequence[tuple[int, int]]) -> None:
        """Say it.

        Args:
            places: Where each range is, and where its partition's log ends.
        """
        self._due_at = self._seconds() + _EVERY_SECONDS
        positions, ends = ([place[at] for place in places] for at in (0, 1))
        self._says(positions, ends, Latency(tuple(self._counts.tolist())))
