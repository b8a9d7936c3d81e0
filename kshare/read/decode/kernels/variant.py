"""Records of JSON to Spark's variants, as ``parse_json`` makes them, byte for byte.

A record is passed over once. Values are written as they come; the head of an object or array, which
has the offsets of its values, is written in front of them when it ends. Room for it is kept free as
that of the last one of its depth needed, so that mostly nothing is moved.

    not valid JSON, empty, too deep, too large -> null, and a fault
    what is rare (HARD: digits beyond 64 bits, bytes that are no UTF-8, a name that is there
      twice, half a surrogate pair) -> null; the plain reader reads it

What stands behind the value is not looked at, as in Spark.

Cost: some 260 ns for a record of 155 bytes and 8 fields.
"""

from kshare.read.decode import json_kind, status, variant_kind
from kshare.read.decode.kernels.json_text import HIGH_BYTES, skip_space, skip_string
from kshare.read.decode.kernels.native import (
    Int,
    Record,
    copy,
    helper,
    load_i64,
    load_u8,
    store_i32,
    variant_level_at,
)
from kshare.read.decode.kernels.output import (
    begin_bytes,
    end_bytes,
    node_of,
    put_fault,
    put_null_alone,
    put_struct,
    set_back,
)
from kshare.read.decode.kernels.text import is_utf8
from kshare.read.decode.kernels.variant_keys import HARD, begin_keys, seen_key
from kshare.read.decode.kernels.variant_values import FLAGS, put_head, put_metadata, put_scalar
from kshare.read.decode.layout import VARIANT_FIELD, VARIANT_LEVEL

__all__ = ["decode_variant"]

_FIELD_SIZE = VARIANT_FIELD.itemsize
_LEVEL_SIZE = VARIANT_LEVEL.itemsize
_VALUE = 1
_METADATA = 2
_RESERVED_DEPTH = 4
_RESERVED_MAX = 128
_VALUE_ROOM = 64 + _RESERVED_DEPTH * _RESERVED_MAX
_METADATA_ROOM = 64
# A value of two bytes and an offset of three for "0,", and nothing grows more, but for 1,000 heads.
_GROWTH = 4


@helper
def _level(state: Record, depth: int) -> Record:
    return variant_level_at(state.levels + _LEVEL_SIZE * depth)


@helper
def _open(state: Record, depth: int, is_object: int, target: int) -> Int:
    """Begin an object or array; return where its values go."""
    level = _level(state, depth)
    level.is_object = is_object
    level.first = state.field_count
    level.start = target
    level.reserved = 0
    if depth < _RESERVED_DEPTH and level.header <= _RESERVED_MAX:
        level.reserved = level.header
    return target + level.reserved


@helper
def _name(state: Record, at: int, end: int) -> tuple[int, int, int]:  # noqa: PLR0911
    """Read the name of a value, and the colon.

    Returns:
        DONE, FULL, HARD or a fault; the address of the value, or of what is wrong; its key.
    """
    if at >= end:
        return json_kind.CUT_SHORT, at, 0
    if load_u8(at) != 0x22:
        return json_kind.MALFORMED, at, 0
    stop, found = skip_string(at + 1, end, 0x22, FLAGS)
    if stop == 0:
        return found, at, 0
    if found & HIGH_BYTES != 0 and not is_utf8(at + 1, stop):
        return HARD, at, 0
    key = seen_key(state, at + 1, stop, end, found)
    if key < 0:
        return key, at, 0
    at = skip_space(stop + 1, end)
    if at >= end:
        return json_kind.CUT_SHORT, at, 0
    if load_u8(at) != 0x3A:
        return json_kind.MALFORMED, at, 0
    return status.DONE, skip_space(at + 1, end), key


@helper
def _begin_value(state: Record, depth: int, at: int, end: int, target: int) -> tuple[int, int]:
    """Note where the next value of an object or array is written, and read its name.

    Returns:
        DONE, FULL, HARD or a fault; and the address of the value, or of what is wrong.
    """
    level = _level(state, depth)
    key = 0
    if level.is_object != 0:
        result, at, key = _name(state, at, end)
        if result != status.DONE:
            return result, at
    place = state.field_count
    if place >= state.field_capacity:
        state.lacking = variant_kind.LACKS_FIELDS
        return status.FULL, at
    field = state.fields + _FIELD_SIZE * place
    store_i32(field, key)
    store_i32(field + 4, target - level.start - level.reserved)
    state.field_count = place + 1
    return status.DONE, at


@helper
def _ends_root(begin: int, at: int, end: int) -> Int:
    """Look at what stands behind a scalar that is the whole value: DONE, HARD or a fault."""
    first = load_u8(begin)
    if at >= end or first == 0x22:
        return status.DONE
    byte = load_u8(at)
    if first == 0x2D or 0x30 <= first <= 0x39:
        return status.DONE if byte in (0x20, 0x09, 0x0A, 0x0D) else json_kind.MALFORMED
    if byte >= 0x80:
        return HARD
    if byte < 0x30 or byte in (0x5D, 0x7D):
        return status.DONE
    is_letter = 0x61 <= byte | 0x20 <= 0x7A
    return json_kind.MALFORMED if is_letter or byte <= 0x39 or byte in (0x5F, 0x7F) else status.DONE


