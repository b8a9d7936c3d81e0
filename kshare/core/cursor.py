"""The unread part of a slice: offsets, and a number of records.

Values only: each step returns a new one.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace

from kshare.core.offsets import Bounds

__all__ = ["Cursor", "RecordLimit"]


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
