"""Records of JSON to rows, as Spark's ``from_json`` reads them in PERMISSIVE.

A record is passed over once. What is read goes to the output at once, and is taken back where it
turns out to be of no use:

    no object, or malformed anywhere up to its end -> all fields null, and a fault
    a value of another type -> taken back with the lists and maps around it; the field of the
      struct that these are in is null; the rest of them is passed over; and a fault
    what is rare and costly to do (HARD) -> a null in place of the row; the plain reader reads it

Objects and arrays that are open lie on a stack of ``max_depth``, so nothing here is recursive.

Cost: some 250 ns for a record of 155 bytes and 8 fields, 130 ns if two of them are taken.
"""

from kshare.read.decode import json_kind, status
from kshare.read.decode.kernels.json_text import (
    ESCAPES,
    HIGH_BYTES,
    compact,
    find_field,
    skip_space,
    skip_string,
    step_of,
    unescape,
)
from kshare.read.decode.kernels.json_values import (
    HARD,
    NULL,
    SCALAR_FAULT,
    WRONG,
    put_string,
    put_word,
    skip_word,
)
from kshare.read.decode.kernels.native import (
    Int,
    Record,
    helper,
    json_field_at,
    json_level_at,
    load_i64,
    load_u8,
)
from kshare.read.decode.kernels.output import (
    begin_bytes,
    end_bytes,
    node_of,
    put_bad_row,
    put_bytes,
    put_fault,
    put_list,
    put_null,
    put_struct,
    set_back,
    set_back_below,
)
from kshare.read.decode.kernels.text import is_utf8
from kshare.read.decode.layout import JSON_FIELD, JSON_LEVEL

__all__ = ["decode_json"]

_LEVEL_SIZE = JSON_LEVEL.itemsize
_FIELD_SIZE = JSON_FIELD.itemsize
_SKIPPED = -1
_RAW = -2
_REFUSED = -3
_NAME_MAX = 50_000  # bytes; the plain reader knows how many characters a name may have


@helper
def _level(state: Record, depth: int) -> Record:
    return json_level_at(state.levels + _LEVEL_SIZE * depth)


@helper
def _open(state: Record, depth: int, step: int, is_object: int, kept: int) -> None:
    """Begin an object or array."""
    level = _level(state, depth)
    level.step = step
    level.is_object = is_object
    level.kept = kept
    level.guess = 0
    level.found = 0
    level.current = 0


@helper
def _put_key(state: Record, node: Record, at: int, end: int, found: int) -> Int:
    if found & HIGH_BYTES != 0 and not is_utf8(at, end):
        return HARD
    if found & ESCAPES == 0:
        return put_bytes(node, at, end - at, state.rows.source + state.rows.size)
    target = begin_bytes(node, end - at)
    if target == 0:
        return status.FULL
    end_bytes(node, unescape(at, end, target))
    return status.DONE


@helper
def _quoted(state: Record, at: int, end: int) -> tuple[int, int, int, int]:
    """Check the name that begins here, and the colon behind it.

    Returns:
        DONE, HARD or a fault; the address behind the colon and blanks, or of what is wrong; the
        address of the closing quote; whether the name has ESCAPES and HIGH_BYTES.
    """
    if at >= end:
        return json_kind.CUT_SHORT, at, 0, 0
    quote = load_u8(at)
    if quote != 0x22 and (quote != 0x27 or state.flags & json_kind.NO_SINGLE_QUOTES != 0):
        return json_kind.MALFORMED, at, 0, 0
    stop, found = skip_string(at + 1, end, quote, state.flags)
    if stop == 0:
        return found, at, 0, 0
    if stop - at > _NAME_MAX:
        return HARD, at, 0, 0
    at = skip_space(stop + 1, end)
    if at >= end or load_u8(at) != 0x3A:
        return json_kind.CUT_SHORT if at >= end else json_kind.MALFORMED, at, 0, 0
    return status.DONE, skip_space(at + 1, end), stop, found


@helper
def _name(  # noqa: PLR0911 - each of them ends it in another way
    state: Record, level: Record, at: int, end: int
) -> tuple[int, int, int]:
    """Read the name of a value, and the colon.

    Returns:
        DONE, FULL, HARD or a fault; the address of the value, or of what is wrong; and the node of
        the value, -1: it is not taken.
    """
    begin = at + 1
    result, at, stop, found = _quoted(state, at, end)
    if result != status.DONE:
        return result, at, 0
    number = level.step
    if number < 0:
        return status.DONE, at, _SKIPPED
    step = step_of(state, number)
    if step.kind == json_kind.MAP:
        result = _put_key(state, node_of(state.rows, number + 2), begin, stop, found)
        if result == status.DONE:
            result = put_struct(node_of(state.rows, number + 1))
        return result, at, number + 3
    if found & ESCAPES != 0:
        return HARD, at, 0
    index = find_field(state, step, level.guess, begin, stop - begin, end)
    if index < 0:
        return status.DONE, at, _SKIPPED
    level.guess = index + 1 if index + 1 < step.second else 0
    field = json_field_at(state.fields + _FIELD_SIZE * (step.first + index)).node
    if node_of(state.rows, field).used != level.kept:
        return HARD, at, 0  # it is there twice: which one counts depends on whether it can be read
    level.found += 1
    level.current = field
    return status.DONE, at, field


