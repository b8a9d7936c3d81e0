"""Rows that are appended value by value are those of a plain array, whatever room there is."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from kshare.read.decode import status
from kshare.read.decode.kernels import output as kernels
from kshare.read.decode.kernels import text
from kshare.read.decode.layout import RowDecoding
from kshare.read.decode.output import Output
from tests.support.guards import Fence, guarded_columns
from tests.support.plain_rows import found

STRUCT, LIST, NULL, BOOLEAN, FIXED, PAIR, BYTES, BAD, ROW = range(9)


@njit
def _run(rows: Any, steps: Any, begin: Any, source: Any, size: Any) -> Any:
    """Append rows by steps (operation, node, two values) from one on; the end of each row is one.

    Returns: the step after the last one; with -1, that where the row begins that has no room.
    """
    result = status.DONE
    at = begin
    while at < len(steps) and result == status.DONE:
        operation, number, one, two = steps[at]
        node = kernels.node_of(rows, number)
        if operation == STRUCT:
            result = kernels.put_struct(node)
        elif operation == LIST:
            result = kernels.put_list(rows, number)
        elif operation == NULL:
            result = kernels.put_null(rows, number)
        elif operation == BOOLEAN:
            result = kernels.put_boolean(node, one)
        elif operation == FIXED:
            result = kernels.put_fixed(node, one)
        elif operation == PAIR:
            result = kernels.put_pair(node, one, two)
        elif operation == BYTES:
            result = kernels.put_bytes(node, source + one, two, source + size)
        elif operation == BAD:
            result = kernels.put_bad_row(rows, number, one, two)
        at += 1
        if operation in (ROW, BAD) and result == status.DONE:
            rows.row += 1
            begin = at
    if result != status.DONE:
        kernels.set_back(rows)
    return result, begin


def leaves() -> st.SearchStrategy[pa.DataType]:
    return st.sampled_from(
        [
            *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.bool_(), pa.string(), pa.binary()),
            *(pa.decimal128(38, 3), pa.date32(), pa.timestamp("us", "UTC"), pa.null()),
        ]
    )


def structs(fields: list[pa.DataType]) -> pa.DataType:
    return pa.struct([(f"f{number}", kind) for number, kind in enumerate(fields)])


TYPES = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(structs),
        inner.map(lambda kind: pa.list_(pa.field("element", kind))),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
    ),
    max_leaves=8,
)


def plain_values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a leaf, as the numbers or bytes that a kernel has in hand."""
    if pa.types.is_null(kind):
        return st.none()
    if pa.types.is_boolean(kind):
        return st.integers(0, 1)
    if kind == pa.string():
        return st.text(max_size=9).map(str.encode) | st.just(b"long" * 80)
    if kind == pa.binary():
        return st.binary(max_size=40)
    bits = min(int(kind.bit_width), 120)
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def values(kind: pa.DataType, *, needed: bool = False) -> st.SearchStrategy[Any]:
    """Values of a type: lists of fields, items, or pairs of key and value, and null."""
    if pa.types.is_struct(kind):
        made: st.SearchStrategy[Any] = st.tuples(*(values(field.type) for field in kind))
    elif pa.types.is_map(kind):
        keys = values(kind.key_type, needed=True)
        made = st.lists(st.tuples(keys, values(kind.item_type)), max_size=3)
    elif pa.types.is_list(kind):
        made = st.lists(values(kind.value_type), max_size=4)
    else:
        made = plain_values(kind)
    return made if needed else st.none() | made


class Writer:
    """Writes the steps that append values."""

    def __init__(self, nodes: Any) -> None:
        self._next = nodes["next"].tolist()
        self.steps: list[tuple[int, int, int, int]] = []
        self.data = bytearray()

    def add(self, operation: int, number: int, one: int = 0, two: int = 0) -> None:
        self.steps.append((operation, number, one, two))

    def put(self, number: int, kind: pa.DataType, value: Any) -> None:
        if value is None:
            self.add(NULL, number)
        elif pa.types.is_struct(kind):
            child = number + 1
            for field, one in zip(kind, value, strict=True):
                self.put(child, field.type, one)
                child = self._next[child]
            self.add(STRUCT, number)
        elif pa.types.is_map(kind):
            entries = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
            self._put_items(number, entries, value)
        elif pa.types.is_list(kind):
            self._put_items(number, kind.value_type, value)
        else:
            self._put_leaf(number, kind, value)

    def _put_items(self, number: int, kind: pa.DataType, items: Any) -> None:
        for item in items:
            self.put(number + 1, kind, item)
        self.add(LIST, number)

    def _put_leaf(self, number: int, kind: pa.DataType, value: Any) -> None:
        if isinstance(value, bytes):
            self.add(BYTES, number, len(self.data), len(value))
            self.data += value
        elif pa.types.is_boolean(kind):
            self.add(BOOLEAN, number, value)
        elif kind.bit_width == 128:
            low, high = np.frombuffer(value.to_bytes(16, "little", signed=True), np.int64)
            self.add(PAIR, number, int(low), int(high))
        else:
            self.add(FIXED, number, value)


