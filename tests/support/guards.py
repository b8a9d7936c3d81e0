"""Memory with guard pages: who reads or writes a byte out of bounds dies on the spot.

A segmentation fault ends the whole test run. That is the point: nothing can catch it, and the
last test that began is the one.
"""

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from kshare.wire.decode import columns

_PROT_NONE = 0
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Fence:
    """Room between two pages that no one may touch.

    Args:
        size: bytes of room, at least.
    """

    def __init__(self, size: int) -> None:
        pages = max(1, -(-size // mmap.PAGESIZE))
        self._map = mmap.mmap(-1, (pages + 2) * mmap.PAGESIZE)
        self._begin = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + mmap.PAGESIZE
        self.end = self._begin + pages * mmap.PAGESIZE
        for page in (self._begin - mmap.PAGESIZE, self.end):
            if _libc.mprotect(page, mmap.PAGESIZE, _PROT_NONE):
                raise OSError(ctypes.get_errno(), "mprotect")

    def put(self, data: bytes, *, first: bool = False) -> npt.NDArray[np.uint8]:
        """The bytes as a kernel wants them, right before the last guard, or behind the first.

        They are overwritten by the next call.
        """
        begin = self._begin if first else self.end - len(data)
        ctypes.memmove(begin, data, len(data))
        array = self.array(begin, len(data))
        array.flags.writeable = False
        return array

    def array(self, begin: int, size: int) -> npt.NDArray[np.uint8]:
        """Bytes of the room, from an address on."""
        room: Any = (ctypes.c_uint8 * size).from_address(begin)
        room.fence = self  # lives as long as the array
        array: npt.NDArray[np.uint8] = np.ctypeslib.as_array(room)
        return array


def _allocate(size: int, pool: pa.MemoryPool | None = None) -> pa.Buffer:
    fence = Fence(size)
    return pa.py_buffer(fence.array(fence.end - size, size))


@contextmanager
def guarded_columns() -> Iterator[None]:
    """Within it, every buffer of a column that kernels write to ends right before a guard."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "allocate", _allocate)
        patch.setattr(columns, "shrink", lambda buffer, size: buffer.slice(0, size))
        yield
