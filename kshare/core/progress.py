"""The processed and the pending part of a partition.

Invariants: Progress is a set of (offset, key hash). Commits are unions: their order and their
repetition change nothing, and the stable offset never goes back. Equal sets compare equal, however
they were made.
Cost: a commit sorts what it adds, and copies what is there (2 integers a range): give many
rectangles to one call. What is pending of some hash ranges, and their position, take one sweep over
these and the stripes: ask for many ranges in one call. A level partition is one integer.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kshare.core.hashing import WHOLE, HashRange, KeyRanges
from kshare.core.offsets import (
    Bounds,
    OffsetRange,
    complement,
    since,
    subtract,
    union,
)
from kshare.core.region import (
    EMPTY,
    Rectangle,
    Region,
    Stripe,
    beside,
    filled,
    overlay,
    place_of,
    rectangles,
    tile,
)
from kshare.core.region import stripes as to_stripes

__all__ = ["Progress", "Rectangle", "Slice", "Stripe", "TopicPartition"]


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Progress:
    """The processed part of a partition.

    Args:
        stable: Everything below this offset is processed.
        stripes: What else is processed: stripes with canonical offsets, in any order; their hash
            ranges may overlap.

    Attributes:
        stable: The highest offset below which everything is processed. (The stable offset of the
            key-shared consumption proposal is the last committed one: one less.)
        stripes: What is processed above it, the proposal's individual commits (IC). Empty if
            nothing is: the partition is level. Else they tile the hash space, ascending, no two
            neighbours alike, and at least one of them has not processed ``stable``.

    Raises:
        ValueError: ``stable`` is negative.
    """

    stable: int
    stripes: tuple[Stripe, ...] = ()

    def __post_init__(self) -> None:
        if self.stable < 0:
            raise ValueError(f"not an offset: {self.stable}")
        if self.stripes:
            kept = (
                Stripe(layer.hashes, since(layer.bounds, self.stable)) for layer in self.stripes
            )
            normal = _normalised(self.stable, overlay(kept))
            object.__setattr__(self, "stable", normal.stable)
            object.__setattr__(self, "stripes", normal.stripes)

    @classmethod
    def at(cls, offset: int) -> "Progress":
        """Everything below an offset is processed, and nothing else.

        Raises:
            ValueError: The offset is negative.
        """
        return cls(offset)

    @classmethod
    def of(cls, stable: int, pieces: Iterable[Rectangle]) -> "Progress":
        """Everything below an offset is processed, and some rectangles.

        Raises:
            ValueError: The offset is negative.
        """
        return cls(stable).commit(pieces)

    @classmethod
    def of_stripes(cls, stable: int, layers: Iterable[Stripe]) -> "Progress":
        """Everything below an offset is processed, and some stripes.

        Args:
            stable: The offset.
            layers: Stripes with canonical offsets, in any order; hash ranges may overlap.

        Raises:
            ValueError: The offset is negative.
        """
        return cls(stable, tuple(layers))

    @property
    def is_level(self) -> bool:
        """True if all key hashes stand at the same offset."""
        return not self.stripes

    @property
    def region(self) -> Region:
        """The processed part as one set."""
        below = (0, self.stable) if self.stable else ()
        tiling = self.stripes or EMPTY.tiling
        return Region(tile(_cut(each, union([below, each.bounds])) for each in tiling))

    def commit(self, pieces: Iterable[Rectangle]) -> "Progress":
        """Add rectangles that have been processed, in any order, overlapping or not."""
        added = to_stripes(pieces, start=self.stable)
        if not added:
            return self
        return _normalised(self.stable, overlay([*self.stripes, *added]))

    def union(self, other: "Progress") -> "Progress":
        """The union with another progress of the partition."""
        return Progress(max(self.stable, other.stable), (*self.stripes, *other.stripes))

    def advance(self, offset: int) -> "Progress":
        """Add everything below an offset, of all keys."""
        return self if offset <= self.stable else Progress(offset, self.stripes)

    def pending(self, end: int, hashes: HashRange = WHOLE) -> tuple[Rectangle, ...]:
        """The pending part below ``end`` of some key hashes.

        Returns:
            Disjoint rectangles, ascending by offset, then by hash; one tuple for one set.
        """
        return self.pending_of(end, (hashes,))

    def pending_of(self, end: int, hashes: Sequence[HashRange]) -> tuple[Rectangle, ...]:
        """The pending part below ``end`` of several hash ranges.

        Args:
            end: the offset.
            hashes: the hash ranges, ascending, disjoint.

        Returns:
            Disjoint rectangles, ascending by offset, then by hash; one tuple for one set.
        """
        return rectangles(self.pending_stripes(end, hashes))

    def pending_stripes(self, end: int, hashes: Sequence[HashRange]) -> tuple[Stripe, ...]:
        """The same as stripes, which cost two integers a gap.

        Returns:
            Stripes that have offsets, ascending, no two neighbours alike; one tuple for one set.
        """
        if end <= self.stable or not hashes:
            return ()
        hashes = KeyRanges(hashes)
        if not self.stripes:
            return tuple(Stripe(part, (self.stable, end)) for part in hashes)
        return filled(tile(self._gaps(end, hashes)))

    def within(self, hashes: Sequence[HashRange]) -> "Progress":
        """The processed part of several hash ranges: ascending, disjoint, at least one."""
        if hashes[0].is_whole:
            return self
        below = (0, self.stable) if self.stable else ()
        return Progress.of_stripes(
            0,
            [
                Stripe(HashRange(lo, hi), union([below, stripe.bounds]))
                for lo, hi, stripe in self._within(hashes)
            ],
        )

    def minus(self, other: "Progress") -> tuple[Rectangle, ...]:
        """The difference to another progress.

        Returns:
            Disjoint rectangles, ascending by offset, then by hash; one tuple for one set.
        """
        if self is other:
            return ()
        base = other.stable  # below it, nothing is left
        if not (self.stripes or other.stripes):
            return (Rectangle(OffsetRange(base, self.stable), WHOLE),) if base < self.stable else ()
        lead = (base, self.stable) if base < self.stable else ()
        return rectangles(
            tile(
                (lo, hi, subtract(union([lead, since(ours, base)]), theirs))
                for lo, hi, ours, theirs in beside(self.stripes, other.stripes)
            )
        )

    def position(self, hashes: HashRange = WHOLE) -> int:
        """The first offset that is not processed for all of some key hashes."""
        return self.position_of((hashes,))

    def position_of(self, hashes: Sequence[HashRange]) -> int:
        """The first offset that is not processed for all of several hash ranges.

        Args:
            hashes: the hash ranges, ascending, disjoint; at least one.
        """
        return min(_front(self.stable, stripe) for _, _, stripe in self._within(hashes))

    @property
    def front(self) -> int:
        """The highest offset below which anything is processed; the stable one if level."""
        return max((s.bounds[-1] for s in self.stripes if s.bounds), default=self.stable)

    @property
    def gaps(self) -> int:
        """The number of offset ranges above the stable offset, over all stripes.

        As many as there are gaps before them: what ``maxRangesInCheckpoint`` bounds.
        """
        return sum(len(stripe.bounds) for stripe in self.stripes) // 2

    @property
    def individual_commits(self) -> tuple[Rectangle, ...]:
        """The processed rectangles above the stable offset, ascending by offset, then by hash."""
        return rectangles(self.stripes)

    def _gaps(self, end: int, hashes: Sequence[HashRange]) -> Iterator[tuple[int, int, Bounds]]:
        """Pending offsets by hash, as segments without a hole; empty where it is not asked for."""
        done = hashes[0].lo
        last: Stripe | None = None
        gaps: Bounds = ()
        for lo, hi, stripe in self._within(hashes):
            if done < lo:
                yield done, lo, ()
            if stripe is not last:
                last, gaps = stripe, complement(stripe.bounds, self.stable, end)
            yield lo, hi, gaps
            done = hi

    def _within(self, hashes: Sequence[HashRange]) -> Iterator[tuple[int, int, Stripe]]:
        """The stripes, cut to hash ranges that ascend and are disjoint: from where, to where."""
        tiling = self.stripes or EMPTY.tiling
        i = place_of(tiling, hashes[0].lo)
        for part in hashes:
            lo = part.lo
            while tiling[i].hashes.hi <= lo:
                i += 1
            while (hi := tiling[i].hashes.hi) < part.hi:
                yield lo, hi, tiling[i]
                lo = hi
                i += 1
            yield lo, part.hi, tiling[i]


def _front(stable: int, stripe: Stripe) -> int:
    """The first offset that a stripe has not processed."""
    bounds = stripe.bounds
    return bounds[1] if bounds and bounds[0] == stable else stable


def _normalised(stable: int, tiling: tuple[Stripe, ...]) -> Progress:
    """Move the stable offset to where the slowest stripe stands, and drop what is below it.

    Args:
        stable: Where it was.
        tiling: A canonical tiling of the hash space, with no offset below ``stable``.
    """
    moved = min(_front(stable, stripe) for stripe in tiling)
    if moved > stable:
        tiling = tile(_cut(stripe, since(stripe.bounds, moved)) for stripe in tiling)
    progress = Progress(moved)
    if len(tiling) > 1 or tiling[0].bounds:
        object.__setattr__(progress, "stripes", tiling)  # canonical already: not to be made again
    return progress


def _cut(stripe: Stripe, bounds: Bounds) -> tuple[int, int, Bounds]:
    return stripe.hashes.lo, stripe.hashes.hi, bounds


@dataclass(frozen=True, slots=True, init=False)
class Slice:
    """The unit that a task reads: the records in some rectangles of one partition.

    Args:
        topic: Name of the topic.
        partition: Number of the partition.
        rectangles: What is read, in any order, overlapping or not.
        stripes: The same; both are read if both are given.

    Attributes:
        topic: Name of the topic.
        partition: Number of the partition.
        stripes: What is read: ascending, all with offsets, no two neighbours alike.

    Raises:
        ValueError: There is nothing to read.
    """

    topic: str
    partition: int
    stripes: tuple[Stripe, ...]

    def __init__(
        self,
        topic: str,
        partition: int,
        rectangles: Sequence[Rectangle] = (),
        *,
        stripes: Sequence[Stripe] = (),
    ) -> None:
        if rectangles or len(stripes) != 1 or not stripes[0].bounds:
            stripes = filled(overlay((*stripes, *to_stripes(rectangles))))
            if not stripes:
                raise ValueError(f"a slice of {topic}-{partition} without a rectangle")
        put = object.__setattr__
        put(self, "topic", topic)
        put(self, "partition", partition)
        put(self, "stripes", tuple(stripes))

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that it is of."""
        return TopicPartition(self.topic, self.partition)

    @property
    def rectangles(self) -> tuple[Rectangle, ...]:
        """Disjoint, ascending by offset, then by hash; one tuple for one set."""
        return rectangles(self.stripes)

    @property
    def bounds(self) -> Bounds:
        """The offsets of all hashes."""
        return union(stripe.bounds for stripe in self.stripes)

    @property
    def offsets(self) -> OffsetRange:
        """From the first offset of any rectangle to the last end."""
        return OffsetRange(
            min(stripe.bounds[0] for stripe in self.stripes),
            max(stripe.bounds[-1] for stripe in self.stripes),
        )

    @property
    def hashes(self) -> HashRange:
        """From the lowest key hash of any rectangle to the highest end."""
        return HashRange(self.stripes[0].hashes.lo, self.stripes[-1].hashes.hi)