def expected(kind: pa.DataType, value: Any) -> Any:
    """A value as pyarrow takes and gives it; numbers of any width as integers of that width."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {
            field.name: expected(field.type, one) for field, one in zip(kind, value, strict=True)
        }
    if pa.types.is_map(kind):
        return [(expected(kind.key_type, k), expected(kind.item_type, v)) for k, v in value]
    if pa.types.is_list(kind):
        return [expected(kind.value_type, one) for one in value]
    if kind == pa.string():
        return value.decode()
    return bool(value) if pa.types.is_boolean(kind) else value


@pytest.fixture(scope="module", autouse=True)
def _guards() -> Iterator[None]:
    with guarded_columns():
        yield


@given(st.data())
def test_rows_are_those_of_a_plain_array(data: st.DataObject) -> None:
    """With so little room that rows are taken back and written again; bad rows leave nothing."""
    kind = data.draw(TYPES)
    rows = data.draw(st.lists(st.tuples(values(kind), st.booleans()), max_size=12))
    output = Output(kind, len(rows), 0)
    writer = Writer(output.nodes)
    for number, (value, is_bad) in enumerate(rows):
        writer.put(0, kind, value)
        writer.add(BAD if is_bad else ROW, number, 7, -number)
    state = RowDecoding(rows=len(rows))
    faults = output.begin(state)
    source = Fence(len(writer.data)).put(bytes(writer.data))
    view = np.frombuffer(memoryview(state), np.dtype(RowDecoding))[0]
    steps = np.array(writer.steps, np.int64).reshape(-1, 4)
    result, begin = status.FULL, 0
    while result == status.FULL:
        result, begin = _run(view, steps, begin, source.ctypes.data, len(source))
        assert int(state.row) <= len(rows)
        if result == status.FULL:
            output.grow()
    assert begin == len(steps)
    array = output.finish()
    assert array.type == kind
    array.validate(full=True)
    wanted = [None if is_bad else expected(kind, value) for value, is_bad in rows]
    assert found(kind, array) == wanted
    bad = [(number, number, 7, -number) for number, (_, is_bad) in enumerate(rows) if is_bad]
    assert faults[: state.fault_count].tolist() == bad


def test_all_fields_of_a_lists_items_get_the_room_that_one_has_not_found() -> None:
    """Else a row with a list of wide structs would be decoded again for each field."""
    item = structs([pa.int64(), pa.string(), structs([pa.bool_()]), pa.list_(pa.int32())])
    kind = structs([pa.int64(), pa.list_(item), pa.map_(pa.string(), pa.int32())])
    output = Output(kind, 8, 0)
    nodes, before = output.nodes, output.nodes["capacity"].copy()
    nodes["needed"][4] = 1000  # a field of the items
    output.grow()
    grown = [number for number, room in enumerate(before) if nodes["capacity"][number] != room]
    assert grown == [3, 4, 5, 6, 7, 8]  # the item and its fields; not the list's own list
    assert set(nodes["capacity"][grown].tolist()) == {1000}


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dense_union([])])
def test_a_type_that_no_kernel_makes_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(TypeError, match="no array of"):
        Output(kind, 1, 0)


def test_offsets_that_would_overflow_are_an_error() -> None:
    output = Output(pa.string(), 1, 0)
    output.nodes["bytes_needed"] = 2**31
    with pytest.raises(OverflowError, match="more than 2147483647 bytes"):
        output.grow()


@njit
def _is_utf8(at: Any, end: Any) -> Any:
    return text.is_utf8(at, end)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


NEAR_TEXT = st.one_of(
    st.binary(max_size=24),
    st.text(max_size=24).map(str.encode),
    st.tuples(st.text(max_size=9), st.binary(max_size=4), st.text(max_size=9)).map(
        lambda parts: parts[0].encode() + parts[1] + parts[2].encode()
    ),
    st.integers(0xD780, 0xE000).map(lambda code: chr(code).encode(errors="surrogatepass")),
    st.binary(min_size=1, max_size=3).map(lambda tail: b"\xf4" + tail),
)


@given(NEAR_TEXT)
def test_text_is_what_python_decodes(data: bytes) -> None:
    source = Fence(len(data)).put(data)
    begin = source.ctypes.data
    assert _is_utf8(begin, begin + len(data)) == _is_text(data)
