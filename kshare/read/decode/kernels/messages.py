"""Messages of Protobuf to rows.

The schema is data: tables of messages, fields and enums, made of what is wanted alone. A message is
read in one pass; its bytes may have the fields in any order:

    a tag
      | of no field that is wanted -> passed over
      | of a list or a map --------> one item more in the node below the list
      | of a single field ---------> a value in the field's node
      |   that has one already ----> REPEATED_FIELD: Python puts the parts together, and tries again
      | of a message --------------> its fields, until it ends
    the end of a message -----------> what has no value gets null, or what stands for it

Whether a field has a value needs no memory: its node has one value more than the message's.

Cost: some 5 ns a field. A row with more values than ``most_values`` is bad, so no few bytes make
much memory: an item of no bytes may have many fields.
"""

from kshare.read.decode import message_table as table
from kshare.read.decode import status
from kshare.read.decode.kernels.message_values import put_default, put_number
from kshare.read.decode.kernels.native import (
    Int,
    Record,
    field_at,
    helper,
    load_i32,
    load_i64,
    message_at,
    store_i64,
    unsigned,
)
from kshare.read.decode.kernels.output import (
    node_of,
    put_bad_row,
    put_bytes,
    put_fixed,
    put_list,
    put_null,
    put_struct,
    set_back,
)
from kshare.read.decode.kernels.protobuf_wire import (
    BYTES,
    FIXED32,
    GROUP,
    VARINT,
    passed_over,
)
from kshare.read.decode.kernels.text import is_utf8
from kshare.read.decode.layout import FRAME, MESSAGE, MESSAGE_FIELD

__all__ = ["decode_messages"]

_ENTERED = -2  # a message without bytes, which an entry of a map has in place of none

_SECONDS_MAX = 9_223_372_036_854  # microseconds that 64 bits can hold, without the fraction

_FRAME_SIZE = FRAME.itemsize
_MESSAGE_SIZE = MESSAGE.itemsize
_FIELD_SIZE = MESSAGE_FIELD.itemsize


@helper
def _failed(state: Record, result: int, place: int, found: int) -> Int:
    """End the row: the address 0."""
    state.result = result
    state.place = place
    state.found = found
    return 0


@helper
def _stand(state: Record) -> None:
    """Go on in the message on top of the stack."""
    number = load_i64(state.stack + _FRAME_SIZE * state.depth + 8)
    message = message_at(state.messages + _MESSAGE_SIZE * number)
    state.first = message.first
    state.behind = message.behind
    state.node = message.node


@helper
def _enter(state: Record, message: int, end: int) -> None:
    """Go on in a message that ends at an address. The stack has room for all there are."""
    frame = state.stack + _FRAME_SIZE * state.depth
    if state.depth >= 0:
        store_i64(frame + 16, state.next_field)
    state.depth += 1
    frame += _FRAME_SIZE
    store_i64(frame, end)
    store_i64(frame + 8, message)
    state.values += message_at(state.messages + _MESSAGE_SIZE * message).values
    _stand(state)
    state.next_field = state.first


@helper
def _number_of(state: Record, index: int) -> Int:
    return field_at(state.fields + _FIELD_SIZE * index).number


@helper
def _find(state: Record, number: int) -> Int:
    """The field of a number in the message; -1: nobody wants it."""
    first = state.next_field
    if first > state.first and _number_of(state, first - 1) == number:
        return first - 1  # the next item of a list
    if first < state.behind and _number_of(state, first) == number:
        state.next_field = first + 1
        return first
    first = state.first
    end = state.behind
    while first < end:
        middle = (first + end) >> 1
        if _number_of(state, middle) < number:
            first = middle + 1
        else:
            end = middle
    if first < state.behind and _number_of(state, first) == number:
        state.next_field = first + 1
        return first
    return -1


@helper
def _is_there(state: Record, index: int) -> bool:
    """True if a single field of the message, or another one of its oneof, has a value."""
    used = node_of(state.rows, state.node).used
    field = field_at(state.fields + _FIELD_SIZE * index)
    other = field.oneof
    while other != index:
        member = field_at(state.fields + _FIELD_SIZE * other)
        if node_of(state.rows, member.node).used != used:
            return True
        other = member.oneof
    return bool(node_of(state.rows, field.node).used != used)