@helper
def _fail(state: Record, depth: int) -> Int:
    """Make null of the field that a value of another type belongs to; pass over the rest of it.

    Returns:
        FULL, or its node.
    """
    level = _level(state, depth)
    while step_of(state, level.step).kind != json_kind.STRUCT:
        level.step = _SKIPPED
        depth -= 1
        level = _level(state, depth)
    field = level.current
    set_back_below(state.rows, field, level.kept)
    if put_null(state.rows, field) != status.DONE:
        return status.FULL
    return field


@helper
def _put_missing(state: Record, step: Record, kept: int) -> Int:
    """Append nulls to the fields of a struct that were not found."""
    number = step.first
    behind = number + step.second
    while number < behind:
        field = json_field_at(state.fields + _FIELD_SIZE * number).node
        if node_of(state.rows, field).used == kept and put_null(state.rows, field) != status.DONE:
            return status.FULL
        number += 1
    return status.DONE


@helper
def _close(  # noqa: PLR0911 - as in _name
    state: Record, level: Record, at: int, nulls: int
) -> tuple[int, int]:
    """End an object or array that was read.

    Returns:
        DONE, FULL, HARD, or TOO_LARGE; and how many fields are missing so far.
    """
    number = level.step
    if number == _SKIPPED:
        return status.DONE, nulls
    rows = state.rows
    if number == _RAW:
        if not is_utf8(level.kept, at):
            return HARD, nulls
        node = node_of(rows, level.current)
        target = begin_bytes(node, at - level.kept)
        if target == 0:
            return status.FULL, nulls
        size = compact(level.kept, at, target)
        if size < 0:
            return HARD, nulls
        end_bytes(node, size)
        return status.DONE, nulls
    step = step_of(state, number)
    if step.kind != json_kind.STRUCT:
        return put_list(rows, number), nulls
    missing = step.second - level.found
    if missing > 0:
        nulls += missing
        if nulls > state.max_nulls:
            return json_kind.TOO_LARGE, nulls
        if _put_missing(state, step, level.kept) != status.DONE:
            return status.FULL, nulls
    return put_struct(node_of(rows, number)), nulls


@helper
def _opened(state: Record, number: int, at: int, is_object: int) -> tuple[int, int]:
    """The use of an object or array that is the value of a node.

    Returns:
        The step of its level, and what the level keeps; _REFUSED: it is of another type.
    """
    if number < 0:
        return _SKIPPED, 0
    kind = step_of(state, number).kind
    if kind == json_kind.STRING:
        return _RAW, at
    if is_object != 0 and kind == json_kind.STRUCT:
        return number, node_of(state.rows, number).used
    if (is_object != 0 and kind == json_kind.MAP) or (is_object == 0 and kind == json_kind.LIST):
        return number, 0
    return _REFUSED, 0


@helper
def _put_scalar(state: Record, number: int, at: int, end: int) -> tuple[int, int]:  # noqa: PLR0911
    """Read a value that is no object and no array, at an address below ``end``; append it.

    Returns:
        DONE, FULL, WRONG, HARD or a fault; and the address behind it, or of what is wrong.
    """
    quote = load_u8(at)
    if quote == 0x22 or (quote == 0x27 and state.flags & json_kind.NO_SINGLE_QUOTES == 0):
        stop, found = skip_string(at + 1, end, quote, state.flags)
        if stop == 0:
            return found, at
        if number < 0:
            return status.DONE, stop + 1
        node = node_of(state.rows, number)
        return put_string(state, node, step_of(state, number), at + 1, stop, found), stop + 1
    behind, kind, mantissa, count, exponent, is_float = skip_word(at, end, state.flags)
    if kind == SCALAR_FAULT:
        return count, at
    if number < 0:
        return HARD if behind - at >= 1000 else status.DONE, behind
    if kind == NULL:
        return put_null(state.rows, number), behind
    node = node_of(state.rows, number)
    step = step_of(state, number)
    result = put_word(state, node, step, kind, at, behind, mantissa, count, exponent, is_float)
    return result, behind


@helper
def _fail_at(state: Record, depth: int, number: int, at: int) -> Int:
    """Handle a value of another type: see ``_fail``; remember the first one.

    Returns:
        DONE or FULL.
    """
    if _fail(state, depth) < 0:
        return status.FULL
    if state.wrong_node < 0:
        state.wrong_node = number
        state.wrong_at = at
    return status.DONE


@helper
def _begin_inner(state: Record, depth: int, number: int, at: int) -> Int:
    """Begin the object or array that is here, the value of a node, one level deeper.

    Returns:
        DONE, FULL or TOO_DEEP.
    """
    if depth + 1 >= state.max_depth:
        return json_kind.TOO_DEEP
    is_object = 1 if load_u8(at) == 0x7B else 0
    step, kept = _opened(state, number, at, is_object)
    if step == _REFUSED:
        if _fail_at(state, depth, number, at) != status.DONE:
            return status.FULL
        step = _SKIPPED
    _open(state, depth + 1, step, is_object, kept)
    if step == _RAW:
        _level(state, depth + 1).current = number
    return status.DONE


