"""Rows that kernels append to nested Arrow arrays: the output of the formats of values.

A row goes to the nodes value by value, each node by itself, in any order; when it is whole, each
node below no list has one value more. What has no room changes nothing and says what it needs.
``set_back`` then takes the row away again from all nodes, so that a row is there whole, or not at
all; the nodes' offsets say how much that is, so nothing is remembered for it.

Cost: some 2 ns a value.
"""

from kshare.read.decode import node_kind, status
from kshare.read.decode.kernels.native import (
    Int,
    Record,
    copy,
    copy_short,
    fault_at,
    helper,
    load_i32,
    load_u8,
    node_at,
    store_i16,
    store_i32,
    store_i64,
    store_u8,
)
from kshare.read.decode.layout import COPY_SLACK, FAULT, NODE

__all__ = [
    "begin_bytes",
    "end_bytes",
    "node_of",
    "put_bad_row",
    "put_boolean",
    "put_bytes",
    "put_fault",
    "put_fixed",
    "put_list",
    "put_null",
    "put_null_alone",
    "put_pair",
    "put_struct",
    "set_back",
    "set_back_below",
]

_SHORT = 256  # bytes that are copied in blocks
_NODE_SIZE = NODE.itemsize
_FAULT_SIZE = FAULT.itemsize


@helper
def node_of(rows: Record, number: int) -> Record:
    """The node of a number, in preorder; 0 is the root.

    Args:
        rows: RowDecoding.
        number: The number, which must be one of the output's.
    """
    return node_at(rows.nodes + _NODE_SIZE * number)


@helper
def _has_room(node: Record) -> bool:
    """True if one value more fits; if not, say so."""
    used = node.used
    if used < node.capacity:
        return True
    node.needed = used + 1
    return False


@helper
def put_fixed(node: Record, value: int) -> Int:
    """Append the lower bytes of a number to a node of 1, 2, 4 or 8 bytes.

    Returns:
        DONE or FULL, as of all that append.
    """
    if not _has_room(node):
        return status.FULL
    used = node.used
    width = node.width
    at = node.data + used * width
    if width == 8:
        store_i64(at, value)
    elif width == 4:
        store_i32(at, value)
    elif width == 2:
        store_i16(at, value)
    else:
        store_u8(at, value)
    node.used = used + 1
    return status.DONE


@helper
def put_pair(node: Record, low: int, high: int) -> Int:
    """Append 16 bytes: the lower 8, and the upper."""
    if not _has_room(node):
        return status.FULL
    used = node.used
    store_i64(node.data + 16 * used, low)
    store_i64(node.data + 16 * used + 8, high)
    node.used = used + 1
    return status.DONE


@helper
def put_boolean(node: Record, value: int) -> Int:
    """Append 0 or 1 to a node of bits; those behind it become 0."""
    if not _has_room(node):
        return status.FULL
    used = node.used
    at = node.data + (used >> 3)
    bit = used & 7
    store_u8(at, (load_u8(at) & ((1 << bit) - 1)) | (value << bit))
    node.used = used + 1
    return status.DONE


@helper
def put_struct(node: Record) -> Int:
    """Append a struct; its fields get their values by themselves."""
    if not _has_room(node):
        return status.FULL
    node.used += 1
    return status.DONE


@helper
def put_list(rows: Record, number: int) -> Int:
    """Append a list, or a map, of all values of the node below it that no list has yet."""
    node = node_of(rows, number)
    if not _has_room(node):
        return status.FULL
    used = node.used
    store_i32(node.offsets + 4 * used + 4, node_of(rows, number + 1).used)
    node.used = used + 1
    return status.DONE


@helper
def begin_bytes(node: Record, size: int) -> Int:
    """The address where a string or binary is to be written.

    Args:
        node: The node.
        size: How many bytes there will be at most, besides COPY_SLACK.

    Returns:
        0: there is no room.
    """
    if not _has_room(node):
        return 0
    used = node.bytes_used
    if size > node.bytes_capacity - used:
        node.bytes_needed = used + size
        return 0
    return node.data + used


