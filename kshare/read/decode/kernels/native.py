"""Memory in compiled code, by address and without a check; varints, and the hash of a key.

Whoever calls these has checked the bounds. Cost: a load or a store is one instruction, whatever the
alignment.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from llvmlite import ir
from numba import extending, from_dtype, njit, types, uint64

from kshare.read.decode.layout import (
    BATCH,
    COPY_SLACK,
    ENUM_NAME,
    FAULT,
    JSON_FIELD,
    JSON_LEVEL,
    JSON_STEP,
    MESSAGE,
    MESSAGE_ENUM,
    MESSAGE_FIELD,
    NODE,
    STEP,
    VARIANT_KEY,
    VARIANT_LEVEL,
)

__all__ = [
    "FLAGS",
    "Int",
    "Record",
    "Word",
    "batch_at",
    "bits_of_f32",
    "bits_of_f64",
    "copy",
    "copy_short",
    "enum_at",
    "enum_name_at",
    "f32_of_bits",
    "f64_of_bits",
    "fault_at",
    "field_at",
    "hash_key",
    "hash_offset",
    "helper",
    "json_field_at",
    "json_level_at",
    "json_step_at",
    "leading_zeros",
    "load_i16_be",
    "load_i32",
    "load_i32_be",
    "load_i64",
    "load_i64_be",
    "load_u8",
    "load_u32_be",
    "load_u64",
    "message_at",
    "move",
    "multiply_high",
    "node_at",
    "step_at",
    "store_i16",
    "store_i32",
    "store_i64",
    "store_u8",
    "trailing_zeros",
    "unsigned",
    "variant_key_at",
    "variant_level_at",
    "varint",
]

Int: TypeAlias = Any
"""int64, from another helper: type checkers do not know what these return."""

Word: TypeAlias = Any
"""uint64, as all words that are hashed."""

Record: TypeAlias = Any
"""A pointer to memory that :mod:`kshare.read.decode.layout` describes; its fields are int64."""

intrinsic: Callable[[Callable[..., Any]], Any] = extending.intrinsic

FLAGS: dict[str, Any] = {"boundscheck": False, "_nrt": False, "error_model": "numpy"}
"""Of all that is compiled. Nothing is allocated, so numba need not count who holds what; nothing
raises: no kernel divides by zero."""

_HELPER_FLAGS: dict[str, Any] = {
    **FLAGS,
    "forceinline": True,
    # What Python would need to call it takes a third of the time to compile.
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


def helper(function: Callable[..., Any]) -> Any:
    """Make a function part of the kernels that call it; Python cannot call it."""
    return njit(**_HELPER_FLAGS)(function)


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
store_i16 = _storer(types.int16)
store_i32 = _storer(types.int32)
store_i64 = _storer(types.int64)


def _record_at(kind: Any) -> Any:
    """A function ``(address) -> the record there``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    @intrinsic
    def record_at(_context: Any, _address: Any) -> Any:
        return from_dtype(kind)(types.int64), generate

    return record_at


batch_at = _record_at(BATCH)
enum_at = _record_at(MESSAGE_ENUM)
enum_name_at = _record_at(ENUM_NAME)
fault_at = _record_at(FAULT)
field_at = _record_at(MESSAGE_FIELD)
message_at = _record_at(MESSAGE)
node_at = _record_at(NODE)
json_field_at = _record_at(JSON_FIELD)
json_level_at = _record_at(JSON_LEVEL)
json_step_at = _record_at(JSON_STEP)
step_at = _record_at(STEP)
variant_key_at = _record_at(VARIANT_KEY)
variant_level_at = _record_at(VARIANT_LEVEL)


def _bits(number: Any, word: Any) -> Any:
    """A function ``(number) -> int64`` with the bits of a floating-point number."""

    def generate(_context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], ir.IntType(word.bitwidth))
        return bits if word.bitwidth == 64 else builder.zext(bits, ir.IntType(64))

    @intrinsic
    def bits(_context: Any, _number: Any) -> Any:
        return types.int64(number), generate

    return bits


bits_of_f32 = _bits(types.float32, types.int32)
bits_of_f64 = _bits(types.float64, types.int64)


