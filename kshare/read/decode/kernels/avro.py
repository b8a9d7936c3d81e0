"""Avro records to rows, by a table of steps.

A record is read once, from front to back, whatever the order of the reader's fields: each value
goes to its own node. There is no recursion: what lies in each other (lists, defaults, types that a
writer has in themselves, which are passed over) is kept on a stack of bounded depth. What is wrong
with a record is a fault of its row, and the next one is read.

Cost: some 10 ns a value; nothing for a field that is not there; a varint for one not wanted.
"""

from kshare.read.decode import avro_step, status
from kshare.read.decode.kernels.avro_values import bytes_step, length, number_step, skip_step
from kshare.read.decode.kernels.native import (
    Int,
    Record,
    helper,
    load_i32,
    load_i64,
    node_at,
    step_at,
    store_i64,
    varint,
)
from kshare.read.decode.kernels.output import (
    put_bad_row,
    put_list,
    put_null,
    put_struct,
    set_back,
)
from kshare.read.decode.layout import NODE, STEP

__all__ = ["decode_avro"]

_STEP_SIZE = STEP.itemsize
_NODE_SIZE = NODE.itemsize
_FRAME_SIZE = 32
_INT64_MIN = -(2**63)

# What the items of a large record may take, in bytes of output, for each of its own bytes. A small
# one may have wide items of nulls, of a byte each.
_OUTPUT_TIMES = 32


@helper
def _block(at: int, end: int, node: int) -> tuple[int, int, int]:
    """The begin of a block of items.

    Returns:
        DONE or a fault; the address behind it, or behind the block if it is passed over whole; the
        number of items, -1: passed over; with a fault, what is wrong.
    """
    count, behind = varint(at, end)
    if behind == 0 or count == _INT64_MIN:
        return avro_step.NUMBER if end - at >= 10 else avro_step.CUT_SHORT, at, 0
    if count >= 0:
        return status.DONE, behind, count
    fault, behind, size = length(behind, end)
    if fault != status.DONE:
        return fault, at, size
    if node < 0:
        return status.DONE, behind + size, -1
    return status.DONE, behind, -count


@helper
def _item(
    at: int, end: int, frame: int, budget: int, step: Record, rows: Record
) -> tuple[int, int, int, int]:
    """One more item of a list, if there is one; if not, the list is whole.

    Args:
        at: Where the record stands.
        end: Where it ends.
        frame: The address of the list's frame, which holds how many items are left of the block.
        budget: The bytes of output that the items may still take.
        step: The step.
        rows: RowDecoding.

    Returns:
        DONE, FULL or a fault; the address behind, what is left of the budget, and -1: the list is
        whole; with a fault, what is wrong.
    """
    left = load_i64(frame)
    while left <= 0:
        fault, at, left = _block(at, end, step.node)
        if fault != status.DONE:
            return fault, at, budget, left
        if left == 0:
            result = put_list(rows, step.node) if step.node >= 0 else status.DONE
            return result, at, budget, -1
    store_i64(frame, left - 1)
    budget -= step.two
    return avro_step.TOO_MANY if budget < 0 else status.DONE, at, budget, 0


@helper
def _union(at: int, end: int, step: Record, jumps: int) -> tuple[int, int, int]:
    """The branch of a union.

    Returns:
        DONE or a fault; the address behind; the step that follows, or what is wrong.
    """
    branch, behind = varint(at, end)
    if behind == 0:
        return avro_step.NUMBER if end - at >= 10 else avro_step.CUT_SHORT, at, 0
    if branch < 0 or branch >= step.two:
        return avro_step.NO_BRANCH, at, branch
    return status.DONE, behind, load_i64(jumps + 8 * (step.one + branch))


