"""What is handed out of one partition, as sets of (offset, key hash).

::

    wanted    = read x [position, end) - (start - again) - skip - out       read = owned - left out
    processed = passed | (out - open)               open = handed out, and not acknowledged
    seek(at)  : passed |= out - open;  out: loses that, and read x [at, ...), as open does;
                skip = read x [0, at);  again = read x [at, ...)
    release   : out -= the key's records from one on that are open
    narrow    : all of them &= the hashes           leave out, take in: none of them changes

A delivery keeps what it hands out itself as one number, its position, and adds it to ``out`` when
it ends: see :class:`.Delivery`.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kshare.core.hashing import NO_HASHES, KeyRanges
from kshare.core.offsets import OFFSET_MAX, Bounds
from kshare.core.progress import Stripe
from kshare.core.region import EMPTY, Region
from kshare.group.core.handed_out import Offsets
from kshare.group.core.open_chunks import OpenChunks, is_of
from kshare.group.delivery_start import DeliveryStart
from kshare.group.message import Chunk

__all__ = ["ALL_OFFSETS", "NextDelivery", "Position"]

ALL_OFFSETS: Final[Bounds] = (0, OFFSET_MAX)


@dataclass(frozen=True, slots=True)
class Position:
    """What is handed out of one partition, of the key hashes that a consumer owns.

    Attributes:
        out: What is handed out, but for what a seek hands out again, or has passed over and was
            processed.
        open: Implicit mode: the part of it that was returned before a seek and is not acknowledged.
        passed: What was processed before a seek.
        skip: What is below the offset of the last seek of its hash.
        again: What is not, and so is handed out whether it was processed or not.
        chunks: Explicit mode: chunks with the rows that are open.
    """

    out: Region = EMPTY
    open: Region = EMPTY
    passed: Region = EMPTY
    skip: Region = EMPTY
    again: Region = EMPTY
    chunks: tuple[Chunk, ...] = ()

    def within(self, hashes: KeyRanges) -> "Position":
        """The part of it that is of some key hashes; rows of others will not be acknowledged."""
        for chunk in self.chunks:
            for row in np.flatnonzero(chunk.open_rows()).tolist():
                key = chunk.column("key")[row]
                if not is_of(key, int(chunk.offsets[row]), hashes):
                    chunk.close(row)
        kept = Region.product(hashes, ALL_OFFSETS)
        return Position(
            out=self.out & kept,
            open=self.open & kept,
            passed=self.passed & kept,
            skip=self.skip & kept,
            again=self.again & kept,
            chunks=self.chunks,
        )

    def seek(self, offset: int, read: KeyRanges, waiting: Region) -> "Position":
        """The same once some key hashes go on at an offset.

        Args:
            offset: The offset.
            read: The key hashes.
            waiting: What is not acknowledged of what is handed out.
        """
        below = Region.product(read, (0, offset) if offset else ())
        again = Region.product(read, (offset, OFFSET_MAX))
        return replace(
            self,
            out=self.out - (below - waiting) - again,
            open=self.open - again,
            passed=self.passed | (self.out - waiting),
            skip=(self.skip - again) | below,
            again=(self.again - below) | again,
        )

    def without(self, stripes: Iterable[Stripe]) -> "Position":
        """The same where some records are to be handed out again."""
        return replace(self, out=self.out - Region.of(stripes))


@dataclass(frozen=True, slots=True)
class NextDelivery:
    """How the next delivery of a partition begins.

    Attributes:
        position: What was handed out before, of hashes that stay.
        start: The start that it was handed out from; None if nothing was.
        sought: The offset to go on at; None: where it is.
        sought_of: The key hashes that were assigned when it was sought.
        is_provisional: Whether some of what is claimed is being given up: another claim follows.
    """

    position: Position = Position()
    start: DeliveryStart | None = None
    sought: int | None = None
    sought_of: KeyRanges = NO_HASHES
    is_provisional: bool = False

    def acknowledge(self, offsets: Offsets, chunks: Collection[int]) -> None:
        """Records of before are acknowledged, as :meth:`.Delivery.acknowledge`."""
        OpenChunks(self.position.chunks).acknowledge(offsets, chunks)

    def within(self, hashes: KeyRanges) -> "NextDelivery":
        """The same for some key hashes; a seek does not hold for quite different ones."""
        sought = None if hashes.isdisjoint(self.sought_of) else self.sought
        return replace(
            self, position=self.position.within(hashes), sought=sought, is_provisional=False
        )