@helper
def end_bytes(node: Record, size: int) -> None:
    """Append the string or binary that was written where ``begin_bytes`` said."""
    used = node.used
    bytes_used = node.bytes_used + size
    store_i32(node.offsets + 4 * used + 4, bytes_used)
    node.bytes_used = bytes_used
    node.used = used + 1


@helper
def put_bytes(node: Record, at: int, size: int, end: int) -> Int:
    """Append a string or binary.

    Args:
        node: The node.
        at: Address of the bytes.
        size: Their number.
        end: End of the buffer that they are in.
    """
    target = begin_bytes(node, size)
    if target == 0:
        return status.FULL
    if size <= _SHORT and end - at >= size + COPY_SLACK:
        copy_short(target, at, size)
    else:
        copy(target, at, size)
    end_bytes(node, size)
    return status.DONE


@helper
def _put_zero(node: Record) -> None:
    """Append what is below a null, so that no memory's former content is in an array."""
    used = node.used
    kind = node.kind
    if kind == node_kind.FIXED:
        if node.width == 16:
            put_pair(node, 0, 0)
        else:
            put_fixed(node, 0)
        return
    if kind == node_kind.BOOLEAN:
        put_boolean(node, 0)
        return
    if kind in (node_kind.LIST, node_kind.BINARY):
        store_i32(node.offsets + 4 * used + 4, load_i32(node.offsets + 4 * used))
    node.used = used + 1


@helper
def put_null_alone(node: Record) -> Int:
    """Append a null to a node, and nothing to those below it."""
    if not _has_room(node):
        return status.FULL
    used = node.used
    if node.kind != node_kind.NULL:
        at = node.validity + (used >> 3)
        store_u8(at, load_u8(at) & ~(1 << (used & 7)))
    node.nulls += 1
    _put_zero(node)
    return status.DONE


@helper
def put_null(rows: Record, number: int) -> Int:
    """Append a null to a node, and to the fields of a struct."""
    behind = node_of(rows, number).next
    while number < behind:
        node = node_of(rows, number)
        if put_null_alone(node) != status.DONE:
            return status.FULL
        number = node.next if node.kind == node_kind.LIST else number + 1
    return status.DONE


@helper
def _forget_nulls(node: Record, kept: int) -> None:
    """Set the validity bits of a node behind those that it keeps."""
    if node.kind == node_kind.NULL:
        node.nulls = kept
        return
    value = kept
    while value < node.used and node.nulls > 0:
        at = node.validity + (value >> 3)
        bits = load_u8(at)
        if bits & (1 << (value & 7)) == 0:
            store_u8(at, bits | (1 << (value & 7)))
            node.nulls -= 1
        value += 1


@helper
def set_back(rows: Record) -> None:
    """Take away from all nodes what is behind the row where the decoding stands."""
    set_back_below(rows, 0, rows.row)


@helper
def set_back_below(rows: Record, number: int, kept: int) -> None:
    """Take away from a node, and all below it, what is behind the values that it keeps."""
    node_of(rows, number).kept = kept
    behind = node_of(rows, number).next
    while number < behind:
        node = node_of(rows, number)
        kept = node.kept
        below = kept
        if node.kind == node_kind.LIST:
            below = load_i32(node.offsets + 4 * kept)
        child = number + 1
        while child < node.next:
            node_of(rows, child).kept = below
            child = node_of(rows, child).next
        _forget_nulls(node, kept)
        if node.kind == node_kind.BINARY:
            node.bytes_used = load_i32(node.offsets + 4 * kept)
        node.used = kept
        number += 1


@helper
def put_bad_row(rows: Record, place: int, code: int, value: int) -> Int:
    """Append null in place of the row where the decoding stands, and the fault.

    Args:
        rows: RowDecoding.
        place: Where in the format's table.
        code: What is wrong.
        value: What was found.
    """
    set_back(rows)
    result = put_null(rows, 0)
    if result == status.DONE:
        put_fault(rows, place, code, value)
    return result


@helper
def put_fault(rows: Record, place: int, code: int, value: int) -> None:
    """Append a fault of the row where the decoding stands; as in ``put_bad_row``."""
    fault = fault_at(rows.faults + _FAULT_SIZE * rows.fault_count)
    fault.row = rows.row
    fault.place = place
    fault.code = code
    fault.value = value
    rows.fault_count += 1
