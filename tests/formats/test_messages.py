"""Several messages of Protobuf in a column: a row's indexes say which one it is."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.formats.decoder import Fault
from kshare.formats.messages import MessagesDecoder
from kshare.formats.payloads import Payloads
from kshare.formats.protobuf.decoder import ProtobufDecoder
from kshare.formats.protobuf.files import inline_set, registry_set
from kshare.formats.protobuf.indexes import index_bytes, read_indexes, rows_by_message
from kshare.formats.protobuf.schema import read_schema
from kshare.formats.records import OTHER, NamedDecoder, names_of
from tests.support.protobuf_messages import Schema, message, payloads

# -- indexes --------------------------------------------------------------------------------------

PATHS = st.lists(
    st.one_of(st.integers(0, 2), st.integers(0, 300), st.integers(0, 1 << 62)), max_size=12
).filter(lambda path: path != [])
INDEXES = st.one_of(
    PATHS.map(lambda path: index_bytes(tuple(path))),
    st.binary(max_size=12),
    st.sampled_from([b"\0", b"\2\0", b"\2\2", b"\4\2\0", b"\1", b"\2\1", b"\x80\0", b""]),
)


@given(st.lists(st.tuples(st.sampled_from([0, 1, 1 << 15]), INDEXES, st.binary(max_size=3))))
def test_rows_by_message_are_what_each_row_says(rows: list[tuple[int, bytes, bytes]]) -> None:
    made = payloads([head + tail for _, head, tail in rows])
    writers = np.array([writer for writer, _, _ in rows], np.int32)
    asked = np.arange(len(rows))[::-1].copy()
    found: dict[int, tuple[int, Any, int]] = {}
    for each in rows_by_message(Payloads(made.data, made.starts, made.ends, writers), asked):
        for row in each.rows.tolist():
            assert row not in found
            found[row] = each.writer, each.path, each.size
    assert sorted(found) == list(range(len(rows)))
    for row, (writer, head, tail) in enumerate(rows):
        wanted: tuple[int, Any, int]
        try:
            wanted = (writer, *read_indexes(head + tail))
        except ValueError as error:
            wanted = (writer, f"begins with no message indexes: {error}", 0)
        assert found[row] == wanted


def test_many_messages_are_grouped_by_a_sort() -> None:
    made = payloads([index_bytes((number % 40,)) for number in range(400)])
    found = list(rows_by_message(made, np.arange(400)))
    assert sorted((each.path, len(each.rows)) for each in found) == [
        ((number,), 10) for number in range(40)
    ]


# -- columns --------------------------------------------------------------------------------------

LINE = message("Line", "string sku = 1")
SHOP = Schema(
    message("Placed", "int32 qty = 1", nested=[LINE]),
    message("Paid", "int64 cents = 1"),
    message("Cancelled", "string why = 1"),
)
FILE = inline_set(SHOP.text)
NEWER = """syntax = "proto3"; package shop;
    message Paid { int64 cents = 1; string note = 2; } message Placed { int32 qty = 1; }"""
ALIEN = 'syntax = "proto3"; package shop; message Placed { string qty = 1; }'
PLACED, LINES, PAID, CANCELLED = (0,), (0, 0), (1,), (2,)


def decoder(
    *names: str, is_struct: bool = True, is_other_bad: bool = False, text: str = FILE
) -> MessagesDecoder:
    named = []
    for name in names or ("shop.Placed", "shop.Paid"):
        schema = f"{name} {FILE}"
        decodes = ProtobufDecoder(read_schema(schema), framed=True)
        named.append(NamedDecoder(names_of("protobuf", schema), decodes))
    return MessagesDecoder(named, is_struct=is_struct, is_other_bad=is_other_bad, text=text)


def of(made: Payloads, writers: list[int]) -> Payloads:
    return Payloads(made.data, made.starts, made.ends, np.array(writers, np.int32))


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["file", "newer", "header"]),
        st.sampled_from([PLACED, PAID, CANCELLED, LINES, (9,), None]),
        st.sampled_from([b"\x08\x05", b"", b"\x08", None]),
    ),
    max_size=40,
)
NAMES = {PLACED: "Placed", PAID: "Paid", CANCELLED: "Cancelled", LINES: "Line"}
NEWER_NAMES = {PLACED: "Paid", PAID: "Placed"}


@given(ROWS)
def test_a_row_has_the_column_of_its_message_or_is_of_another_or_bad_or_was_null(
    rows: list[tuple[str, Any, bytes | None]],
) -> None:
    made = decoder()
    newer = made.add_writer(registry_set(NEWER, {}))
    headed = {path: made.add_writer(FILE, path) for path in (PLACED, PAID)}
    data, writers, wanted, bad, others = [], [], [], [], []
    for row, (how, path, payload) in enumerate(rows):
        in_header = how == "header" and path in headed
        head = b"" if in_header else b"\xff" if path is None else index_bytes(path)
        data.append(None if payload is None else head + payload)
        writers.append(headed[path] if in_header else newer if how == "newer" else 0)
        name = (NEWER_NAMES if how == "newer" else NAMES).get(path)
        value = None
        if payload is None:
            pass
        elif name is None or (payload == b"\x08" and name in {"Placed", "Paid"}):
            bad.append(row)
        elif name in {"Cancelled", "Line"}:
            others.append(row)
        else:
            five = 5 if payload else None
            value = {"Placed": None, "Paid": None}
            value[name] = {"qty": five} if name == "Placed" else {"cents": five}  # type: ignore[assignment]
        wanted.append(value)
    decoded = made.decode(of(payloads(data), writers))
    assert decoded.values.to_pylist() == wanted
    assert decoded.values.type == made.type
    assert [fault.row for fault in decoded.faults] == bad
    assert sorted(decoded.others.tolist()) == others
    decoded.values.validate(full=True)


def test_why_rows_are_bad() -> None:
    made = decoder(is_other_bad=True)
    alien = made.add_writer(registry_set(ALIEN, {}))
    assert alien == made.add_writer(registry_set(ALIEN, {}))
    rows = [b"\2\4\x0a\1x", b"\4\0\2", b"\1", b"\0\x08", b"\0\x0a\1x"]
    decoded = made.decode(of(payloads(rows), [0, 0, 0, 0, alien]))
    assert decoded.faults == (
        Fault(0, "", "has message shop.Cancelled, where these are read: shop.Placed, shop.Paid"),
        Fault(1, "", "has no message 0.1 in its file"),
        Fault(2, "", "begins with no message indexes: their number is -1"),
        Fault(3, "Placed.qty", "is cut short, or longer than the value"),
        Fault(4, "Placed.qty", "is string where int32 is wanted"),
    )
    assert decoded.values.to_pylist() == [None] * 5
    assert decoded.others.tolist() == []


def test_writers_that_a_header_names() -> None:
    assert decoder().add_writer(FILE, CANCELLED) == OTHER
    with pytest.raises(ValueError, match=r"^has message shop\.Cancelled, where these are read: "):
        decoder(is_other_bad=True).add_writer(FILE, CANCELLED)
    with pytest.raises(ValueError, match=r"^has no message 7\.1 in its file$"):
        decoder().add_writer(FILE, (7, 1))
    with pytest.raises(ValueError, match=r"^has a schema that is no descriptor set"):
        decoder().add_writer("aGVsbG8=", PLACED)
    with pytest.raises(ValueError, match=r"^has a schema that is no descriptor set"):
        decoder().add_writer("aGVsbG8=")


def test_one_name_has_no_column_of_its_own() -> None:
    made = decoder("shop.Paid", is_struct=False)
    decoded = made.decode(of(payloads([b"\2\2\x08\x05", b"\0\x08\5", b"\2\2\x08"]), [0, 0, 0]))
    assert decoded.values.to_pylist() == [{"cents": 5}, None, None]
    assert decoded.others.tolist() == [1]
    assert decoded.faults == (Fault(2, "cents", "is cut short, or longer than the value"),)
