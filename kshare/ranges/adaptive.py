"""Hot ranges are split, down to one key; cold neighbours are merged.

Law: as many ranges for each partition as :func:`~kshare.ranges.pending.round_robin` gives.
Without an observation they are its ranges. With a load that is steady, they are those observed:
each boundary that moves costs entries in the checkpoint until both sides stand at one offset.
Cost: linear in the ranges of a partition while they stay; quadratic in them when they change.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final

from kshare.core.hashing import HASH_SPACE, HashRange
from kshare.core.progress import TopicPartition
from kshare.core.slicing import RangeObservation, RangeRequest
from kshare.ranges.pending import round_robin

__all__ = ["adaptive", "disjoint", "hot_above", "is_enough", "is_even"]

HOT: Final = 2.0
"""A range with more than this many times the mean work of the others is split."""

COLD: Final = 0.5
"""A single key's range is merged only if its work is below this part of the mean."""

_RECORDS_MIN, _SECONDS_MIN = 64, 0.2  # below both, what was observed is taken for noise
_COUNT_MIN = 4  # a key seen fewer times in a sample is not taken for a hot one
_FEW = 16  # up to so many ranges, several cuts of a hot one are tried: each moves much of the work
_CUTS = (4, 3, 5, 2, 6, 1, 7)  # eighths of the sample; of cuts that are equally good, the first


@dataclass(frozen=True, slots=True)
class _Piece:
    """A range to be: key hashes ``[lo, hi)``.

    ``is_sure``: its work was observed, on enough records. ``origin``: where the range begins that
    was split to make it; -1 for none.
    """

    lo: int
    hi: int
    work: float
    sample: tuple[int, ...]
    is_sure: bool = False
    origin: int = -1

    @property
    def is_single(self) -> bool:
        """True if it is one hash, which cannot be split."""
        return self.hi - self.lo == 1


def adaptive(request: RangeRequest) -> dict[TopicPartition, tuple[HashRange, ...]]:
    """Move the boundaries of ranges to where the work is.

    Work is time if that was measured, else records; per offset, since ranges with limits do not
    cover the same offsets. A range with more than twice the mean work of the others is split at the
    weighted median of a sample of its key hashes; a hash that stands out there gets a range of its
    own. Where ranges are few, the cut is the one of seven that leaves the busiest range the least
    work. The neighbours with the least work merge, so that the number of ranges stays what it was.

    Returns:
        Each partition's ranges, ascending.
    """
    even = round_robin(request)
    ranges = {}
    for load in request.loads:
        parts = even[load.topic_partition]
        observed = disjoint(load.observed)
        ranges[load.topic_partition] = _adapted(observed, len(parts)) if observed else parts
    return ranges


def is_even(parts: Sequence[Sequence[RangeObservation]]) -> bool:
    """True if no part is hot: with more than twice the mean work of the others.

    One key alone may have more, and so may a part of which little was observed.

    Args:
        parts: What was observed of the ranges of each part; nothing if it has no work.
    """
    works, timed = _works([seen for part in parts for seen in part])
    left = iter(works)
    summed = [(sum(islice(left, len(part))), part) for part in parts]
    wide = [each for each in summed if sum(seen.hashes.width for seen in each[1]) != 1]
    if not wide:
        return True
    above = hot_above([work for work, _ in wide])
    return not any(work > above and is_enough(part, timed=timed) for work, part in wide)


def is_enough(seen: Sequence[RangeObservation], *, timed: bool) -> bool:
    """True if so much was observed that it is not taken for noise."""
    if timed:
        return sum(each.seconds or 0.0 for each in seen) >= _SECONDS_MIN
    return sum(each.records for each in seen) >= _RECORDS_MIN


def disjoint(observed: Sequence[RangeObservation]) -> list[RangeObservation]:
    """Observations ascending, without those that overlap one before them."""
    disjoint: list[RangeObservation] = []
    for seen in sorted(observed, key=lambda seen: seen.hashes):
        if not disjoint or disjoint[-1].hashes.hi <= seen.hashes.lo:
            disjoint.append(seen)
    return disjoint