@helper
def _read_number(state: Record, index: int, at: int, end: int) -> Int:
    """Append a number that is not in a list of bytes; the address behind it, or 0."""
    field = field_at(state.fields + _FIELD_SIZE * index)
    value = 0
    if field.wire_type == VARINT:
        value, at = unsigned(at, end)
    elif field.wire_type == FIXED32:
        if end - at < 4:
            at = 0
        else:
            value = load_i32(at)
            at += 4
    elif end - at < 8:
        at = 0
    else:
        value = load_i64(at)
        at += 8
    if at == 0:
        return _failed(state, table.CUT, index, 0)
    result = put_number(state, field, value)
    if result == table.ENUM_VALUE and state.depth > 0:
        return at  # Spark finds such numbers in the row's own fields alone
    if result != status.DONE:
        return _failed(state, result, index, (value << 32) >> 32)
    return at


@helper
def _read_packed(state: Record, index: int, at: int, end: int) -> Int:
    """Append a list of numbers; the address behind it, or 0."""
    size, at = unsigned(at, end)
    if at == 0 or size < 0 or size > end - at:
        return _failed(state, table.CUT, index, 0)
    end = at + size
    while at != 0 and at < end:
        at = _read_number(state, index, at, end)
        state.values += 1
    return at


@helper
def _moment(state: Record, at: int, end: int) -> tuple[int, int, int]:
    """Seconds and nanoseconds of a timestamp or a duration, and DONE or a fault."""
    seconds = 0
    nanos = 0
    while at < end:
        tag, at = unsigned(at, end)
        if at == 0 or tag >> 3 <= 0:
            return 0, 0, table.TAG
        if tag == 8:
            seconds, at = unsigned(at, end)
        elif tag == 16:
            nanos, at = unsigned(at, end)
            nanos = (nanos << 32) >> 32
        else:
            at = passed_over(state.groups, at, end, tag & 7, tag >> 3)
        if at == 0:
            return 0, 0, table.CUT
    if seconds > _SECONDS_MAX - 4 or seconds < 4 - _SECONDS_MAX:
        return 0, 0, table.RANGE
    return seconds, nanos, status.DONE


@helper
def _read_moment(state: Record, index: int, at: int, end: int) -> Int:
    """Append a timestamp or a duration that fills the bytes; their end, or 0."""
    seconds, nanos, result = _moment(state, at, end)
    if result == status.DONE:
        # As in Java, a fraction of a microsecond is cut off towards zero.
        micros = nanos // 1000 if nanos >= 0 else -(-nanos // 1000)
        node = node_of(state.rows, field_at(state.fields + _FIELD_SIZE * index).node)
        result = put_fixed(node, seconds * 1_000_000 + micros)
    if result != status.DONE:
        return _failed(state, result, index, 0)
    return end


@helper
def _read_text(state: Record, index: int, at: int, end: int) -> Int:
    """Append a string or bytes that fill the bytes; their end, or 0."""
    rows = state.rows
    field = field_at(state.fields + _FIELD_SIZE * index)
    if field.kind == table.STRING and not is_utf8(at, end):
        return _failed(state, table.TEXT, index, 0)
    if at == end and field.flags & table.IMPLICIT != 0:
        result = put_null(rows, field.node)
    else:
        node = node_of(rows, field.node)
        result = put_bytes(node, at, end - at, rows.source + rows.size)
    if result != status.DONE:
        return _failed(state, result, index, 0)
    return end


@helper
def _read_value(state: Record, index: int, at: int, end: int) -> Int:
    """Append a value of the field's own wire type.

    Returns:
        The address behind it; of a message, that of its first field; or 0.
    """
    field = field_at(state.fields + _FIELD_SIZE * index)
    if field.flags & table.REPEATED != 0:
        state.values += 1
    elif _is_there(state, index):
        return _failed(state, table.REPEATED_FIELD, index, 0)
    if field.wire_type != BYTES:
        return _read_number(state, index, at, end)
    size, at = unsigned(at, end)
    if at == 0 or size < 0 or size > end - at:
        return _failed(state, table.CUT, index, 0)
    if field.kind == table.MESSAGE:
        _enter(state, field.below, at + size)
        return at
    if field.kind == table.MOMENT:
        return _read_moment(state, index, at, at + size)
    return _read_text(state, index, at, at + size)


