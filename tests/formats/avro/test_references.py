"""Schemas with references are what fastavro reads when it knows the others."""

import json
from typing import Any

import fastavro.schema
import pytest

from kshare.formats.avro.fingerprint import canonical_form
from kshare.formats.avro.references import with_references


def record(name: str, *types: Any, **more: Any) -> dict[str, Any]:
    fields = [{"name": f"f{k}", "type": kind} for k, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields, **more}


PLAIN = record("User", "long")
SPACED = record("Item", "string", namespace="a")
MID = record("b.Mid", "a.Item", ["null", "b.Mid"])
ADDRESS = record("c.Address", "int")
COMMON = record("Common", record("Address", "int"), "long", namespace="c")
ENUM = {"type": "enum", "name": "E", "symbols": ["X"]}
CASES: list[tuple[Any, dict[str, Any], Any]] = [
    (
        record("O", "User", {"type": "array", "items": ["null", "User"]}),
        {"User": PLAIN},
        record("O", PLAIN, {"type": "array", "items": ["null", "User"]}),
    ),
    (
        record("O", {"type": "map", "values": "Item"}, "a.Item", namespace="a"),
        {"a.Item": SPACED},
        record("O", {"type": "map", "values": SPACED}, "a.Item", namespace="a"),
    ),
    (
        ["null", record("b.O", "Mid", "a.Item")],
        {"a.Item": SPACED, "b.Mid": MID},
        ["null", record("b.O", record("b.Mid", SPACED, ["null", "b.Mid"]), "a.Item")],
    ),
    (record("O", ENUM, "E"), {"E": PLAIN}, record("O", ENUM, "E")),
    ("User", {"User": PLAIN}, PLAIN),
    (record("O", "c.Address"), {"c.Common": COMMON}, record("O", ADDRESS)),
    (
        record("O", "c.Address", "c.Common"),
        {"c.Common": COMMON},
        record("O", ADDRESS, record("c.Common", "c.Address", "long")),
    ),
    (
        record("O", "c.Common", {"type": "array", "items": "c.Address"}),
        {"c.Common": COMMON},
        record("O", COMMON, {"type": "array", "items": "c.Address"}),
    ),
    (
        record("O", "c.Common", "Plain"),
        {"c.Common": record("c.Common", record("Plain", "int", namespace=""))},
        record("O", record("c.Common", record("Plain", "int", namespace="")), "Plain"),
    ),
    (
        record("O", "c.Both", "c.Address"),
        {"c.Common": COMMON, "c.Both": record("c.Both", "Common", "Address")},
        record("O", record("c.Both", COMMON, "Address"), "c.Address"),
    ),
    (record("O", "string"), {"User": PLAIN}, record("O", "string")),
]


@pytest.mark.parametrize(("schema", "others", "whole"), CASES, ids=range(len(CASES)))
def test_types_are_defined_where_they_are_named_first(
    schema: Any, others: dict[str, Any], whole: Any
) -> None:
    found = with_references(
        json.dumps(schema), {name: json.dumps(other) for name, other in others.items()}
    )
    parsed = fastavro.schema.parse_schema(json.loads(found))
    assert canonical_form(found) == canonical_form(json.dumps(whole))
    assert canonical_form(found) == fastavro.schema.to_parsing_canonical_form(parsed)


def test_a_type_without_a_namespace_stays_so_within_one() -> None:
    schema = record("O", {"type": "array", "items": "a.O"}, namespace="a")
    schema["fields"].append({"name": "u", "type": "User"})
    same = json.dumps(schema)
    assert json.loads(with_references(same, {"User": json.dumps(PLAIN)})) == schema
    text = json.dumps(record("O", "User"))
    found = json.loads(with_references(text, {"User": json.dumps(PLAIN)}))
    assert found["fields"][0]["type"] == {"namespace": "", **PLAIN}


def test_without_references_the_text_is_as_it_was() -> None:
    assert with_references('{"type": "int"} ', {}) == '{"type": "int"} '


@pytest.mark.parametrize("text", ["", "{}", "7"])
def test_what_is_no_schema(text: str) -> None:
    with pytest.raises(ValueError, match=r"schema|Expecting"):
        with_references(text, {"A": '"int"'})