def _adapted(observed: Sequence[RangeObservation], count: int) -> tuple[HashRange, ...]:
    """A number of ranges, made from those observed.

    Args:
        observed: at least one; ascending, disjoint.
        count: how many ranges; at least 1.
    """
    works, timed = _works(observed)
    if len(observed) == count and _tiles(observed):
        wide = [work for work, seen in zip(works, observed, strict=True) if seen.hashes.width > 1]
        if not wide or max(wide) <= hot_above(wide):  # the common case, seen quickly
            return tuple([seen.hashes for seen in observed])
    pieces = _pieces(observed, works, timed=timed)
    while len(pieces) > count:
        pieces = _merged(pieces)
    while len(pieces) < count:
        widest = max(
            (i for i, piece in enumerate(pieces) if not piece.is_single),
            key=lambda i: (pieces[i].work, pieces[i].hi - pieces[i].lo),
        )
        pieces[widest : widest + 1] = _halves(pieces[widest])
    while (hot := _hottest(pieces)) is not None:
        pieces = _relieved(pieces, hot)
    return tuple(HashRange(piece.lo, piece.hi) for piece in pieces)


def _tiles(observed: Sequence[RangeObservation]) -> bool:
    """True if ranges, ascending and disjoint, leave no hash out."""
    return sum(seen.hashes.width for seen in observed) == HASH_SPACE


def _works(observed: Sequence[RangeObservation]) -> tuple[list[float], bool]:
    """The work of each range, and whether it is time; else it is records."""
    times = [seen.seconds for seen in observed if seen.seconds is not None]
    timed = len(times) == len(observed)
    amounts = times if timed else [float(seen.records) for seen in observed]
    works = [
        amount / max(seen.offsets, 1) if seen.records else 0.0
        for seen, amount in zip(observed, amounts, strict=True)
    ]
    return works, timed


def _pieces(
    observed: Sequence[RangeObservation], works: Sequence[float], *, timed: bool
) -> list[_Piece]:
    """The observed ranges as a tiling; holes count with the mean work of as many hashes."""
    pieces: list[_Piece] = []
    for seen, work in zip(observed, works, strict=True):
        lo, hi = seen.hashes.lo, seen.hashes.hi
        enough = is_enough([seen], timed=timed)
        sample = seen.sample
        if sample and not lo <= sample[0] <= sample[-1] < hi:
            sample = tuple(hashed for hashed in sample if lo <= hashed < hi)
        pieces.append(_Piece(lo, hi, work, sample, enough and work > 0))
    width = sum(piece.hi - piece.lo for piece in pieces)
    density = sum(piece.work for piece in pieces) / width
    tiling: list[_Piece] = []
    done = 0
    for piece in pieces:
        if piece.lo > done:
            tiling.append(_Piece(done, piece.lo, density * (piece.lo - done), ()))
        tiling.append(piece)
        done = piece.hi
    if done < HASH_SPACE:
        tiling.append(_Piece(done, HASH_SPACE, density * (HASH_SPACE - done), ()))
    return tiling


# -- splitting -----------------------------------------------------------------------------------


def _mean(pieces: Sequence[_Piece]) -> float:
    """Of the ranges that can be split: one hot key alone would make all others look cold."""
    wide = [piece.work for piece in pieces if not piece.is_single]
    return sum(wide) / len(wide) if wide else 0.0


def hot_above(works: Sequence[float]) -> float:
    """The work above which one of some ranges has more than HOT times the mean of the others."""
    return HOT * sum(works) / (len(works) - 1 + HOT)


def _hottest(pieces: Sequence[_Piece]) -> int | None:
    """The range to split next; none that comes from a split."""
    wide = [piece.work for piece in pieces if not piece.is_single]
    if not wide:
        return None
    least = hot_above(wide)
    hot = [
        i
        for i, piece in enumerate(pieces)
        if piece.work > least and piece.is_sure and not piece.is_single
    ]
    return max(hot, key=lambda i: pieces[i].work, default=None)


