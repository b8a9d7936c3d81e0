"""How compiled code touches memory."""

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from kshare.read.decode.kernels import native
from kshare.read.decode.layout import COPY_SLACK
from tests.support.guards import Fence


@njit
def _load_all(at: Any, found: Any) -> Any:
    found[0] = native.load_u8(at)
    found[1] = native.load_i16_be(at)
    found[2] = native.load_i32(at)
    found[3] = native.load_i32_be(at)
    found[4] = native.load_u32_be(at)
    found[5] = native.load_i64(at)
    found[6] = native.load_i64_be(at)
    return np.int64(native.load_u64(at) >> np.uint64(1))


@given(st.binary(min_size=8, max_size=8), st.integers(0, 7))
def test_loads_are_those_of_the_standard_library(data: bytes, shift: int) -> None:
    """At any alignment."""
    found = np.zeros(7, np.int64)
    source = Fence(16).put(data + bytes(shift))[:8]
    half = _load_all(source.ctypes.data, found)
    assert found.tolist() == [
        data[0],
        int.from_bytes(data[:2], "big", signed=True),
        int.from_bytes(data[:4], "little", signed=True),
        int.from_bytes(data[:4], "big", signed=True),
        int.from_bytes(data[:4], "big"),
        int.from_bytes(data, "little", signed=True),
        int.from_bytes(data, "big", signed=True),
    ]
    assert half == int.from_bytes(data, "little") >> 1


@njit
def _copy_both(places: Any, sizes: Any) -> Any:
    native.copy(places[0], places[1], sizes[0])
    native.copy_short(places[2], places[1], sizes[0])
    native.store_i64(places[3], -2)
    native.store_i32(places[3] + 8, -3)
    native.store_u8(places[3] + 12, 254)
    return 0


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 31, 32, 33, 100])
def test_copies_and_stores(size: int) -> None:
    data = np.frombuffer(os.urandom(size + COPY_SLACK), np.uint8)
    whole, short = (np.full(size + COPY_SLACK, 7, np.uint8) for _ in range(2))
    stored = np.full(14, 7, np.uint8)
    places = np.array([a.ctypes.data for a in (whole, data, short, stored)], np.int64)
    _copy_both(places, np.array([size], np.int64))
    assert whole[:size].tobytes() == short[:size].tobytes() == data[:size].tobytes()
    assert set(whole[size:]) == {7}
    assert stored.tobytes() == b"\xfe" + b"\xff" * 7 + b"\xfd" + b"\xff" * 3 + b"\xfe\x07"
