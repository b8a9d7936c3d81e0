"""Where the reading of a slice ended, and a sample of the keys that were read.

Law: all of it is a function of the records that were delivered and of their order, whatever the
sizes of the record batches that brought them. Cost: a few hashes a record batch, 256 at most.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kshare.core.hashing import key_hash

__all__ = ["SAMPLE_MAX", "KeySample", "SliceEnd"]

SAMPLE_MAX = 256
"""Key hashes of a sample at most."""

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SliceEnd:
    """What a reader tells when it has delivered a slice, or as much of it as it was to.

    Attributes:
        end: the offset where reading ended, half-open: the one after the record that reached the
            limit, or the end of the slice if there were fewer.
        records: how many were delivered.
        sample: key hashes of evenly spaced ones, ascending; ``SAMPLE_MAX`` at most.
    """

    end: int
    records: int
    sample: tuple[int, ...] = ()


class KeySample:
    """One record out of each ``stride`` in a row; the stride doubles when the sample is full.

    Which one moves along with the number of the row (additive recurrence by the golden ratio), or
    keys that come in turn would be seen as one key.
    """

    def __init__(self) -> None:
        self._hashes: list[int] = []
        self._stride = 1
        self._seen = 0

    def add(self, rows: int, key_at: Callable[[int], tuple[bytes | None, int]]) -> None:
        """Look at the next delivered records.

        Args:
            rows: how many.
            key_at: the key and the offset of one of them, by its number from 0 on.
        """
        first, end = self._seen, self._seen + rows
        self._seen = end
        while end > SAMPLE_MAX * self._stride:
            self._thin()
        while (position := self._position(len(self._hashes))) < end:
            # One before `first` is of a row that went by while the stride was smaller.
            self._hashes.append(key_hash(*key_at(max(position - first, 0))))

    @property
    def hashes(self) -> tuple[int, ...]:
        """The sample, ascending."""
        return tuple(sorted(self._hashes))

    def _position(self, number: int) -> int:
        """The record that stands for the row of that number."""
        return number * self._stride + ((number * _GOLDEN & _WORD) * self._stride >> 64)

    def _thin(self) -> None:
        """Keep one of each two."""
        pairs = len(self._hashes) // 2
        odd = self._hashes[2 * pairs :]
        picks = [2 * pair + ((pair * _GOLDEN & _WORD) >> 63) for pair in range(pairs)]
        self._hashes = [self._hashes[pick] for pick in picks] + odd
        self._stride *= 2