def _zeros(instruction: str) -> Any:
    """A function ``(word) -> how many of its bits are 0`` before the first that is 1."""

    def generate(_context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        return getattr(builder, instruction)(arguments[0], ir.Constant(ir.IntType(1), 0))

    @intrinsic
    def zeros(_context: Any, _word: Any) -> Any:
        return types.int64(types.uint64), generate

    return zeros


leading_zeros = _zeros("ctlz")
trailing_zeros = _zeros("cttz")


@intrinsic
def multiply_high(_context: Any, _one: Any, _other: Any) -> Any:
    """The upper 64 bits of the product of two words."""

    def generate(_context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        one, other = (builder.zext(argument, wide) for argument in arguments)
        upper = builder.lshr(builder.mul(one, other), ir.Constant(wide, 64))
        return builder.trunc(upper, ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def f64_of_bits(_context: Any, _bits: Any) -> Any:
    """The floating-point number of 64 bits."""

    def generate(_context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@intrinsic
def f32_of_bits(_context: Any, _bits: Any) -> Any:
    """The floating-point number of the lower 32 bits."""

    def generate(_context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        word = builder.trunc(arguments[0], ir.IntType(32))
        return builder.bitcast(word, ir.FloatType())

    return types.float32(types.int64), generate


def _copier(instruction: str) -> Any:
    """A function ``(target, source, size)`` of addresses, as an instruction of LLVM's does it."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        target, source, size = arguments
        kinds = [byte, byte, ir.IntType(64)]
        made = builder.module.declare_intrinsic(instruction, kinds)
        pointers = [builder.inttoptr(address, byte) for address in (target, source)]
        builder.call(made, [*pointers, size, ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    @intrinsic
    def copied(_context: Any, _target: Any, _source: Any, _size: Any) -> Any:
        return types.void(types.int64, types.int64, types.int64), generate

    return copied


copy = _copier("llvm.memcpy")  # bytes that do not overlap
move = _copier("llvm.memmove")


@intrinsic
def _copy_16(_context: Any, _target: Any, _source: Any) -> Any:
    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        block = ir.VectorType(ir.IntType(64), 2).as_pointer()
        target, source = (builder.inttoptr(address, block) for address in arguments)
        builder.store(builder.load(source, align=1), target, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@helper
def copy_short(target: int, source: int, size: int) -> None:
    """:func:`copy` in blocks of 16 bytes: faster for little, but touches ``COPY_SLACK`` more."""
    done = 0
    while done < size:
        _copy_16(target + done, source + done)
        done += COPY_SLACK


@helper
def unsigned(at: int, end: int) -> tuple[int, int]:
    """A varint of 64 bits at most, at an address below ``end``.

    Returns:
        The number and the address behind it; address 0: it is cut short, or longer than 10 bytes.
    """
    if at < end:
        byte = load_u8(at)
        if byte < 0x80:
            return byte, at + 1
        value = uint64(byte & 0x7F)
        shift = 7
        at += 1
        while at < end and shift < 64:
            byte = load_u8(at)
            at += 1
            value |= uint64(byte & 0x7F) << uint64(shift)
            if byte < 0x80:
                return types.int64(value), at
            shift += 7
    return 0, 0


@helper
def varint(at: int, end: int) -> tuple[int, int]:
    """A zigzag varint, as :func:`unsigned`: small numbers below 0 are short, too."""
    value, behind = unsigned(at, end)
    half = types.int64(uint64(value) >> uint64(1))
    return half ^ -(value & 1), behind


@helper
def _rotl(value: Word, bits: Word) -> Word:
    return (value << bits) | (value >> (uint64(64) - bits))


@helper
def _fmix(value: Word) -> Word:
    value ^= value >> uint64(33)
    value *= uint64(0xFF51AFD7ED558CCD)
    value ^= value >> uint64(33)
    value *= uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> uint64(33))


@helper
def _finish(h1: Word, h2: Word, size: int) -> Int:
    """The end of MurmurHash3: of 128 bits the first 64, shifted right by one."""
    h1 ^= uint64(size)
    h2 ^= uint64(size)
    h1 += h2
    h2 += h1
    return types.int64((_fmix(h1) + _fmix(h2)) >> uint64(1))


@helper
def _mix1(word: Word) -> Word:
    return _rotl(word * uint64(0x87C37B91114253D5), uint64(31)) * uint64(0x4CF5AD432745937F)


@helper
def _mix2(word: Word) -> Word:
    return _rotl(word * uint64(0x4CF5AD432745937F), uint64(33)) * uint64(0x87C37B91114253D5)


@helper
def _little(at: int, size: int, end: int) -> Word:
    """1 to 8 bytes as a little-endian number, in a buffer that ends at ``end``."""
    if end - at >= 8:
        return load_u64(at) & (uint64(0xFFFFFFFFFFFFFFFF) >> uint64(64 - 8 * size))
    word = uint64(0)
    for byte in range(size):
        word |= uint64(load_u8(at + byte)) << uint64(8 * byte)
    return word


@helper
def hash_key(at: int, size: int, end: int) -> Int:
    """The key hash of some bytes, in a buffer that ends at ``end``.

    MurmurHash3 x64-128 by Austin Appleby (public domain), seed 0.
    """
    h1 = uint64(0)
    h2 = uint64(0)
    rest = size
    while rest >= 16:
        h1 ^= _mix1(load_u64(at))
        h1 = (_rotl(h1, uint64(27)) + h2) * uint64(5) + uint64(0x52DCE729)
        h2 ^= _mix2(load_u64(at + 8))
        h2 = (_rotl(h2, uint64(31)) + h1) * uint64(5) + uint64(0x38495AB5)
        at += 16
        rest -= 16
    if rest > 8:
        h2 ^= _mix2(_little(at + 8, rest - 8, end))
    if rest > 0:
        h1 ^= _mix1(_little(at, min(rest, 8), end))
    return _finish(h1, h2, size)


@helper
def hash_offset(offset: int) -> Int:
    """The hash of a record without a key: of its offset as 8 bytes, little-endian."""
    return _finish(_mix1(uint64(offset)), uint64(0), 8)
