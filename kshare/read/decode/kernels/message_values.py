"""Values of Protobuf's fields, appended to the output."""

from numba import types, uint64

from kshare.read.decode import message_table as table
from kshare.read.decode import node_kind, status
from kshare.read.decode.kernels.native import (
    Int,
    Record,
    copy,
    enum_at,
    enum_name_at,
    helper,
    store_u8,
)
from kshare.read.decode.kernels.output import (
    begin_bytes,
    end_bytes,
    node_of,
    put_boolean,
    put_bytes,
    put_fixed,
    put_null,
)
from kshare.read.decode.layout import ENUM_NAME, MESSAGE_ENUM

__all__ = ["put_default", "put_number"]

_DIGITS = 11  # of a 32-bit number, with its sign
_ENUM_SIZE = MESSAGE_ENUM.itemsize
_NAME_SIZE = ENUM_NAME.itemsize


@helper
def _put_text(state: Record, field: Record, position: int, size: int) -> Int:
    texts = state.texts
    node = node_of(state.rows, field.node)
    return put_bytes(node, texts + position, size, texts + state.texts_size)


@helper
def _put_unknown(state: Record, field: Record, enum: Record, value: int) -> Int:
    """Append what Java calls a number of an enum that has no name."""
    size = enum.unknown_size
    node = node_of(state.rows, field.node)
    target = begin_bytes(node, size + _DIGITS)
    if target == 0:
        return status.FULL
    copy(target, state.texts + enum.unknown, size)
    rest = value
    if value < 0:
        store_u8(target + size, 0x2D)
        size += 1
        rest = -value
    digits = 1
    ten = 10
    while rest >= ten:
        digits += 1
        ten *= 10
    for place in range(digits):
        store_u8(target + size + digits - 1 - place, 0x30 + rest % 10)
        rest //= 10
    end_bytes(node, size + digits)
    return status.DONE


@helper
def _put_enum(state: Record, field: Record, value: int) -> Int:
    """Append the name of a number.

    Returns:
        DONE, FULL, or ENUM_VALUE: the enum is closed, and has no such number.
    """
    enum = enum_at(state.enums + _ENUM_SIZE * field.below)
    first = enum.first
    end = enum.behind
    while first < end:
        middle = (first + end) >> 1
        if enum_name_at(state.names + _NAME_SIZE * middle).number < value:
            first = middle + 1
        else:
            end = middle
    if first < enum.behind:
        name = enum_name_at(state.names + _NAME_SIZE * first)
        if name.number == value:
            return _put_text(state, field, name.position, name.size)
    if field.flags & table.CLOSED != 0:
        return table.ENUM_VALUE
    return _put_unknown(state, field, enum, value)


@helper
def put_number(state: Record, field: Record, value: int) -> Int:
    """Append what a varint, or four or eight bytes, stand for."""
    kind = field.kind
    if kind == table.ZIGZAG64:
        half: Int = types.int64(uint64(value) >> uint64(1))
        value = half ^ -(value & 1)
    elif kind == table.ZIGZAG32:
        value = ((value & 0xFFFFFFFF) >> 1) ^ -(value & 1)
    elif kind == table.BOOL:
        value = 1 if value != 0 else 0
    elif kind not in (table.INT64, table.FIXED64):
        value = (value << 32) >> 32
    if value == 0 and field.flags & table.IMPLICIT != 0:
        return put_null(state.rows, field.node)
    if kind == table.ENUM:
        return _put_enum(state, field, value)
    node = node_of(state.rows, field.node)
    if kind == table.BOOL:
        return put_boolean(node, value)
    return put_fixed(node, value)


@helper
def put_default(state: Record, field: Record) -> Int:
    """Append the value that stands for none."""
    rows = state.rows
    node = node_of(rows, field.node)
    if node.kind == node_kind.BINARY:
        return _put_text(state, field, field.default, field.default_size)
    if node.kind == node_kind.BOOLEAN:
        return put_boolean(node, field.default)
    return put_fixed(node, field.default)
