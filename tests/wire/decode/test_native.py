"""How kernels are compiled, and where what is compiled is kept."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.wire.decode import native
from tests.support.guards import Fence

SMALL = """
from kshare.wire.decode.native import STATE, helper, kernel

@helper
def twice(number):
    return 2 * number

@kernel(STATE)
def total(state):
    found = 0
    for number in state:
        found += twice(number)
    return found
"""

USER = """
import numpy, small
assert small.total(numpy.arange(5)) == 20
print(sum(small.total.stats.cache_hits.values()))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A module with a small kernel."""
    found = tmp_path / "installed"
    found.mkdir()
    (found / "small.py").write_text(SMALL)
    return found


def run(folder: Path, **environment: str) -> tuple[int, str]:
    """Call the kernel in a process of its own.

    Returns:
        How many kernels came from the cache, and what was logged.
    """
    root = Path(__file__).parents[3]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}
    done = subprocess.run(
        [sys.executable, "-B", "-c", USER],
        cwd=folder,
        env={**kept, "PYTHONPATH": f"{folder}{os.pathsep}{root}", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout), done.stderr


def test_a_kernel_is_compiled_once_and_kept_beside_its_file(folder: Path):
    assert run(folder) == (0, "")
    assert list((folder / "__pycache__").glob("small.total-*.nbc"))
    assert run(folder) == (1, "")


def test_a_stated_cache_directory_is_used(folder: Path, tmp_path: Path):
    stated = tmp_path / "stated"
    assert run(folder, NUMBA_CACHE_DIR=str(stated)) == (0, "")
    assert list(stated.rglob("small.total-*.nbc"))
    assert not (folder / "__pycache__").exists()
    assert run(folder, NUMBA_CACHE_DIR=str(stated)) == (1, "")


def test_a_read_only_installation_uses_the_users_cache(folder: Path, tmp_path: Path):
    (folder / "__pycache__").write_text("a file: nothing can be written here, whoever we are")
    user = tmp_path / "user"
    user.mkdir()
    assert run(folder, XDG_CACHE_HOME=str(user)) == (0, "")
    assert list(user.rglob("small.total-*.nbc"))
    assert run(folder, XDG_CACHE_HOME=str(user)) == (1, "")


def test_where_nothing_can_be_written_each_process_compiles(folder: Path, tmp_path: Path):
    (folder / "__pycache__").write_text("a file")
    (tmp_path / "user").write_text("a file")
    hits, logged = run(folder, XDG_CACHE_HOME=str(tmp_path / "user"))
    assert hits == 0
    assert "compiled anew in each process" in logged
    assert "NUMBA_CACHE_DIR" in logged


@native.kernel(native.BYTES, native.STATE)
def _load_all(source, found):
    at = source.ctypes.data
    found[0] = native.load_u8(at)
    found[1] = native.load_i16_be(at)
    found[2] = native.load_i32(at)
    found[3] = native.load_i32_be(at)
    found[4] = native.load_u32_be(at)
    found[5] = native.load_i64(at)
    found[6] = native.load_i64_be(at)
    return np.int64(native.load_u64(at) >> np.uint64(1))


@given(st.binary(min_size=8, max_size=8), st.integers(0, 7))
def test_loads_are_those_of_the_standard_library(data: bytes, shift: int):
    """At any alignment."""
    found = np.zeros(7, np.int64)
    source = Fence(16).put(data + bytes(shift))[:8]
    half = _load_all(source, found)
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


@native.kernel(native.STATE, native.STATE)
def _copy_both(places, sizes):
    native.copy(places[0], places[1], sizes[0])
    native.copy_short(places[2], places[1], sizes[0])
    native.store_i64(places[3], -2)
    native.store_i32(places[3] + 8, -3)
    native.store_u8(places[3] + 12, 254)
    return 0


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 31, 32, 33, 100])
def test_copies_and_stores(size: int):
    data = np.frombuffer(os.urandom(size + native.COPY_SLACK), np.uint8)
    whole, short = (np.full(size + native.COPY_SLACK, 7, np.uint8) for _ in range(2))
    stored = np.full(14, 7, np.uint8)
    places = np.array([a.ctypes.data for a in (whole, data, short, stored)], np.int64)
    _copy_both(places, np.array([size], np.int64))
    assert whole[:size].tobytes() == short[:size].tobytes() == data[:size].tobytes()
    assert set(whole[size:]) == {7}
    assert stored.tobytes() == b"\xfe" + b"\xff" * 7 + b"\xfd" + b"\xff" * 3 + b"\xfe\x07"
