"""Fingerprints and canonical forms are those of fastavro."""

import json
from typing import Any

import fastavro.schema
import pytest

from kshare.formats.avro.fingerprint import canonical_form, fingerprint

FIXED = {"type": "fixed", "name": "F", "size": 4}
RECORD = {
    "type": "record",
    "namespace": "a.b",
    "name": "R",
    "doc": "d",
    "aliases": ["Q"],
    "fields": [
        {"name": "n", "type": {"type": "int", "logicalType": "date"}, "default": 0},
        {
            "name": "é",
            "type": ["null", {"type": "fixed", "name": "F", "size": 4}],
            "order": "ignore",
        },
        {"name": "m", "type": {"type": "map", "values": {"type": "array", "items": "F"}}},
        {"name": "e", "type": {"type": "enum", "name": "c.E", "symbols": ["X", "Y"]}},
        {"name": "r", "type": ["null", "a.b.R", "c.E"]},
        {"name": "i", "type": {"type": "record", "namespace": "", "name": "I", "fields": []}},
    ],
}
SCHEMAS: list[Any] = ["int", {"type": "string", "x": 1}, ["null", "long"], RECORD]


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_they_are_those_of_fastavro(schema: Any) -> None:
    text = json.dumps(schema)
    form = fastavro.schema.to_parsing_canonical_form(fastavro.schema.parse_schema(schema))
    assert canonical_form(text) == form
    digest = fastavro.schema.fingerprint(form, "CRC-64-AVRO")
    assert fingerprint(text).to_bytes(8, "little", signed=True).hex() == digest


@pytest.mark.parametrize(
    "text", ["", "7", "{}", '{"type": "record"}', '{"type": "fixed", "name": 1}']
)
def test_what_is_no_schema(text: str) -> None:
    with pytest.raises(ValueError, match=r"schema|Expecting"):
        fingerprint(text)