@helper
def _row(start: int, end: int, first: int, state: Record) -> tuple[int, int, int]:
    """One record.

    Args:
        start: Its address.
        end: Where it ends.
        first: Its first step.
        state: AvroState.

    Returns:
        DONE, FULL or a fault; the last step; the number that is wrong, where a fault has one.
    """
    rows = state.rows
    steps = state.steps
    nodes = rows.nodes
    constants = state.constants
    constants_end = constants + state.constants_size
    room = rows.source + rows.size
    budget = max(state.least_output, _OUTPUT_TIMES * (end - start))
    frame = state.stack - _FRAME_SIZE
    last_frame = frame + _FRAME_SIZE * avro_step.STACK
    number = first
    at = start
    value = 0
    result = status.DONE
    while result == status.DONE:
        step = step_at(steps + _STEP_SIZE * number)
        operation = step.operation
        follows = step.next
        node = node_at(nodes + _NODE_SIZE * max(step.node, 0))
        if operation <= avro_step.LAST_NUMBER:
            if operation == avro_step.END:
                return status.DONE, number, 0
            result, at, value = number_step(at, end, step, node)
        elif operation <= avro_step.LAST_BYTES:
            result, at, value = bytes_step(at, end, room, step, node, constants, constants_end)
        elif operation == avro_step.STRUCT:
            result = put_struct(node)
        elif operation == avro_step.NULL:
            result = put_null(rows, step.node)
        elif operation <= avro_step.LAST_SKIP:
            result, at, value = skip_step(at, end, step)
        elif operation == avro_step.UNION:
            result, at, follows = _union(at, end, step, state.jumps)
            value = follows
        elif operation == avro_step.ITEM:
            result, at, budget, value = _item(at, end, frame, budget, step, rows)
            if value < 0 and result == status.DONE:
                follows = step.one
                frame -= _FRAME_SIZE
        else:
            value = 0
            result, follows, at, end, room, frame = _nested(
                operation, at, end, room, frame, last_frame, step, constants, constants_end
            )
        if result != status.DONE:
            return result, number, value
        number = follows
    return result, number, value


@helper
def _nested(
    operation: int,
    at: int,
    end: int,
    room: int,
    frame: int,
    last_frame: int,
    step: Record,
    constants: int,
    constants_end: int,
) -> tuple[int, int, int, int, int, int]:
    """LIST, CALL, DEFAULT, which begin something that lies in the record; RETURN, RESUME; REFUSE.

    Returns:
        DONE or a fault; the step that follows; the address where the record stands, or the
        default; where that ends; where its buffer ends; the frame on top.
    """
    if operation == avro_step.REFUSE:
        return avro_step.REFUSED, 0, at, end, room, frame
    if operation == avro_step.RETURN:
        return status.DONE, load_i64(frame), at, end, room, frame - _FRAME_SIZE
    if operation == avro_step.RESUME:
        at = load_i64(frame)
        end = load_i64(frame + 8)
        room = load_i64(frame + 16)
        return status.DONE, step.next, at, end, room, frame - _FRAME_SIZE
    if frame >= last_frame:
        return avro_step.TOO_DEEP, 0, at, end, room, frame
    frame += _FRAME_SIZE
    follows = step.next
    if operation == avro_step.LIST:
        store_i64(frame, 0)
    elif operation == avro_step.CALL:
        store_i64(frame, follows)
        follows = step.one
    else:
        store_i64(frame, at)
        store_i64(frame + 8, end)
        store_i64(frame + 16, room)
        at = constants + step.one
        end = at + step.two
        room = constants_end
    return status.DONE, follows, at, end, room, frame


def decode_avro(state: Record) -> Int:
    """Go on decoding; see :func:`kshare.read.decode.compiled.decode_avro`.

    Args:
        state: AvroState.
    """
    rows = state.rows
    while rows.row < rows.rows:
        row = rows.row
        start = load_i64(rows.starts + 8 * row)
        end = load_i64(rows.ends + 8 * row)
        writer = load_i32(state.writers + 4 * row)
        step = 0
        value = 0
        if start < 0:
            result = put_null(rows, 0)
        elif end < start or end > rows.size or writer < 0 or writer >= state.writer_count:
            result = avro_step.OUTSIDE
        else:
            first = load_i64(state.entries + 8 * writer)
            result, step, value = _row(rows.source + start, rows.source + end, first, state)
        if result > status.DONE:
            result = put_bad_row(rows, step, result, value)
        if result == status.FULL:
            set_back(rows)
            return status.FULL
        rows.row = row + 1
    return status.DONE
