"""The end of the reading of a slice, and a sample of the keys that were read.

End, records and sample follow from the records that were delivered and their order, and not from
the sizes of the record batches that brought them.
Cost: a few hashes a record batch, 256 at most.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kshare.core.hashing import key_hash

__all__ = ["HOT_KEYS_MAX", "KEY_BYTES_MAX", "SAMPLE_MAX", "HotKey", "KeySample", "SliceEnd"]

SAMPLE_MAX = 256
"""Maximum number of key hashes in a sample."""

HOT_KEYS_MAX: Final = 3
"""Maximum number of keys that are named of a slice."""

KEY_BYTES_MAX: Final = 128
"""A key of more bytes is not named: nobody would type it."""

_SHARE_MIN: Final = 0.05  # of the sample: a key that is seen less often does not stand out

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key that many of the records of a slice have.

    Attributes:
        key: The key, at most ``KEY_BYTES_MAX`` bytes.
        share: Its share of the sample, from 0 (exclusive) to 1.
    """

    key: bytes
    share: float


@dataclass(frozen=True, slots=True)
class SliceEnd:
    """The end of the reading of a slice, with measurements.

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
        hot_keys: The keys of most of the sample, most frequent first; at most ``HOT_KEYS_MAX``.
    """

    end: int
    records: int
    sample: tuple[int, ...] = ()
    seconds: float | None = None
    held: bool = False
    began: float | None = None
    hot_keys: tuple[HotKey, ...] = ()

    @property
    def task_seconds(self) -> float | None:
        """Duration of the task; None if not measured."""
        return self.seconds if self.held else None


class KeySample:
    """One row out of each ``stride``; the stride doubles when the sample is full.

    At each doubling one row of each two is dropped. So the row that stands for a stride is found
    by one step for each doubling, in any order of the rows. Which of the two is
    kept depends on the number of the pair (additive recurrence by the golden ratio): if it were
    always the first, keys that take turns would look like one key.
    """

    def __init__(self) -> None:
        # Hash and key of all rows seen that stand for a stride; None for no key, or a long one.
        self._picked: list[tuple[int, bytes | None]] = []
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
            key, offset = key_at(self._next - first)
            is_named = key is not None and len(key) <= KEY_BYTES_MAX
            self._picked.append((key_hash(key, offset), key if is_named else None))
            self._next = self._position(len(self._picked))

    @property
    def hashes(self) -> tuple[int, ...]:
        """The sample, ascending."""
        return tuple(sorted(hashed for hashed, _ in self._picked))

    @property
    def hot_keys(self) -> tuple[HotKey, ...]:
        """The keys of most of the sample, most frequent first, as far as they stand out."""
        size = len(self._picked)
        counts = Counter(key for _, key in self._picked if key is not None)
        by_count = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        shares = (HotKey(key, count / size) for key, count in by_count[:HOT_KEYS_MAX])
        return tuple(hot for hot in shares if hot.share >= _SHARE_MIN)

    def _position(self, stride: int) -> int:
        """The row that stands for the stride of that number."""
        position = stride
        for _ in range(self._doublings):
            position = _pick(position)
        return position

    def _thin(self) -> None:
        """Keep one of each two; it may be the one that is still to come."""
        picks = map(_pick, range((len(self._picked) + 1) // 2))
        self._picked = [self._picked[pick] for pick in picks if pick < len(self._picked)]
        self._doublings += 1
        self._next = self._position(len(self._picked))


def _pick(pair: int) -> int:
    """The index, ``2 * pair`` or the next, that stands for both."""
    return 2 * pair + ((pair * _GOLDEN & _WORD) >> 63)
