"""The options by which a sink encodes columns."""

import pytest

from kshare.errors import OptionsError
from kshare.options import parse_sink_options
from kshare.options.row_encodings import RowEncodings
from tests.support.options import SERVERS

REGISTRY = {"schemaRegistry.url": "http://registry:8081"}
STRUCT = "struct<a:int>"


def formats(given: dict[str, str], kind: str = STRUCT) -> RowEncodings:
    options = {**SERVERS, "topic": "orders", **given}
    parsed = parse_sink_options(options, [("value", kind)], streaming=True)
    assert parsed.warnings == ()
    assert parsed.options.formats is not None
    return parsed.options.formats


def faults(given: dict[str, str], kind: str = STRUCT) -> str:
    with pytest.raises(OptionsError) as raised:
        parse_sink_options(
            {**SERVERS, "topic": "orders", **given}, [("value", kind)], streaming=False
        )
    return "; ".join(raised.value.problems)


def test_what_may_be_left_out() -> None:
    assert formats({"valueFormat": "json"}, "map<string,int>").formats[0].schema is None
    assert formats({"valueFormat": "avro"}).formats[0].framing == "none"
    latest = formats({"valueFormat": "avro", **REGISTRY}).formats[0]
    assert (latest.framing, latest.subject, str(latest.schema)) == (
        "confluent",
        "orders-value",
        "latest",
    )
    made = formats({"valueFormat": "avro", **REGISTRY, "autoRegister": "true"})
    assert made.auto_register
    assert (made.formats[0].schema, made.formats[0].subject) == (None, "orders-value")
    assert formats({"valueFormat": "string"}, "string").formats[0].format == "string"


def test_an_inline_schema_has_a_subject_with_a_registry() -> None:
    given = {"valueFormat": "avro", **REGISTRY, "valueSchema": '"string"', "valueSubject": "s"}
    assert formats(given).formats[0].subject == "s"


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        (
            {"valueFormat": "avro"},
            "string",
            "value: has type string, which valueFormat=avro",
        ),
        ({"valueFormat": "json"}, "int", "column value: has type int, which valueFormat=json"),
        (
            {"valueFormat": "string"},
            STRUCT,
            "column value: has type struct<a:int>; allowed: string",
        ),
        ({}, STRUCT, "column value: has type struct<a:int>; allowed: string or binary"),
        ({"valueFormat": "protobuf"}, STRUCT, "valueSchema: must be specified"),
        ({"valueFormat": "avro", "autoRegister": "true"}, STRUCT, "autoRegister: needs"),
        (
            {"valueFormat": "avro", "valueFraming": "singleObject"},
            STRUCT,
            "valueFraming: is not written",
        ),
        ({"valueFormat": "json", "valueFraming": "confluent"}, STRUCT, "valueFraming: needs"),
        ({"valueSchema": "latest"}, "string", "valueSchema: needs valueFormat"),
    ],
)
def test_faults(given: dict[str, str], kind: str, said: str) -> None:
    assert said in faults(given, kind)


def test_no_text_shows_a_secret() -> None:
    given = {"valueFormat": "avro", **REGISTRY, "schemaRegistry.basic.auth.user.info": "me:hidden"}
    assert "hidden" not in repr(formats(given))


def test_a_subject_is_needed_where_rows_name_their_topics() -> None:
    given = {**SERVERS, "valueFormat": "avro", **REGISTRY}
    columns = [("value", STRUCT), ("topic", "string")]
    with pytest.raises(OptionsError, match="valueSubject"):
        parse_sink_options(given, columns, streaming=True)


def test_a_sink_writes_by_one_schema() -> None:
    given = {"valueFormat": "avro", **REGISTRY, "valueSubject": "a,b"}
    assert faults(given) == (
        "valueSubject: names several, and a sink writes by one schema (given: 'a,b')"
    )
    given = {"valueFormat": "protobuf", **REGISTRY, "valueSchema": "shop.A,shop.B latest"}
    assert faults(given) == (
        "valueSchema: names several, and a sink writes by one schema; name one message"
    )