def _relieved(pieces: list[_Piece], hot: int) -> list[_Piece]:
    """Split a range, and merge others to make room; or leave all as it is, if that is no better."""
    piece = pieces[hot]
    stays = _Piece(piece.lo, piece.hi, piece.work, piece.sample)  # not to be tried again
    best, least = [*pieces[:hot], stays, *pieces[hot + 1 :]], piece.work
    others = {(other.lo, other.hi) for other in pieces if other.lo != piece.lo}
    for parts in _ways_to_cut(piece, are_few=len(pieces) <= _FEW):
        split = [*pieces[:hot], *parts, *pieces[hot + 1 :]]
        while len(split) > len(pieces):
            split = _merged(split)
        most = max(part.work for part in split if (part.lo, part.hi) not in others)
        if most < least:
            best, least = split, most
    return best


def _ways_to_cut(piece: _Piece, *, are_few: bool) -> Iterator[list[_Piece]]:
    key = _hot_key(piece)
    if key is not None:
        yield _cut(piece, [key, key + 1])
    if are_few:
        yield from (_cut_at(piece, eighths) for eighths in _CUTS)
    elif key is None:
        yield _halves(piece)


def _hot_key(piece: _Piece) -> int | None:
    """The key hash that deserves a range of its own."""
    if not piece.sample:
        return None
    counts = Counter(piece.sample)
    key, count = max(counts.items(), key=lambda entry: (entry[1], -entry[0]))
    median = sorted(counts.values())[len(counts) // 2]
    stands_out = 20 * count >= len(piece.sample) and count >= 4 * median
    if count >= _COUNT_MIN and (stands_out or 2 * count >= len(piece.sample)):
        return key
    return None


def _halves(piece: _Piece) -> list[_Piece]:
    """Cut at the median of the sample, or in the middle if the sample is of one key or none."""
    return _cut_at(piece, 4)


def _cut_at(piece: _Piece, eighths: int) -> list[_Piece]:
    """Cut off eighths of the sample, or of the range if the sample is of one key or none."""
    sample = piece.sample
    cut = piece.lo + (piece.hi - piece.lo) * eighths // 8
    starts = [i for i in range(1, len(sample)) if sample[i] != sample[i - 1]]
    if starts:
        cut = sample[min(starts, key=lambda i: abs(8 * i - eighths * len(sample)))]
    return _cut(piece, [cut])


def _cut(piece: _Piece, cuts: Sequence[int]) -> list[_Piece]:
    """Cut a range; its parts have the part of the work that they have of the sample."""
    inside = [cut for cut in cuts if piece.lo < cut < piece.hi]
    parts = []
    for lo, hi in pairwise([piece.lo, *inside, piece.hi]):
        sample = tuple(hashed for hashed in piece.sample if lo <= hashed < hi)
        share = (
            len(sample) / len(piece.sample) if piece.sample else (hi - lo) / (piece.hi - piece.lo)
        )
        parts.append(_Piece(lo, hi, piece.work * share, sample, origin=piece.lo))
    return parts


# -- merging -------------------------------------------------------------------------------------


def _merged(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Merge the two neighbours with the least work; what a split has just made stays apart."""
    cold = COLD * _mean(pieces)

    def rank(i: int) -> tuple[bool, float]:
        one, two = pieces[i], pieces[i + 1]
        siblings = one.origin == two.origin >= 0
        kept = any(
            part.is_single and (part.origin >= 0 or part.work >= cold) for part in (one, two)
        )
        return siblings or kept, one.work + two.work

    i = min(range(len(pieces) - 1), key=rank)
    one, two = pieces[i], pieces[i + 1]
    both = _Piece(
        one.lo,
        two.hi,
        one.work + two.work,
        one.sample + two.sample,
        one.is_sure and two.is_sure,
        max(one.origin, two.origin),
    )
    return [*pieces[:i], both, *pieces[i + 2 :]]
