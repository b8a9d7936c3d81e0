"""Decoded records are those that fastavro reads; the kernel takes the steps that a twin takes."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kshare.formats.avro import decoder as module
from kshare.formats.avro import schema as parsed
from kshare.formats.avro.decoder import AvroDecoder
from kshare.formats.decoder import Decoded
from kshare.formats.payloads import Payloads
from tests.formats.avro.schemas import (
    evolved,
    read,
    records,
    schemas,
    shaped,
    text,
    values,
    written,
)
from tests.formats.avro.twin import Twin
from tests.support.guards import Fence, guarded_columns
from tests.support.plain_rows import found

LEAST_OUTPUT = module._LEAST_OUTPUT


@pytest.fixture(scope="module", autouse=True)
def _guards() -> Iterator[None]:
    with guarded_columns(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LEAST_OUTPUT", 1 << 16)  # damage makes items without bytes
        yield


def payloads(rows: Sequence[bytes | None], writers: Sequence[int]) -> tuple[bytes, Payloads]:
    """Rows that lie one after the other, right before a guard."""
    data, starts, ends = b"".join(one or b"" for one in rows), [], []
    at = 0
    for one in rows:
        starts.append(-1 if one is None else at)
        at += len(one or b"")
        ends.append(at)
    source = Fence(len(data)).put(data)
    numbers = np.array(writers, np.int32)
    return data, Payloads(source, np.array(starts, np.int64), np.array(ends, np.int64), numbers)


def decoded(
    decoder: AvroDecoder, rows: Sequence[bytes | None], writers: Sequence[int] | None = None
) -> Decoded:
    """Rows by the kernel; they are those of the twin."""
    writers = [0] * len(rows) if writers is None else writers
    data, source = payloads(rows, writers)
    made = decoder.decode(source)
    twin = Twin(decoder.program, decoder.type, module._LEAST_OUTPUT)
    twin.decode(data, source.starts.tolist(), source.ends.tolist(), list(writers))
    made.values.validate(full=True)
    assert made.values.type == decoder.type
    assert repr(found(decoder.type, made.values)) == repr(twin.nodes.rows())
    assert [one.row for one in made.faults] == [row for row, *_ in twin.faults]
    said = [decoder._fault(*one) for one in twin.faults]
    assert list(made.faults) == said
    return made


@given(st.data())
def test_records_are_those_of_fastavro(data: st.DataObject) -> None:
    """By their own schema, and by a later one."""
    writer = data.draw(schemas() | records())
    reader = data.draw(st.composite(lambda draw: evolved(draw, writer))())
    decoder = AvroDecoder(text(reader))
    number = decoder.add_writer(text(writer))
    plain = data.draw(st.lists(values(writer), max_size=4))
    rows = [written(writer, value) for value in plain]
    made = decoded(decoder, rows, [number] * len(rows))
    assert not made.faults
    schema = parsed.parse(text(reader))
    wanted = [shaped(read(one, writer, reader), schema, decoder.type) for one in rows]
    assert repr(found(decoder.type, made.values)) == repr(wanted)


def test_a_member_of_a_union_is_read_as_the_same_type_before_one_that_it_can_become() -> None:
    """As Avro's Java does, wherever the types stand."""
    writer, reader = ["string", "bytes", "long", "double"], ["double", "bytes", "long", "string"]
    decoder = AvroDecoder(text(_one_field(reader)))
    number = decoder.add_writer(text(_one_field(writer)))
    given_: list[Any] = ["a", b"b", 1, 2.5]
    rows = [written(_one_field(writer), {"f": one}) for one in given_]
    made = decoded(decoder, rows, [number] * len(rows)).values.to_pylist()
    assert [[(name, one) for name, one in row["f"].items() if one is not None] for row in made] == [
        [("member3", "a")],
        [("member1", b"b")],
        [("member2", 1)],
        [("member0", 2.5)],
    ]


def _one_field(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}


def paths(kind: pa.DataType, begin: str = "") -> list[str]:
    """All dotted paths of a type."""
    if pa.types.is_list(kind):
        return paths(kind.value_type, begin)
    if pa.types.is_map(kind):
        return paths(kind.item_type, begin)
    if not pa.types.is_struct(kind):
        return []
    return [
        path
        for field in kind
        for path in (begin + field.name, *paths(field.type, f"{begin}{field.name}."))
    ]