@helper
def _closing(level: Record) -> Int:
    return 0x7D if level.is_object != 0 else 0x5D


@helper
def _read_value(state: Record, depth: int, at: int, end: int) -> tuple[int, int, bool]:
    """Read the next value of an object, with its name, or of an array; or begin it.

    Returns:
        DONE, FULL, HARD or a fault; the address behind it, or of what is wrong; whether it is an
        object or array that has begun.
    """
    level = _level(state, depth)
    number = 0
    if level.is_object != 0:
        result, at, number = _name(state, level, at, end)
        if result != status.DONE:
            return result, at, False
    else:
        number = level.step + 1 if level.step >= 0 else _SKIPPED
    if at >= end:
        return json_kind.CUT_SHORT, at, False
    byte = load_u8(at)
    if byte in (0x7B, 0x5B):
        return _begin_inner(state, depth, number, at), at, True
    result, behind = _put_scalar(state, number, at, end)
    if result == WRONG:
        result = _fail_at(state, depth, number, at)
    return result, behind, False


@helper
def _read_object(state: Record, at: int, end: int) -> tuple[int, int]:
    """Read the object that begins here.

    Returns:
        DONE, FULL, HARD, or what makes all of it bad; and where.
    """
    state.wrong_node = -1
    depth = 0
    nulls = 0
    _open(state, 0, 0, 1, state.rows.row)
    begun = True
    while True:
        # Here an object or array has begun, or a value was read.
        if begun:
            at = skip_space(at + 1, end)
            reading = not (at < end and load_u8(at) == _closing(_level(state, depth)))
        else:
            at = skip_space(at, end)
            reading = at < end and load_u8(at) == 0x2C
            if reading:
                at = skip_space(at + 1, end)
        if reading:
            result, at, begun = _read_value(state, depth, at, end)
            if result != status.DONE:
                return result, at
            if begun:
                depth += 1
            continue
        if at >= end:
            return json_kind.CUT_SHORT, at
        level = _level(state, depth)
        if load_u8(at) != _closing(level):
            return json_kind.MALFORMED, at
        at += 1
        result, nulls = _close(state, level, at, nulls)
        if result != status.DONE or depth == 0:
            return result, at
        depth -= 1
        begun = False


@helper
def _put_nulls(state: Record) -> Int:
    """Append a row whose fields are all null, in place of what was read of it."""
    set_back(state.rows)
    number = 1
    behind = node_of(state.rows, 0).next
    while number < behind:
        if put_null(state.rows, number) != status.DONE:
            return status.FULL
        number = node_of(state.rows, number).next
    return put_struct(node_of(state.rows, 0))


@helper
def _put_fault(state: Record, begin: int, at: int, code: int, place: int) -> Int:
    """Append what a bad record becomes, and its fault."""
    rows = state.rows
    where = at - begin
    unlike = code in (json_kind.MALFORMED, json_kind.NO_OBJECT)
    if unlike and state.flags & json_kind.LENIENT != 0:
        code = json_kind.HARD
    partial = state.flags & json_kind.PARTIAL != 0 and code != json_kind.HARD
    if not partial:
        return put_bad_row(rows, place, code, where)
    if code != json_kind.TYPE and _put_nulls(state) != status.DONE:
        return status.FULL
    put_fault(rows, place, code, where)
    return status.DONE


@helper
def _read_record(state: Record, begin: int, end: int) -> Int:
    """Read a record, and append its row.

    Returns:
        DONE; FULL, and nothing is appended.
    """
    at = skip_space(begin, end)
    if at >= end:
        return put_null(state.rows, 0)
    code = json_kind.NO_OBJECT
    if load_u8(at) == 0x7B:
        code, at = _read_object(state, at, end)
    if code == status.FULL:
        return code
    if code == status.DONE:
        if state.wrong_node < 0:
            return status.DONE
        return _put_fault(state, begin, state.wrong_at, json_kind.TYPE, state.wrong_node)
    if code == HARD:
        code = json_kind.HARD
    return _put_fault(state, begin, at, code, -1)


def decode_json(state: Record) -> Int:
    """Go on through records of JSON; see :func:`kshare.read.decode.compiled.decode_json`.

    Args:
        state: JsonState.
    """
    rows = state.rows
    while rows.row < rows.rows:
        start = load_i64(rows.starts + 8 * rows.row)
        end = load_i64(rows.ends + 8 * rows.row)
        result = status.DONE
        if start < 0:
            result = put_null(rows, 0)
        elif start > end or end > rows.size:
            result = put_bad_row(rows, -1, json_kind.CUT_SHORT, 0)
        else:
            result = _read_record(state, rows.source + start, rows.source + end)
        if result != status.DONE:
            set_back(rows)
            return result
        rows.row += 1
    return status.DONE
