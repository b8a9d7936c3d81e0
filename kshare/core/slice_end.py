"""The reading of a slice, in values: what is unread, where it ended, and a sample of its keys.

End, records and sample follow from the records that were delivered and their order, and not from
the sizes of the record batches that brought them.
Cost: a few hashes a record batch, 256 at most.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from kshare.core.hashing import key_hash
from kshare.core.offsets import Bounds

__all__ = [
    "HOT_KEYS_MAX",
    "KEY_BYTES_MAX",
    "SAMPLE_MAX",
    "Cursor",
    "HotKey",
    "KeySample",
    "RecordLimit",
    "SliceEnd",
]


@dataclass(frozen=True, slots=True)
class Cursor:
    """The fetched and delivered offsets of a slice.

    Attributes:
        bounds: The slice's offsets; there is at least one.
        delivered: Offset below which everything wanted is delivered, or given up as lost.
        fetched: Offset below which everything wanted is fetched; at least ``delivered``.
    """

    bounds: Bounds
    delivered: int = 0
    fetched: int = 0

    @property
    def end(self) -> int:
        """The end of the last range."""
        return self.bounds[-1]

    @property
    def next_offset(self) -> int | None:
        """The first wanted offset that is not fetched; None if there is none."""
        position = bisect_right(self.bounds, self.fetched)
        if position % 2:  # within a range
            return self.fetched
        return self.bounds[position] if position < len(self.bounds) else None

    @property
    def is_done(self) -> bool:
        """True if everything wanted is delivered."""
        return self.delivered >= self.end

    def fetch_to(self, offset: int) -> "Cursor":
        """Everything below an offset is fetched."""
        return Cursor(self.bounds, self.delivered, max(self.fetched, offset))

    def deliver_to(self, offset: int) -> "Cursor":
        """Everything below an offset is delivered."""
        return Cursor(self.bounds, max(self.delivered, offset), max(self.fetched, offset))

    def rewind(self) -> "Cursor":
        """Fetch again whatever was not delivered."""
        return Cursor(self.bounds, self.delivered, self.delivered)

    def finish(self) -> "Cursor":
        """Nothing more is wanted."""
        return self.deliver_to(self.end)


@dataclass(frozen=True, slots=True)
class RecordLimit:
    """The number of wanted records of a slice, and their density in the log so far.

    Attributes:
        max_records: Maximum number of records to deliver, at least 1; None for no limit.
        records: Number of records delivered.
        end: Offset after the record that reached the limit; None if none has.
        seen_records: Number of records in the batches that were searched for these; 0 without a
            limit.
        seen_offsets: Number of offsets of these batches.

    Raises:
        ValueError: ``max_records`` is less than 1.
    """

    max_records: int | None
    records: int = 0
    end: int | None = None
    seen_records: int = 0
    seen_offsets: int = 0

    def __post_init__(self) -> None:
        if self.max_records is not None and self.max_records < 1:
            raise ValueError(f"max_records is {self.max_records}; wanted at least 1")

    @property
    def is_reached(self) -> bool:
        """True if as many records are delivered as are wanted."""
        return self.end is not None

    @property
    def records_left(self) -> int | None:
        """The number of records still wanted; None for no limit."""
        return None if self.max_records is None else self.max_records - self.records

    def deliver(self, records: int, end: int) -> "RecordLimit":
        """Some records were delivered.

        Args:
            records: Number of them, at most :attr:`records_left`.
            end: Offset after the last one.
        """
        total = self.records + records
        return replace(self, records=total, end=end if total == self.max_records else self.end)

    def see(self, records: int, offsets: int) -> "RecordLimit":
        """Batches with these numbers of records and offsets were searched to their end."""
        if self.max_records is None:
            return self
        return replace(
            self,
            seen_records=self.seen_records + records,
            seen_offsets=self.seen_offsets + offsets,
        )

    def is_likely_within(self, records: int) -> bool:
        """True if the next batches, with this number of records, are likely to reach the limit."""
        if self.max_records is None:
            return False
        share = self.records / self.seen_records if self.seen_records else 1.0
        return self.records + records * share >= self.max_records

    def offsets_needed(self, offsets: int) -> float:
        """The number of the next ``offsets`` that are likely to be needed to reach the limit."""
        if self.max_records is None or not self.records:
            return offsets
        missing = self.max_records - self.records
        return min(offsets, missing * self.seen_offsets / self.records)


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