@helper
def _to_next(
    state: Record, depth: int, at: int, end: int, target: int, opened: bool
) -> tuple[int, int, int, int]:
    """Go on to the next value, and end the objects and arrays that end before it.

    Args:
        state: VariantState.
        depth: Where the one is that has begun, or whose value has ended.
        at: Address behind that.
        end: End of the record.
        target: Address behind what is written.
        opened: Whether it has begun.

    Returns:
        DONE, FULL, HARD, or what makes the record bad; where; the address behind what is written;
        and the depth, -1: all is read.
    """
    while True:
        at = skip_space(at, end)
        if at >= end:
            return json_kind.CUT_SHORT, at, target, depth
        level = _level(state, depth)
        byte = load_u8(at)
        if byte != (0x7D if level.is_object != 0 else 0x5D):
            if not opened:
                if byte != 0x2C:
                    return json_kind.MALFORMED, at, target, depth
                at = skip_space(at + 1, end)
            result, at = _begin_value(state, depth, at, end, target)
            return result, at, target, depth
        target = put_head(state, level, target)
        if target == HARD:
            return HARD, at, target, depth
        if target == 0:
            return json_kind.TOO_LARGE, at, target, depth
        at += 1
        depth -= 1
        opened = False
        if depth < 0:
            return status.DONE, at, target, depth


@helper
def _read_value(state: Record, at: int, end: int, target: int) -> tuple[int, int, int]:
    """Read the value that begins here, with all in it.

    Returns:
        DONE, FULL, HARD, or what makes the record bad; where; and the address behind what is
        written.
    """
    depth = -1
    state.field_count = 0
    while True:
        if at >= end:
            return json_kind.CUT_SHORT, at, target
        byte = load_u8(at)
        opened = byte in (0x7B, 0x5B)
        if opened:
            depth += 1
            if depth >= state.max_depth:
                return json_kind.TOO_DEEP, at, target
            target = _open(state, depth, 1 if byte == 0x7B else 0, target)
            at += 1
        else:
            begin = at
            result, at, target = put_scalar(state, target, at, end)
            if result == status.DONE and depth < 0:
                result = _ends_root(begin, at, end)
            if result != status.DONE or depth < 0:
                return result, at, target
        result, at, target, depth = _to_next(state, depth, at, end, target, opened)
        if result != status.DONE or depth < 0:
            return result, at, target


@helper
def _put_names(state: Record, size: int) -> Int:
    """Append the metadata of a record: DONE, FULL or TOO_LARGE."""
    node = node_of(state.rows, _METADATA)
    same = state.is_same != 0 and state.id_count == state.same_count
    target = begin_bytes(node, state.same_size if same else size + _METADATA_ROOM)
    if target == 0:
        return status.FULL
    made = state.same_size
    if same:
        copy(target, node.data + state.same_at, made)
    else:
        behind = put_metadata(state, target)
        made = behind - target
        if behind == 0 or made > state.max_size:
            return json_kind.TOO_LARGE
    state.same_at = target - node.data
    state.same_size = made
    state.same_count = state.id_count
    end_bytes(node, made)
    return status.DONE


@helper
def _read_record(state: Record, begin: int, end: int) -> tuple[int, int]:
    """Read a record, and append its row; a bad one appends nothing.

    Returns:
        DONE, FULL, HARD or a fault; and where.
    """
    state.lacking = variant_kind.LACKS_OUTPUT
    at = skip_space(begin, end)
    if at >= end:
        return json_kind.EMPTY, at
    node = node_of(state.rows, _VALUE)
    target = begin_bytes(node, _GROWTH * (end - at) + _VALUE_ROOM)
    if target == 0:
        return status.FULL, at
    begin_keys(state)
    result, at, behind = _read_value(state, at, end, target)
    if result != status.DONE:
        return result, at
    if behind - target > state.max_size:
        return json_kind.TOO_LARGE, at
    end_bytes(node, behind - target)
    result = _put_names(state, end - begin)
    if result == status.DONE:
        result = put_struct(node_of(state.rows, 0))
    return result, at


@helper
def _put_nothing(state: Record) -> Int:
    """Append a row that is null; its two binaries are empty, as their type has no nulls."""
    rows = state.rows
    value, metadata = node_of(rows, _VALUE), node_of(rows, _METADATA)
    if begin_bytes(value, 0) == 0 or begin_bytes(metadata, 0) == 0:
        return status.FULL
    result = put_null_alone(node_of(rows, 0))
    if result == status.DONE:
        end_bytes(value, 0)
        end_bytes(metadata, 0)
    return result


@helper
def _next_row(state: Record) -> Int:
    """Append the next row: DONE or FULL."""
    rows = state.rows
    start = load_i64(rows.starts + 8 * rows.row)
    end = load_i64(rows.ends + 8 * rows.row)
    if start < 0:
        return _put_nothing(state)
    code, at = json_kind.CUT_SHORT, rows.source
    if start <= end <= rows.size:
        code, at = _read_record(state, rows.source + start, rows.source + end)
        if code == status.DONE:
            return code
    # The ids of this record may have replaced those of the one before.
    state.same_count = -1
    set_back(rows)
    if code == status.FULL:
        return code
    result = _put_nothing(state)
    if result == status.DONE:
        if code == HARD:
            code = json_kind.HARD
        put_fault(rows, -1, code, at - rows.source - start)
    return result


def decode_variant(state: Record) -> Int:
    """Go on through records of JSON; see :func:`kshare.read.decode.compiled.decode_variant`.

    Args:
        state: VariantState.
    """
    rows = state.rows
    while rows.row < rows.rows:
        if _next_row(state) != status.DONE:
            return status.FULL
        rows.row += 1
    return status.DONE
