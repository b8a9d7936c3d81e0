"""Memory with guard pages: who reads or writes a byte out of bounds dies on the spot.

A segmentation fault ends the whole test run. That is the point: nothing can catch it, and the
last test that began is the one.
"""

import ctypes
import mmap
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from kshare.read.decode import columns

_PROT_NONE = 0
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def _protect(begin: int, size: int, may: int) -> None:
    if _libc.mprotect(begin, size, may):
        raise OSError(ctypes.get_errno(), "mprotect")


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
        _protect(self._begin - mmap.PAGESIZE, mmap.PAGESIZE, _PROT_NONE)
        _protect(self.end, mmap.PAGESIZE, _PROT_NONE)

    def protect(self, may: int) -> None:
        """Say what may be done to the room: nothing, or ``mmap.PROT_READ`` and the like."""
        _protect(self._begin, self.end - self._begin, may)

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
        return _array_at(begin, size, self)


def _array_at(begin: int, size: int, owner: object) -> npt.NDArray[np.uint8]:
    """Bytes at an address; the owner lives as long as the array."""
    room: Any = (ctypes.c_uint8 * size).from_address(begin)
    room.owner = owner
    return np.ndarray(size, np.uint8, room)


_FREE: defaultdict[int, list[Fence]] = defaultdict(list)
"""Fences without a user, by the size of their room; no one may touch that either."""


class _Loan:
    """A fence that is used; afterwards it can be used again, and until then nobody may touch it.

    To map pages for each buffer takes three times as long.
    """

    def __init__(self, size: int) -> None:
        rooms = _FREE[max(1, -(-size // mmap.PAGESIZE))]
        self.fence = rooms.pop() if rooms else Fence(size)
        self._rooms = rooms
        self.fence.protect(mmap.PROT_READ | mmap.PROT_WRITE)

    def __del__(self) -> None:
        self.fence.protect(_PROT_NONE)
        self._rooms.append(self.fence)


def _allocate(size: int, pool: pa.MemoryPool | None = None) -> pa.Buffer:
    loan = _Loan(size)
    return pa.py_buffer(_array_at(loan.fence.end - size, size, loan))


@contextmanager
def guarded_columns() -> Iterator[None]:
    """Within it, every buffer of a column that kernels write to ends right before a guard."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "allocate", _allocate)
        patch.setattr(columns, "shrink", lambda buffer, size: buffer.slice(0, size))
        yield