def kept(row: Any, kind: pa.DataType) -> Any:
    """What a selection leaves of a row."""
    if row is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: kept(row[field.name], field.type) for field in kind}
    if pa.types.is_list(kind):
        return [kept(one, kind.value_type) for one in row]
    if pa.types.is_map(kind):
        return [(key, kept(one, kind.item_type)) for key, one in row]
    return row


@given(st.data())
def test_selected_fields_are_those_of_the_whole_record(data: st.DataObject) -> None:
    writer = data.draw(records())
    whole = AvroDecoder(text(writer))
    assume(paths(whole.type))
    fields = data.draw(st.lists(st.sampled_from(paths(whole.type)), min_size=1, max_size=3))
    some = AvroDecoder(text(writer), fields)
    rows = [written(writer, one) for one in data.draw(st.lists(values(writer), max_size=3))]
    all_rows = found(whole.type, decoded(whole, rows).values)
    assert repr(found(some.type, decoded(some, rows).values)) == repr(
        [kept(row, some.type) for row in all_rows]
    )


@st.composite
def damaged(draw: st.DrawFn, record: bytes) -> bytes:
    """A record cut short, with other bytes in it, or none of it."""
    at = draw(st.integers(0, len(record)))
    noise = draw(st.binary(max_size=12) | st.sampled_from([b"\xff" * 11, b"\x80" * 9 + b"\x01"]))
    behind = draw(st.integers(at, len(record)))
    return record[:at] + noise + record[behind:]


@given(st.data())
def test_damaged_records_are_bad_rows_or_other_values(data: st.DataObject) -> None:
    """They harm no other row, and nothing is read or written behind the buffers."""
    writer = data.draw(schemas() | records())
    reader = data.draw(st.composite(lambda draw: evolved(draw, writer))())
    decoder = AvroDecoder(text(reader))
    number = decoder.add_writer(text(writer))
    good = written(writer, data.draw(values(writer)))
    bad = data.draw(st.lists(damaged(good) | st.none(), max_size=4))
    rows = [good, *bad, good]
    made = decoded(decoder, rows, [number] * len(rows))
    (alone,) = found(decoder.type, decoded(decoder, [good], [number]).values)
    first, *_, last = found(decoder.type, made.values)
    assert repr(first) == repr(last) == repr(alone)
    assert not {0, len(rows) - 1} & {one.row for one in made.faults}


def test_items_may_take_64_mib_or_32_times_their_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAST_OUTPUT", LEAST_OUTPUT)
    empty = [{"name": f"f{n}", "type": ["null", "string"]} for n in range(60)]
    wide = {"type": "record", "name": "W", "fields": empty}
    item = [{"name": "a", "type": ["null", wide]}, {"name": "b", "type": ["null", "W"]}]
    decoder = AvroDecoder(text(_items_of(item)))
    rows = [b"\x80\x01" + b"\0\0" * 64 + b"\0", b"\x80\x80\x08" + b"\0\0" * 65536 + b"\0"]
    made = decoder.decode(payloads(rows, [0, 0])[1])
    assert not made.faults
    assert [len(one["f"]) for one in made.values.to_pylist()] == [64, 65536]


def test_items_without_bytes_are_not_made_without_end() -> None:
    """As many as fit are, so that a row ends; it is bad."""
    late = {"name": "q", "type": "long", "default": 0}
    decoder = AvroDecoder(text(_items_of([late])))
    number = decoder.add_writer(text(_items_of([])))
    rows = [b"\x06\0", b"\x80\x80\x80\x80\x80\x20\0", b"\x02\0"]
    made = decoded(decoder, rows, [number] * 3)
    assert [(one.row, one.reason) for one in made.faults] == [
        (1, "has more items than a record of this size may have")
    ]
    assert made.values.to_pylist()[::2] == [{"f": [{"q": 0}] * n} for n in (3, 1)]


def _items_of(fields: list[Any]) -> dict[str, Any]:
    item = {"type": "record", "name": "I", "fields": fields}
    return _one_field({"type": "array", "items": item})
