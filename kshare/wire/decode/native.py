"""How kernels are made, and how they touch memory.

Law: a kernel is compiled for the types that its signature states, once, and is never compiled again
while data flows; a machine where nothing can be cached compiles once per process. Memory is read
and written by address, without a check: who calls these has checked the bounds. Cost: a load or a
store is one instruction, whatever the alignment.

Numba's cache watches one file, that of the kernel: whoever changes this one changes its digest in
``kernels.py``.
"""

import logging
from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, njit, types

intrinsic: Callable[[Callable[..., Any]], Any] = extending.intrinsic

__all__ = [
    "BYTES",
    "COPY_SLACK",
    "STATE",
    "TABLE",
    "copy",
    "copy_short",
    "helper",
    "kernel",
    "load_i16_be",
    "load_i32",
    "load_i32_be",
    "load_i64",
    "load_i64_be",
    "load_u8",
    "load_u32_be",
    "load_u64",
    "store_i32",
    "store_i64",
    "store_u8",
]

_log = logging.getLogger(__name__)

# Kernels allocate nothing, so numba need not count who holds an array: it would do so for each
# record, with locked instructions (a fifth of the time).
_FLAGS: dict[str, Any] = {"nogil": True, "boundscheck": False, "_nrt": False}

BYTES = types.Array(types.uint8, 1, "C", readonly=True)
"""Bytes that a kernel reads."""

TABLE = types.Array(types.int64, 2, "C")
"""A table of integers, row after row."""

STATE = types.Array(types.int64, 1, "C")
"""Integers that a kernel reads and changes."""

COPY_SLACK = 16
"""Bytes that :func:`copy_short` may write, and read, behind what it copies."""


def kernel(*arguments: Any, returns: Any = types.int64) -> Callable[[Any], Any]:
    """Make a function a kernel: compiled at its definition, or loaded from numba's cache.

    The cache lies in ``NUMBA_CACHE_DIR`` if that is set, else beside the file, else (a read-only
    installation) in the user's cache directory. Numba sees to that; where none can be written, the
    kernel is compiled in each process.

    Args:
        arguments: numba's types of the arguments; others are an error, not another compilation.
        returns: the type of the result.
    """
    signature = returns(*arguments)

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return njit(signature, cache=True, **_FLAGS)(function)
        except RuntimeError as error:
            if "locator" not in str(error):
                raise
            _log.warning(
                "kshare's kernels are compiled anew in each process: no directory for numba's "
                "cache can be written; set NUMBA_CACHE_DIR to one that can",
            )
            return njit(signature, **_FLAGS)(function)

    return compiled


def helper(function: Callable[..., Any]) -> Any:
    """Make a function part of the kernels that call it; it is not compiled by itself."""
    return njit(forceinline=True, **_FLAGS)(function)


def _loader(kind: Any, *, swapped: bool = False) -> Any:
    """A function ``(address) -> value``."""
    bits = kind.bitwidth

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(bits)
        value = builder.load(builder.inttoptr(arguments[0], word.as_pointer()), align=1)
        if swapped:
            value = builder.bswap(value)
        wide = context.get_value_type(signature.return_type)
        if wide.width == bits:
            return value
        return builder.sext(value, wide) if kind.signed else builder.zext(value, wide)

    @intrinsic
    def load(_context: Any, _address: Any) -> Any:
        wide = types.int64 if bits < 64 else kind
        return wide(types.int64), generate

    return load


def _storer(kind: Any) -> Any:
    """A function ``(address, value)``."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        word = ir.IntType(kind.bitwidth)
        address, value = arguments
        if kind.bitwidth < 64:
            value = builder.trunc(value, word)
        builder.store(value, builder.inttoptr(address, word.as_pointer()), align=1)
        return context.get_dummy_value()

    @intrinsic
    def store(_context: Any, _address: Any, _value: Any) -> Any:
        return types.void(types.int64, types.int64), generate

    return store


# Narrow integers come as int64: numba makes floats of int64 with uint64, and there is none then.
load_u8 = _loader(types.uint8)
load_i32 = _loader(types.int32)
load_i64 = _loader(types.int64)
load_u64 = _loader(types.uint64)
load_i16_be = _loader(types.int16, swapped=True)
load_i32_be = _loader(types.int32, swapped=True)
load_u32_be = _loader(types.uint32, swapped=True)
load_i64_be = _loader(types.int64, swapped=True)
store_u8 = _storer(types.uint8)
store_i32 = _storer(types.int32)
store_i64 = _storer(types.int64)


@intrinsic
def copy(_context: Any, _target: Any, _source: Any, _size: Any) -> Any:
    """``memcpy(target, source, size)``: addresses, and bytes that do not overlap."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        target, source, size = arguments
        kinds = [byte, byte, ir.IntType(64)]
        memcpy = builder.module.declare_intrinsic("llvm.memcpy", kinds)
        places = [builder.inttoptr(place, byte) for place in (target, source)]
        builder.call(memcpy, [*places, size, ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def _copy_16(_context: Any, _target: Any, _source: Any) -> Any:
    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        block = ir.VectorType(ir.IntType(64), 2).as_pointer()
        target, source = (builder.inttoptr(place, block) for place in arguments)
        builder.store(builder.load(source, align=1), target, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@helper
def copy_short(target: int, source: int, size: int) -> None:
    """:func:`copy` in blocks of 16 bytes: faster for little, but touches ``COPY_SLACK`` more."""
    done = 0
    while done < size:
        _copy_16(target + done, source + done)
        done += 16
