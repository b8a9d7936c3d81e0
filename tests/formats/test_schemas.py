"""Reader schemas: how they are named, and what a restart says of those that have changed."""

import hashlib

import pyarrow as pa
import pytest

from kshare.formats.schema_changes import told_changes, type_changes
from kshare.formats.schema_files import RegisteredSchema
from kshare.formats.schemas import (
    ReaderSchema,
    ReaderSchemas,
    found_schemas,
)
from kshare.options import KafkaConfig
from kshare.options.frozen import Properties
from kshare.options.typed_rows import (
    InlineSchema,
    RegistryConfig,
    RowFormat,
    SchemaVersion,
    TypedRows,
)
from kshare.testing import FakeRegistry

KAFKA = KafkaConfig(bootstrap_servers=())
STRING = RowFormat(column="value", format="string")
JSON = RowFormat(column="value", format="json", schema=InlineSchema("a INT"))


def test_pins_are_equal_for_the_same_schema() -> None:
    registered = RegisteredSchema(7, "AVRO", "{}", "orders-value", 2)
    avro = ReaderSchema(RowFormat(column="value", format="avro"), "{}", registered)
    assert (avro.pin, str(avro)) == ("avro id:7", "avro id 7 (version 2 of orders-value)")
    inline = ReaderSchema(JSON, "a INT")
    assert inline.pin == f"json sha256:{hashlib.sha256(b'a INT').hexdigest()[:16]}"
    assert inline.pin == ReaderSchema(JSON, "a INT").pin != ReaderSchema(JSON, "b INT").pin
    assert str(inline) == "json, given inline"
    assert ReaderSchema(STRING).pin == str(ReaderSchema(STRING)) == "string"


def test_pins_name_each_of_several_schemas() -> None:
    form = RowFormat(column="value", format="avro", others="bad")

    def member(number: int, name: str = "n.R") -> ReaderSchema:
        registered = RegisteredSchema(number, "AVRO", "{}", f"s{number}", 1)
        return ReaderSchema(form, "{}", registered, f"{name}{number}")

    several = ReaderSchema(form, members=(member(1), member(2), ReaderSchema(form, "x", None, "I")))
    digest = hashlib.sha256(b"x").hexdigest()[:16]
    assert several.pin == f"avro n.R1 id:1, n.R2 id:2, I sha256:{digest}"
    assert str(several) == "avro n.R1 id 1 (version 1 of s1), n.R2 id 2 (version 1 of s2), I"
    # The checkpoint takes 1,000 characters.
    long = [
        ReaderSchema(form, members=(member(1, "n" * 500), member(k, "m" * 500))) for k in (2, 3)
    ]
    assert all(len(each.pin) == len("avro sha256:") + 16 for each in long)
    assert long[0].pin != long[1].pin
    schemas = ReaderSchemas(TypedRows(formats=(form,)), (several,), "t")
    for was in (long[0].pin, "avro n.R1 id:1", "avro n.R1 id:1, I sha256:0"):
        (text,) = told_changes(schemas, {"value": was}, KAFKA)
        assert text == f"value was read with the schema {was}, and is with {several} now"


def test_strings_need_no_schema() -> None:
    found = found_schemas(TypedRows(formats=(STRING,)), KAFKA, "t")
    assert found.pins == {"value": "string"}
    assert found.of("key") is None
    assert found.registry(KAFKA) is None


def test_what_is_said_of_other_formats() -> None:
    now = ReaderSchemas(TypedRows(formats=(STRING,)), (ReaderSchema(STRING),), "t")
    assert told_changes(now, {"value": "string"}, KAFKA) == []
    assert told_changes(now, {}, KAFKA) == ["value was bytes, and is read as string now"]
    assert told_changes(None, {"key": "avro id:3"}, KAFKA) == [
        "key was read as avro id:3, and is bytes now"
    ]
    assert told_changes(now, {"value": "avro id:3"}, KAFKA) == [
        "value was read with the schema avro id:3, and is with string now"
    ]


OLD = pa.struct(
    [
        ("user", pa.string()),
        ("qty", pa.int32()),
        ("items", pa.list_(pa.struct([("sku", pa.int64())]))),
    ]
)


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (OLD, []),
        (
            pa.struct([*OLD, ("note", pa.string())]),
            ["value.note is new (string)"],
        ),
        (
            pa.struct([OLD.field(0), OLD.field(2), OLD.field(1)]),
            ["the fields of value have another order"],
        ),
        (
            pa.struct(
                [
                    ("qty", pa.int64()),
                    ("items", pa.list_(pa.struct([("sku", pa.int64()), ("n", OLD)]))),
                ]
            ),
            [
                "value.user is gone",
                "value.qty was int32 and is int64",
                "value.items.n is new (struct)",
            ],
        ),
        (pa.string(), ["value was struct and is string"]),
        (
            pa.struct([OLD.field(0), OLD.field(1), ("items", pa.map_(pa.string(), pa.int32()))]),
            ["value.items was list and is map"],
        ),
    ],
)
def test_changes_of_types(now: pa.DataType, told: list[str]) -> None:
    assert list(type_changes(OLD, now, "value")) == told


def test_changes_within_maps() -> None:
    was, now = (pa.map_(pa.string(), kind) for kind in (pa.int32(), pa.int64()))
    assert list(type_changes(was, now, "value")) == ["value was int32 and is int64"]


def test_a_registry_that_is_down_is_not_waited_for_to_tell_what_has_changed() -> None:
    """Batches would wait with it: here the time-out is longer than any test."""
    patient = KafkaConfig(bootstrap_servers=(), api_timeout_ms=3_600_000)
    with FakeRegistry() as registry:
        registry.register("s", '"int"')
        rows = TypedRows(
            formats=(RowFormat(column="value", format="avro", schema=InlineSchema('"int"')),),
            registry=RegistryConfig(Properties({"url": registry.url})),
        )
        schemas = found_schemas(rows, patient, "down")
        registry.stop()
        (text,) = told_changes(schemas, {"value": "avro id:1"}, patient)
    assert "what has changed is not known: schema registry" in text


def test_messages_of_a_file_are_compared_with_those_of_before() -> None:
    """The pin names the message, which tells how the one of before was read."""
    file = 'syntax = "proto3"; message A {{ string x = 1; }} message B {{ {} }}'
    with FakeRegistry() as registry:
        registry.register("s", file.format("int32 qty = 1;"), "PROTOBUF")
        registry.register("s", file.format("int32 qty = 1; string note = 2;"), "PROTOBUF")
        form = RowFormat(
            column="value", format="protobuf", schema=SchemaVersion(2, "B"), subject="s"
        )
        url = Properties({"url": registry.url})
        rows = TypedRows(formats=(form,), registry=RegistryConfig(url))
        schemas = found_schemas(rows, KAFKA, "messages")
        assert schemas.pins == {"value": "protobuf B id:2"}
        assert told_changes(schemas, schemas.pins, KAFKA) == []
        for before, change in (
            ("protobuf B id:1", "value.note is new (string)"),
            ("protobuf id:1", "value.x is gone, value.qty is new (int32), value.note is new"),
            ("protobuf C id:1", "has no message C; there are A, B"),
        ):
            (text,) = told_changes(schemas, {"value": before}, KAFKA)
            start = f"value was read with the schema {before}, and is with protobuf B of id 2 "
            assert text.startswith(start)
            assert change in text
