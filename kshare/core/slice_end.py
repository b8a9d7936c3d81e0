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
    """One row out of each ``stride``; the stride doubles when the sample is full.

    Which one: of each two that were left, one goes at each doubling. So the row that stands for a
    stride is found by as many steps from above, whatever was seen when. The choice moves along with
    the number of the pair (additive recurrence by the golden ratio), or keys that come in turn
    would be seen as one key.
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
