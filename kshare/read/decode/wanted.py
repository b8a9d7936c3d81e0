"""The records that a scan takes: a slice, in the memory that the kernels read."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from kshare.core.hashing import HASH_SPACE, key_hash
from kshare.core.offsets import OFFSET_MAX, Bounds
from kshare.core.region import Stripe
from kshare.read.decode.compiled import Ints
from kshare.read.decode.layout import ScanState, Wanted

__all__ = ["Bands", "WantedRecords"]


@dataclass(frozen=True, slots=True)
class Bands:
    """A set of (offset, key hash) as a scan of the log needs it: offset by offset.

    Attributes:
        starts: The first offset of each band; bands ascend and are disjoint.
        ends: The end of each band.
        range_counts: Where the hash ranges of each band begin in ``lows``, and one more: where the
            last ones end. A band without any holds all key hashes.
        lows: The lowest key hash of each range; those of a band ascend and are disjoint.
        lasts: The highest key hash of each range.
    """

    starts: Ints
    ends: Ints
    range_counts: Ints
    lows: Ints
    lasts: Ints

    @classmethod
    def of(cls, stripes: Sequence[Stripe]) -> "Bands":
        """The bands of stripes that are disjoint and ascend; there is at least one.

        Cost: a sort of the bounds, and the number of hash ranges over all bands.
        """
        if len(stripes) == 1:  # maybe a million gaps
            starts, ends = np.array(stripes[0].bounds, np.int64).reshape(-1, 2).T.copy()
            band = np.arange(len(starts))
            owner = np.zeros_like(band)
        else:
            starts, ends, band, owner = _crossed([stripe.bounds for stripe in stripes])
        lows = np.array([stripe.hashes.lo for stripe in stripes], np.int64)[owner]
        lasts = np.array([stripe.hashes.hi - 1 for stripe in stripes], np.int64)[owner]
        # Ranges of a band that touch are one; a band with all hashes has none.
        touches = (band[1:] == band[:-1]) & (lows[1:] - 1 == lasts[:-1])
        begins = np.insert(~touches, 0, True)
        band, lows, lasts = band[begins], lows[begins], lasts[np.append(begins[1:], True)]
        some = (lows > 0) | (lasts < HASH_SPACE - 1)
        counts = np.bincount(band[some], minlength=len(starts))
        return cls(starts, ends, np.insert(np.cumsum(counts), 0, 0), lows[some], lasts[some])


def _crossed(layers: Sequence[Bounds]) -> tuple[Ints, Ints, Ints, Ints]:
    """Cut sets of offsets wherever a range of one begins or ends.

    Returns:
        The start and the end of each piece that is in a set, ascending. And for each piece and each
        set that it is in, ascending: the numbers of both.
    """
    bounds = [np.array(layer, np.int64) for layer in layers]
    cuts = np.sort(np.concatenate(bounds))
    cuts = cuts[np.append(True, cuts[1:] > cuts[:-1])]
    places = np.concatenate([np.searchsorted(cuts, each) for each in bounds])
    counts = places[1::2] - places[::2]  # of the pieces that a range is cut into
    layer = np.repeat(np.arange(len(bounds)), [len(each) // 2 for each in bounds])
    skipped = np.cumsum(counts) - counts
    piece = np.arange(int(counts.sum())) + np.repeat(places[::2] - skipped, counts)
    order = np.argsort(piece, kind="stable")
    piece = piece[order]
    is_new = np.append(True, piece[1:] > piece[:-1])
    filled, number = piece[is_new], np.cumsum(is_new) - 1
    return cuts[filled], cuts[filled + 1], number, np.repeat(layer, counts)[order]


class WantedRecords:
    """The bands of a slice, as the kernels take them.

    Args:
        stripes: What is wanted; disjoint, ascending.
        keys: Only records with these keys are wanted; None: all are, also those without a key.

    Raises:
        ValueError: ``keys`` is empty.

    Attributes:
        bands: The same by offset.
    """

    def __init__(self, stripes: Sequence[Stripe], keys: Collection[bytes] | None = None) -> None:
        self.bands = Bands.of(stripes)
        if keys is not None and not keys:
            raise ValueError("no key is wanted; give None to read all")
        by_hash = sorted((key_hash(key, 0), key) for key in set(keys or ()))
        self._keys = None if keys is None else frozenset(keys)
        self._key_hashes = np.array([hash_ for hash_, _ in by_hash], np.int64)
        self._key_ends = np.cumsum([0, *(len(key) for _, key in by_hash)], dtype=np.int64)
        self._key_bytes = np.frombuffer(b"".join(key for _, key in by_hash) + b"\0", np.uint8)
        self._last_bytes = np.zeros(256, np.uint8)
        self._last_bytes[[key[-1] if key else 0 for _, key in by_hash]] = 1
        self._starts = np.append(self.bands.starts, OFFSET_MAX)
        # Once, not for each response: to ask ten arrays for their addresses takes 10 us.
        self._state = Wanted(
            bands=len(self.bands.ends),
            starts=self.bands.starts.ctypes.data,
            ends=self.bands.ends.ctypes.data,
            range_counts=self.bands.range_counts.ctypes.data,
            lows=self.bands.lows.ctypes.data,
            lasts=self.bands.lasts.ctypes.data,
            keys=len(self._key_hashes),
            key_hashes=self._key_hashes.ctypes.data,
            key_ends=self._key_ends.ctypes.data,
            key_bytes=self._key_bytes.ctypes.data,
            last_bytes=self._last_bytes.ctypes.data,
        )

    def next_starts(self, offsets: Ints) -> Ints:
        """The start of the band of each offset, or of the next band; OFFSET_MAX: there is none."""
        starts: Ints = self._starts[self.bands.ends.searchsorted(offsets, "right")]
        return starts

    def put(self, state: ScanState, floor: int, first_offset: int) -> None:
        """Begin a scan for these records at ``first_offset``, without records before ``floor``.

        The addresses in the state are good as long as this object is.
        """
        state.wanted = self._state
        state.wanted.floor = floor
        state.band = int(self.bands.ends.searchsorted(first_offset, "right"))

    def holds(self, offset: int, key: bytes | None, *, has_key: bool, floor: int) -> bool:
        """True if a record is wanted: what the kernels find, for one that they cannot read.

        Args:
            offset: Its offset.
            key: Its key; None if it has none.
            has_key: Whether the key is known; if not, it is taken for a wanted one.
            floor: Records below it are not wanted.
        """
        bands = self.bands
        band = int(np.searchsorted(bands.ends, offset, "right"))
        if offset < floor or band == len(bands.ends) or offset < bands.starts[band]:
            return False
        if not has_key:
            return True
        if self._keys is not None and key not in self._keys:
            return False
        first, end = bands.range_counts[band : band + 2]
        hash_ = key_hash(key, offset)
        lows, lasts = bands.lows[first:end], bands.lasts[first:end]
        return bool(first == end or ((lows <= hash_) & (hash_ <= lasts)).any())
