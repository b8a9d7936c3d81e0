"""Which records a scan takes: a slice, in the memory that the kernels read."""

from collections.abc import Collection, Sequence

import numpy as np

from kshare.core.hashing import WHOLE, key_hash
from kshare.core.progress import Band
from kshare.wire.decode.layout import ScanState

__all__ = ["WantedRecords"]


class WantedRecords:
    """The bands of a slice, as the kernels take them.

    Args:
        bands: Offset ranges and the hash ranges that are wanted of each.
        keys: Only records with these keys are wanted; None: all are, also those without a key.

    Raises:
        ValueError: ``keys`` is empty.

    Attributes:
        starts: The first offset of each band.
        ends: The end of each band.
    """

    def __init__(self, bands: Sequence[Band], keys: Collection[bytes] | None = None) -> None:
        ranges = [() if band.hashes == (WHOLE,) else band.hashes for band in bands]
        self.starts = np.array([band.offsets.start for band in bands], np.int64)
        self.ends = np.array([band.offsets.end for band in bands], np.int64)
        self._range_counts = np.cumsum([0, *map(len, ranges)], dtype=np.int64)
        self._lows = np.array([hashes.lo for band in ranges for hashes in band], np.int64)
        self._lasts = np.array([hashes.hi - 1 for band in ranges for hashes in band], np.int64)
        if keys is not None and not keys:
            raise ValueError("no key is wanted; give None to read all")
        by_hash = sorted((key_hash(key, 0), key) for key in set(keys or ()))
        self._key_hashes = np.array([hash_ for hash_, _ in by_hash], np.int64)
        self._key_ends = np.cumsum([0, *(len(key) for _, key in by_hash)], dtype=np.int64)
        self._key_bytes = np.frombuffer(b"".join(key for _, key in by_hash) + b"\0", np.uint8)
        self._last_bytes = np.zeros(256, np.uint8)
        self._last_bytes[[key[-1] if key else 0 for _, key in by_hash]] = 1

    def put(self, state: ScanState, floor: int, first_offset: int) -> None:
        """Begin a scan for these records at ``first_offset``, without records before ``floor``.

        The addresses in the state are good as long as this object is.
        """
        wanted = state.wanted
        wanted.floor = floor
        wanted.bands = len(self.ends)
        wanted.starts = self.starts.ctypes.data
        wanted.ends = self.ends.ctypes.data
        wanted.range_counts = self._range_counts.ctypes.data
        wanted.lows = self._lows.ctypes.data
        wanted.lasts = self._lasts.ctypes.data
        wanted.keys = len(self._key_hashes)
        wanted.key_hashes = self._key_hashes.ctypes.data
        wanted.key_ends = self._key_ends.ctypes.data
        wanted.key_bytes = self._key_bytes.ctypes.data
        wanted.last_bytes = self._last_bytes.ctypes.data
        state.band = int(np.searchsorted(self.ends, first_offset, "right"))