@helper
def _read_field(state: Record, at: int, end: int) -> Int:
    """Read the next field of the message; the address where it goes on, or 0."""
    tag, at = unsigned(at, end)
    number = tag >> 3
    if at == 0 or number <= 0 or number > 0x1FFFFFFF:
        return _failed(state, table.TAG, -1, 0)
    wire_type = tag & 7
    index = _find(state, number)
    if index >= 0:
        field = field_at(state.fields + _FIELD_SIZE * index)
        if wire_type == field.wire_type:
            return _read_value(state, index, at, end)
        if wire_type == BYTES and field.flags & table.REPEATED != 0:
            return _read_packed(state, index, at, end)
        if state.depth == 0:
            # Spark finds such fields in the row alone; in a message they are as good as absent.
            return _failed(state, table.WIRE_TYPE, index, 0)
    at = passed_over(state.groups, at, end, wire_type, number)
    if at == 0:
        return _failed(state, table.CUT if wire_type < GROUP else table.TAG, -1, 0)
    return at


@helper
def _put_absent(state: Record, index: int, at: int) -> Int:
    """Append what a field without a value gets.

    Returns:
        DONE, FULL, MISSING, or _ENTERED.
    """
    field = field_at(state.fields + _FIELD_SIZE * index)
    if field.flags & table.REQUIRED != 0:
        return table.MISSING
    if field.flags & table.ZERO != 0 and field.kind == table.MESSAGE:
        _enter(state, field.below, at)
        return _ENTERED
    if field.flags & (table.DEFAULT | table.ZERO) != 0:
        return put_default(state, field)
    return put_null(state.rows, field.node)


@helper
def _leave(state: Record, at: int) -> Int:
    """End the message where all its bytes are read, and go on in the one that it is in.

    Returns:
        DONE, FULL, a fault, or _ENTERED.
    """
    rows = state.rows
    struct = node_of(rows, state.node)
    if state.values > state.most_values:
        state.place = -1
        return table.SIZE
    used = struct.used
    for index in range(state.first, state.behind):
        field = field_at(state.fields + _FIELD_SIZE * index)
        if node_of(rows, field.holder).used != used:
            continue
        if field.flags & table.REPEATED != 0:
            result = put_list(rows, field.holder)
        else:
            result = _put_absent(state, index, at)
        if result != status.DONE:
            state.place = index
            return result
    result = put_struct(struct)
    if result != status.DONE:
        return result
    state.depth -= 1
    if state.depth >= 0:
        _stand(state)
        state.next_field = load_i64(state.stack + _FRAME_SIZE * state.depth + 16)
    return status.DONE


@helper
def _decode_row(state: Record, at: int, end: int) -> Int:
    """Append a row; DONE, FULL, or a fault."""
    state.depth = -1
    state.values = 0
    _enter(state, 0, end)
    while state.depth >= 0:
        end = load_i64(state.stack + _FRAME_SIZE * state.depth)
        if at < end:
            at = _read_field(state, at, end)
            if at == 0:
                return state.result
        else:
            result = _leave(state, at)
            if result not in (status.DONE, _ENTERED):
                state.found = 0
                return result
    return status.DONE


def decode_messages(state: Record) -> Int:
    """Decode messages; see :func:`kshare.read.decode.compiled.decode_messages`.

    Args:
        state: MessageDecoding.
    """
    rows = state.rows
    while rows.row < rows.rows:
        at = load_i64(rows.starts + 8 * rows.row)
        if at < 0:
            result = put_null(rows, 0)
        else:
            end = rows.source + load_i64(rows.ends + 8 * rows.row)
            result = _decode_row(state, rows.source + at, end)
            if result > status.DONE:
                result = put_bad_row(rows, state.place, result, state.found)
        if result != status.DONE:
            set_back(rows)
            return status.FULL
        rows.row += 1
    return status.DONE
