"""Records by name: a row has the column of its record, or is of another name, or bad."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.formats.avro.decoder import AvroDecoder
from kshare.formats.avro.fingerprint import canonical_form
from kshare.formats.avro.references import records_of
from kshare.formats.decoder import Fault
from kshare.formats.payloads import Payloads
from kshare.formats.records import OTHER, NamedDecoder, RecordsDecoder, names_of


def record(name: str, *fields: str) -> dict[str, Any]:
    """A record of integers."""
    listed = [{"name": each, "type": "int", "default": 0} for each in fields]
    return {"type": "record", "name": name, "fields": listed}


A, B, C = (json.dumps(record(f"n.{name}", name.lower())) for name in "ABC")
NEWER = json.dumps(record("n.A", "more", "a"))


def decoder(*, is_struct: bool = True, is_other_bad: bool = False) -> RecordsDecoder:
    texts = (A, B) if is_struct else (A,)
    named = [NamedDecoder(names_of("avro", text), AvroDecoder(text)) for text in texts]
    return RecordsDecoder("avro", named, is_struct=is_struct, is_other_bad=is_other_bad)


def payloads(rows: list[tuple[int, bytes | None]]) -> Payloads:
    starts, ends, data = [], [], b""
    for _, payload in rows:
        starts.append(-1 if payload is None else len(data))
        data += payload or b""
        ends.append(len(data))
    return Payloads(
        np.frombuffer(data, np.uint8),
        np.array(starts, np.int64),
        np.array(ends, np.int64),
        np.array([writer for writer, _ in rows], np.int32),
    )


ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([None, b"\x02", b"\x04\x06", b""])), max_size=40
)


@given(ROWS)
def test_a_row_has_one_column_by_its_writer_or_is_bad_or_was_null(
    rows: list[tuple[int, bytes | None]],
) -> None:
    made = decoder()
    assert made.add_writer(NEWER) == 2
    decoded = made.decode(payloads(rows))
    wanted: list[Any] = []
    faults = []
    for row, (writer, payload) in enumerate(rows):
        need = 2 if writer == 2 else 1
        if payload is None:
            wanted.append(None)
        elif len(payload) < need:
            wanted.append(None)
            faults.append((row, "B" if writer == 1 else "A"))
        elif writer == 1:
            wanted.append({"A": None, "B": {"b": payload[0] // 2}})
        else:
            wanted.append({"A": {"a": payload[need - 1] // 2}, "B": None})
    assert decoded.values.to_pylist() == wanted
    assert decoded.values.type == made.type
    assert [(fault.row, fault.field.partition(".")[0]) for fault in decoded.faults] == faults
    decoded.values.validate(full=True)


def test_writers_of_other_names() -> None:
    assert decoder().add_writer(C) == OTHER
    with pytest.raises(ValueError, match=r"^is of record n\.C, where these are read: n\.A, n\.B$"):
        decoder(is_other_bad=True).add_writer(C)
    with pytest.raises(
        ValueError, match=r"^is of type union, where a record with a name is wanted"
    ):
        decoder().add_writer("[]")
    with pytest.raises(ValueError, match=r"^cannot be used: the Avro schema is no JSON"):
        decoder().add_writer("{")
    assert decoder(is_struct=False).add_writer(B) == OTHER


def test_one_name_has_no_column_of_its_own() -> None:
    made = decoder(is_struct=False)
    number = made.add_writer(NEWER)
    decoded = made.decode(payloads([(number, b"\x02\x04"), (0, b"\x06"), (0, b"")]))
    assert decoded.values.to_pylist() == [{"a": 2}, {"a": 3}, None]
    assert decoded.faults == (Fault(2, "a", "is cut short"),)


def test_a_name_of_now_wins_over_one_of_before() -> None:
    renamed = json.dumps({**record("n.D", "a"), "aliases": ["A", "E"]})
    named = [NamedDecoder(names_of("avro", text), AvroDecoder(text)) for text in (renamed, A)]
    made = RecordsDecoder("avro", named, is_struct=True, is_other_bad=True)
    of_a, of_e = made.add_writer(NEWER), made.add_writer(json.dumps(record("n.E", "a")))
    decoded = made.decode(payloads([(of_a, b"\x02\x04"), (of_e, b"\x06")]))
    assert decoded.values.to_pylist() == [{"D": None, "A": {"a": 2}}, {"D": {"a": 3}, "A": None}]


# -- the records of a union -----------------------------------------------------------------------

ENUM = {"type": "enum", "name": "Kind", "symbols": ["X"]}


def test_records_of_a_union_are_whole() -> None:
    first = {**record("First"), "namespace": "n"}
    first["fields"] = [
        {"name": "kind", "type": ENUM},
        {"name": "next", "type": ["null", "First"]},
        {"name": "list", "type": {"type": "array", "items": "Kind"}},
    ]
    second = {**record("n.Second"), "fields": [{"name": "kind", "type": "Kind"}]}
    third = {
        **record("o.Third"),
        "fields": [{"name": "m", "type": {"type": "map", "values": "n.Second"}}],
    }
    found = records_of(json.dumps([first, second, third]))
    assert list(found) == ["n.First", "n.Second", "o.Third"]
    kind = {**ENUM, "namespace": "n"}
    alone = [
        first,
        {**second, "fields": [{"name": "kind", "type": kind}]},
        {
            **third,
            "fields": [
                {
                    "name": "m",
                    "type": {
                        "type": "map",
                        "values": {**second, "fields": [{"name": "kind", "type": kind}]},
                    },
                }
            ],
        },
    ]
    for text, wanted in zip(found.values(), alone, strict=True):
        assert canonical_form(text) == canonical_form(json.dumps(wanted))
    one = records_of(json.dumps(alone[1]))
    assert canonical_form(one["n.Second"]) == canonical_form(json.dumps(alone[1]))


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ('"int"', "has 'int' beside records, where several schemas are wanted"),
        ('[{"type": "record"}]', r"is no schema of Avro: KeyError\('name'\)"),
        ("[7]", "is no schema of Avro: TypeError"),
        (json.dumps([ENUM]), "has 'Kind' beside records"),
    ],
)
def test_what_is_no_union_of_records(schema: str, fault: str) -> None:
    with pytest.raises(ValueError, match=f"^{fault}"):
        records_of(schema)


@pytest.mark.parametrize("text", ["{}", '{"title": 1}', '{"title": ""}', "[]", "{"])
def test_json_without_a_title(text: str) -> None:
    with pytest.raises(ValueError, match=r"^has no title, which is a JSON Schema's name"):
        names_of("json", text)
