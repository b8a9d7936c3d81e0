"""Rows of a partition that are handed out and not acknowledged.

::

    handed out --> whole --8 chunks later--> kept without values, and without the rows around them
                     |                                 |
                     +-- all of it is acknowledged ----+---> forgotten, now and then

Cost: what is added, and what is counted, takes no walk over all chunks, but one each time that as
many have come as there are: users acknowledge rows without a call.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from operator import itemgetter

import numpy as np

from kshare.core.hashing import NO_HASHES, KeyRanges, key_hash
from kshare.core.offsets import OFFSET_MAX, Bounds
from kshare.group.core.handed_out import Offsets
from kshare.group.core.kept_rows import KeptRows
from kshare.group.message import RELEASED, Chunk

__all__ = ["OpenChunks", "is_of"]

_WHOLE = 8
"""Chunks that are kept as they are: what is acknowledged soon is not worth a copy."""


class OpenChunks:
    """Chunks with rows that are not acknowledged.

    Args:
        chunks: Those that there are, ascending.
    """

    def __init__(self, chunks: tuple[Chunk, ...] = ()) -> None:
        # Of chunks that are not whole any more, and whole ones. Other threads look at both at once.
        self._held = (
            [each for each in chunks if isinstance(each, KeptRows)],
            [each for each in chunks if not isinstance(each, KeptRows)],
        )
        self._sweep_at = 0  # so many kept ones
        self._added = sum([len(each.offsets) for each in chunks])
        self._counted = 0, 0  # the number of rows added by then, and of those that were open

    def add(self, chunk: Chunk, ahead_end: int) -> None:
        """Add rows that are handed out and not acknowledged yet.

        Args:
            chunk: The rows.
            ahead_end: Up to here, records may have been handed out before.
        """
        self._keep(_WHOLE)
        if len(self._held[0]) >= self._sweep_at:
            self._sweep()
        chunk.overtaken = int(chunk.offsets[0]) < ahead_end
        self._held[1].append(chunk)
        self._added += len(chunk.offsets)  # last: who counts meanwhile counts some twice

    def _all(self) -> list[Chunk]:
        kept, whole = self._held
        return [*kept, *whole]

    def _keep(self, most: int) -> None:
        """Leave ``most`` chunks whole; who looks meanwhile may find one twice."""
        kept, whole = self._held
        whole = [chunk for chunk in whole if chunk.first_open() >= 0]
        self._held = kept, whole
        while len(whole) > most:
            first = whole[0]
            if not kept or kept[-1].number != first.number:  # after an interrupt, it is there
                rows = KeptRows.of(first)
                if rows is not None:
                    kept.append(rows)
            whole = whole[1:]
            self._held = kept, whole

    def _sweep(self) -> None:
        """Forget what is acknowledged of the kept ones."""
        kept, whole = self._held
        kept = [left for each in kept if (left := KeptRows.of(each)) is not None]
        self._held = kept, whole
        self._sweep_at = 2 * len(kept) + _WHOLE

    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks that are left."""
        self._keep(_WHOLE)
        self._sweep()
        return tuple(self._all())

    def acknowledge(self, offsets: Offsets, chunks: Collection[int] = ()) -> None:
        """Acknowledge records by their offsets; unknown ones change nothing.

        Args:
            offsets: The offsets.
            chunks: Numbers of the chunks that they are of; none: of any.
        """
        for chunk, rows in self._open_among(offsets, chunks):
            chunk.acknowledge(rows)

    def _open_among(
        self, offsets: Offsets, chunks: Collection[int]
    ) -> Iterator[tuple[Chunk, Offsets]]:
        """The rows of each chunk that are of some offsets, and neither acknowledged nor come again.

        Those come in another row.
        """
        wanted = np.sort(offsets)
        for chunk in self._all():
            if chunks and chunk.number not in chunks:
                continue
            low, high = np.searchsorted(wanted, (chunk.offsets[0], chunk.offsets[-1] + 1))
            if low == high:
                continue
            rows = np.searchsorted(chunk.offsets, wanted[low:high])
            rows = rows[chunk.offsets[rows] == wanted[low:high]]
            yield chunk, rows[chunk.waiting_rows()[rows]]

    def acknowledge_between(self, start: int, end: int, but: KeyRanges = NO_HASHES) -> None:
        """All records with offsets ``[start, end)`` are acknowledged, but those of some hashes."""
        for chunk in self._all():
            first, last = np.searchsorted(chunk.offsets, (start, end)).tolist()
            rows = first + np.flatnonzero(chunk.waiting_rows()[first:last])
            if but and chunk.has_keys:
                keys = chunk.column("key")
                kept = [is_of(keys[row], int(chunk.offsets[row]), but) for row in rows.tolist()]
                rows = rows[np.logical_not(kept)]
            chunk.acknowledge(rows)

    def replace_from(self, start: int, but: KeyRanges = NO_HASHES) -> None:
        """Replace released rows from an offset on, but those of some hashes: they are read anew."""
        for chunk in self._all():
            for row in chunk.released_rows():
                offset = int(chunk.offsets[row])
                if offset >= start and not is_of(chunk.column("key")[row], offset, but):
                    chunk.replace(row)

    def release(self, key: bytes | None, first: int) -> None:
        """Mark the records of a key from an offset on that are not acknowledged."""
        for chunk in self._all():
            if chunk.offsets[-1] >= first:
                row = int(np.searchsorted(chunk.offsets, first))
                if key is None and chunk.offsets[row] != first:
                    continue  # it has nothing in common with any record of this chunk
                for each in _rows_of(chunk, key, row):
                    chunk.release(each)

    def release_all(self, firsts: Mapping[bytes, int], alone: Collection[int]) -> None:
        """The same for many keys, in one pass.

        Args:
            firsts: The first offset of each key.
            alone: Offsets of records without a key.
        """
        lowest = min([*firsts.values(), *alone])
        for chunk in self._all():
            if chunk.offsets[-1] < lowest:
                continue
            for row, key in enumerate(chunk.column("key")):
                offset = int(chunk.offsets[row])
                if offset in alone if key is None else offset >= firsts.get(key, OFFSET_MAX):
                    chunk.release(row)

    def come_again(self) -> list[tuple[bytes | None, int, Bounds]]:
        """Records that are marked count as not handed out from now on.

        Returns:
            Of each key in each chunk: the key, the offset of its first marked record, and offsets
            that hold all of its marked records and no other one of it that was handed out.
        """
        found = []
        for chunk in self._all():
            if RELEASED not in chunk.released:
                continue
            keys, released = chunk.column("key"), set(chunk.released_rows())
            by_key: dict[tuple[bytes | None, int], list[int]] = {}
            for row in sorted(released):
                by_key.setdefault((keys[row], -1 if keys[row] is not None else row), []).append(row)
            for (key, _), rows in by_key.items():
                bounds: list[int] = []
                is_open = False
                for row in _rows_of(chunk, key, rows[0]) if key is not None else rows:
                    offset, comes = int(chunk.offsets[row]), row in released
                    if comes and (is_open or bounds[-1:] == [offset]):
                        bounds[-1] = offset + 1
                    elif comes:
                        bounds += (offset, offset + 1)
                    is_open = comes and not chunk.overtaken
                found.append((key, int(chunk.offsets[rows[0]]), tuple(bounds)))
                for row in rows:
                    chunk.replace(row)
        return found

    @property
    def records(self) -> int:
        """Number of records that are not acknowledged."""
        added = self._added  # first: what comes meanwhile counts twice, rather than not at all
        records = sum([chunk.records for chunk in self._all()])
        self._counted = added, records
        return records

    @property
    def records_at_most(self) -> int:
        """The same or more, without counting: as counted last, and what was added since."""
        added, records = self._counted
        return records + self._added - added

    def has_more_than(self, records: int) -> bool:
        """True if more than a number of records are not acknowledged; counts no further."""
        found = 0
        for chunk in self._all():
            found += chunk.records
            if found > records:
                return True
        return False

    def offsets(self) -> Offsets:
        """The offsets of the records that are not acknowledged, ascending, each once."""
        # No sweep: another thread may be about to add a chunk.
        parts = [chunk.offsets[chunk.open_rows()] for chunk in self._all()]
        parts = [part for part in parts if len(part)]
        offsets = np.concatenate(parts) if parts else np.empty(0, np.int64)
        if all(one[-1] < other[0] for one, other in pairwise(parts)):
            return offsets
        # Not np.unique: from numpy 2.3 on it hashes, which takes a hundred times as long.
        offsets.sort(kind="stable")
        return offsets[np.diff(offsets, prepend=-1) > 0]

    def oldest_ms(self, below: int) -> int | None:
        """Timestamp of the first record that is not acknowledged; None if there is none.

        Args:
            below: Records from this offset on do not count.
        """
        first = [
            (int(chunk.offsets[row]), chunk, row)
            for chunk in self._all()
            if (row := chunk.first_open()) >= 0 and chunk.offsets[row] < below
        ]
        if not first:
            return None
        _, chunk, row = min(first, key=itemgetter(0))
        if "timestamp" not in chunk.batch.schema.names:
            return None
        milliseconds = int(chunk.column("timestamp")[row])
        return milliseconds if milliseconds >= 0 else None

    def slim(self) -> None:
        """Forget the values of all: nobody waits for them soon."""
        self._keep(0)


def is_of(key: bytes | None, offset: int, hashes: KeyRanges) -> bool:
    """Return True if a record with this key and offset is of some key hashes."""
    return hashes.holds(key_hash(key, offset))


def _rows_of(chunk: Chunk, key: bytes | None, first: int) -> Iterator[int]:
    """The rows of a key, from one on; without a key, a row has nothing in common with others."""
    keys, row = chunk.column("key"), first - 1
    with suppress(ValueError):
        while key is not None or row < first:
            row = keys.index(key, row + 1) if key is not None else first
            yield row
