"""The compiled code: its functions, as Python calls them. This is the only door to it.

Guarantees: whatever the bytes are, a kernel reads only what lies in the buffer it was given, writes
only where there is room, ends, and says what it found: every length of the wire is checked before
it is used. An argument of another type is an error, never a conversion.

Numba makes the machine code once per machine, and :mod:`kshare.wire.decode.kernel_cache` keeps it;
whoever finds it there imports neither numba nor the kernels' source, and saves a second and 50 MB.
Cost: 0.1 s to load; some microseconds a call. Other threads run meanwhile.
"""

import ctypes
import hashlib
import os
import pkgutil
import platform
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import llvmlite
import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.wire.decode.kernel_cache import cached, directories
from kshare.wire.decode.layout import BATCH, BatchCount, BinaryColumn, HeaderSizes, ScanState

__all__ = ["begin_scan", "copy_headers", "find_marks", "index", "measure_headers", "scan", "warm"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]
Batches: TypeAlias = npt.NDArray[np.void]
"""An array of BATCH, which :mod:`kshare.wire.decode.layout` describes."""

_PACKAGE: Final = "kshare.wire.decode"
_SOURCES: Final = (
    *("layout.py", "status.py", "compiled.py"),
    *("kernels/batch_heads.py", "kernels/binary.py", "kernels/build.py"),
    *("kernels/native.py", "kernels/numbers.py", "kernels/scan.py"),
)

_LOADING: Final = threading.Lock()
_LOADED: Final[list[Any]] = []  # the engine, for as long as the process lives

_FROM_LIBC: Final = ("memcpy", "memmove", "memset")  # what machine code may call

_SIGNATURES: Final[dict[str, tuple[type, ...]]] = {
    "copy_headers": (int, int, int, int, BinaryColumn, BinaryColumn),
    "find_marks": (int, int, int, int, int, int, int),
    "index": (int, int, int, int, BatchCount),
    "measure_headers": (int, int, int, HeaderSizes),
    "scan": (ScanState,),
}
"""The arguments of each kernel: integers, which may be addresses, and pointers to structures."""


def index(source: Bytes, batches: Batches, found: BatchCount) -> int:
    """Read the heads of the complete batches of a response.

    Args:
        source: The response's records.
        batches: Table to write; more batches than fit are counted, but not written.
        found: Gets the number of batches, and where they end.

    Returns:
        DONE or a fault.
    """
    return _kernel("index")(
        _address(source, np.uint8), len(source), _address(batches, BATCH), len(batches), found
    )


def begin_scan(state: ScanState, source: Bytes, batches: Batches) -> None:
    """Set a scan to the first record of some batches; all else in its state stays.

    Args:
        state: The state. It keeps addresses: the arrays must live as long as the scan goes on.
        source: The buffer that the records are in, decompressed.
        batches: Where they are in it, and how many.
    """
    state.source, state.size = _address(source, np.uint8), len(source)
    state.batches, state.batch_count = _address(batches, BATCH), len(batches)
    state.batch = state.record = 0


def scan(state: ScanState) -> int:
    """Go on through the records of some batches; append (or count) those that are wanted.

    Returns:
        DONE; FULL, if there are as many rows as there may be, or the record where it stands finds
        no room; or a fault of the batch where it stands.
    """
    return _kernel("scan")(state)


def find_marks(source: Bytes, start: int, counts: Ints, mark: tuple[int, int]) -> int:
    """Find where batches end that lie one after the other, a mark behind each.

    Args:
        source: The buffer that they are in.
        start: Where the first one begins.
        counts: The number of records of each; replaced by where they end, and its mark begins.
        mark: 16 bytes, as two integers.

    Returns:
        Where the last mark ends; -1: one of them is not where the records before it end.
    """
    buffer, numbers = _address(source, np.uint8), _address(counts, np.int64)
    return _kernel("find_marks")(buffer, len(source), start, len(counts), numbers, *mark)


def measure_headers(raw: BinaryColumn, rows: int) -> HeaderSizes:
    """How much room headers need that a scan has checked and collected."""
    sizes = HeaderSizes()
    _kernel("measure_headers")(raw.offsets, raw.data, rows, sizes)
    return sizes


def copy_headers(
    raw: BinaryColumn, rows: int, lists: int, keys: BinaryColumn, values: BinaryColumn
) -> None:
    """Make columns of the headers that :func:`measure_headers` has measured.

    Args:
        raw: The column of headers, as a scan has collected it.
        rows: Number of rows.
        lists: Address of the 32-bit offsets to write: which headers are whose.
        keys: Has room for all keys.
        values: Has room for all values.
    """
    _kernel("copy_headers")(raw.offsets, raw.data, rows, lists, keys, values)


def _address(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> int:
    """Where an array's numbers are.

    Raises:
        TypeError: They are of another type.
        BufferError: There are gaps between them.
    """
    if array.dtype != dtype:
        raise TypeError(f"wanted an array of {dtype}; got one of {array.dtype}")
    address: int = pa.py_buffer(array).address  # five times as fast as ``array.ctypes.data``
    return address


# -- how they are made --------------------------------------------------------------------------


@cache
def _machine() -> Any:
    """LLVM's target machine: any processor of this architecture, so that an image fits them all."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    reloc = "static" if target.name.startswith("x86") else "default"
    return target.create_target_machine(opt=3, reloc=reloc, codemodel="jitdefault", jit=True)


def _file_name() -> str:
    """Names the sources and the architecture."""
    digest = hashlib.sha256(f"{llvmlite.__version__} {llvm.get_default_triple()}".encode())
    for source in _SOURCES:
        digest.update(pkgutil.get_data(_PACKAGE, source) or b"")
    return f"kernels-{platform.machine()}-{digest.hexdigest()[:16]}.o"


def _make() -> bytes:
    # Numba takes a second to import, and nobody needs it who finds the code.
    from kshare.wire.decode.kernels.build import build  # noqa: PLC0415

    return build(_SIGNATURES, _machine())


def warm(directory: Path | None = None) -> Path:
    """Compile the kernels, unless that was done before.

    Args:
        directory: Where to keep them, for ``NUMBA_CACHE_DIR``; None: where they are looked for.

    Returns:
        The file that has them.

    Raises:
        OSError: It cannot be written.
    """
    folders = _folders() if directory is None else [directory]
    name = _file_name()
    cached(name, _make, folders)
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    raise OSError(f"no directory can be written: {', '.join(map(str, folders))}")


def _folders() -> list[Path]:
    return directories(os.environ, Path(__file__).parent)


def _engine() -> Any:
    """The loaded code, one for all threads: a second one would be freed while it is called."""
    with _LOADING:
        if not _LOADED:
            _LOADED.append(_load())
        return _LOADED[0]


def _load() -> Any:
    code = cached(_file_name(), _make, _folders())
    libc = ctypes.CDLL(None)
    for name in _FROM_LIBC:
        llvm.add_symbol(name, ctypes.cast(libc[name], ctypes.c_void_p).value)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


@cache
def _kernel(name: str) -> Callable[..., int]:
    kinds: list[Any] = [
        ctypes.c_int64 if kind is int else ctypes.POINTER(kind) for kind in _SIGNATURES[name]
    ]
    prototype = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)
    return prototype(_engine().get_function_address(name))
