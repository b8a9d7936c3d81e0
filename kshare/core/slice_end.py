"""Where the reading of a slice ended, and a sample of the keys that were read.

End, records and sample follow from the records that were delivered and their order, and not from
the sizes of the record batches that brought them.
Cost: a few hashes a record batch, 256 at most.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kshare.core.hashing import key_hash

__all__ = ["SAMPLE_MAX", "KeySample", "SliceEnd"]

SAMPLE_MAX = 256
"""Maximum number of key hashes in a sample."""

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SliceEnd:
    """Where the reading of a slice ended, and what is known of how.

    Attributes:
        end: The offset where reading ended, half-open: the one after the record that reached the
            limit, or the end of the slice if there were fewer.
        records: Number of records that were delivered.
        sample: Key hashes of evenly spaced ones, ascending; at most ``SAMPLE_MAX``.
        seconds: Time from the task's first report to the end of its connection; None if that is
            not known.
        held: Whether the connection was held until the task ended, so that ``seconds`` are those of
            the task, and not only of its reader.
        began: Time of the task's first report, by the planner's monotonic clock; None if there was
            none.
    """

    end: int
    records: int
    sample: tuple[int, ...] = ()
    seconds: float | None = None
    held: bool = False
    began: float | None = None

    @property
    def task_seconds(self) -> float | None:
        """How long the task took; None if that was not measured."""
        return self.seconds if self.held else None


class KeySample:
    """One row out of each ``stride``; the stride doubles when the sample is full.

    At each doubling one row of each two is dropped. So the row that stands for a stride is found
    by one step for each doubling, in any order of the rows. Which of the two is
    kept depends on the number of the pair (additive recurrence by the golden ratio): if it were
    always the first, keys that take turns would look like one key.
    """

    def __init__(self) -> None:
        self._hashes: list[int] = []  # of all rows seen that stand for a stride
        self._doublings = 0
        self._seen = 0
        self._next = 0  # the row that stands for the next stride

    def add(self, rows: int, key_at: Callable[[int], tuple[bytes | None, int]]) -> None:
        """Look at the next delivered records.

        Args:
            rows: how many.
            key_at: the key and the offset of one of them, by its number from 0 on.
        """
        first, end = self._seen, self._seen + rows
        self._seen = end
        while end > SAMPLE_MAX << self._doublings:
            self._thin()
        while self._next < end:
            self._hashes.append(key_hash(*key_at(self._next - first)))
            self._next = self._position(len(self._hashes))

    @property
    def hashes(self) -> tuple[int, ...]:
        """The sample, ascending."""
        return tuple(sorted(self._hashes))

    def _position(self, stride: int) -> int:
        """The row that stands for the stride of that number."""
        position = stride
        for _ in range(self._doublings):
            position = _pick(position)
        return position

    def _thin(self) -> None:
        """Keep one of each two; it may be the one that is still to come."""
        picks = map(_pick, range((len(self._hashes) + 1) // 2))
        self._hashes = [self._hashes[pick] for pick in picks if pick < len(self._hashes)]
        self._doublings += 1
        self._next = self._position(len(self._hashes))


def _pick(pair: int) -> int:
    """Which of ``2 * pair`` and the next stands for both."""
    return 2 * pair + ((pair * _GOLDEN & _WORD) >> 63)
