"""Options of typed rows: what they become, what is needed, what contradicts, and secrets."""

import pickle
from typing import Any

import pytest

from kshare.options import SourceOptions
from kshare.options.allowed import ALLOWED_FUNCTIONS, ALLOWED_TOKEN_URLS
from kshare.options.registry_table import REGISTRY_PROPERTIES
from kshare.options.typed_rows import (
    LATEST_SCHEMA,
    TYPED_COLUMNS,
    VARIANT_SCHEMA,
    BadRecords,
    InlineSchema,
    LatestSchema,
    RowFormat,
    SchemaId,
    SchemaVersion,
    TypedRows,
)
from tests.support.options import SECRET, options, problem, problems, warnings

REGISTRY = {"schemaRegistry.url": "http://localhost:8081"}
AVRO = {"valueFormat": "avro", **REGISTRY}
DDL = {"valueFormat": "json", "valueSchema": "user STRING, qty INT"}


def rows(given: dict[str, str], **how: bool) -> TypedRows:
    found = options(given, **how).typed_rows
    assert found is not None
    return found


def test_bytes_stay_bytes_unless_a_format_is_named() -> None:
    assert options().typed_rows is None


@pytest.mark.parametrize("streaming", [True, False])
def test_strings_need_nothing_else(streaming: bool) -> None:
    found = rows({"valueFormat": "STRING", "keyFormat": "string"}, streaming=streaming)
    assert found.formats == (
        RowFormat(column="key", format="string"),
        RowFormat(column="value", format="string"),
    )
    assert found.registry is None
    assert found.bad_records == BadRecords("fail")


def test_with_a_registry_the_newest_schema_of_the_topics_subject_is_read() -> None:
    found = rows({**AVRO, "keyFormat": "json"})
    assert [(each.column, each.schema, each.subject, each.framing) for each in found.formats] == [
        ("key", LATEST_SCHEMA, "t-key", "confluent"),
        ("value", LATEST_SCHEMA, "t-value", "confluent"),
    ]
    assert found.registry is not None
    assert found.registry.url == "http://localhost:8081"
    assert found.of("value") == found.formats[1]
    assert found.of("topic") is None


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("Latest", LATEST_SCHEMA),
        ("version:3", SchemaVersion(3)),
        ("Version = 3", SchemaVersion(3)),
        ("id:100042", SchemaId(100042)),
        (' {"type": "string"} ', InlineSchema('{"type": "string"}')),
        ("id INT", InlineSchema("id INT")),
        ("shop.Order latest", LatestSchema("shop.Order")),
        (".shop.Order  version:3", SchemaVersion(3, "shop.Order")),
        ("Order id:100042", SchemaId(100042, "Order")),
        ("Order orders.desc", InlineSchema("Order orders.desc")),
    ],
)
def test_schemas(text: str, schema: object) -> None:
    found = rows({**AVRO, "valueFormat": "protobuf", "valueSchema": text}).of("value")
    assert found is not None
    assert found.schema == schema


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("7", "valueSchema: may be a version or an id (given: '7'); write version:7 or id:7"),
        (
            "",
            (
                "valueSchema: is empty (given: ''); wanted latest, version:N, id:N, or the schema "
                "itself"
            ),
        ),
        ("id:0", "valueSchema: is wrong (given: 'id:0'); wanted an integer from 1 to 2147483647"),
    ],
)
def test_schemas_that_are_none(text: str, fault: str) -> None:
    assert problem({**AVRO, "valueSchema": text}) == fault


@pytest.mark.parametrize("more", [{}, {"valueSchema": " Variant "}])
def test_json_without_a_schema_is_a_variant(more: dict[str, str]) -> None:
    found = rows({"valueFormat": "json", **more}).of("value")
    assert found is not None
    assert (found.schema, found.framing) == (VARIANT_SCHEMA, "none")


def test_json_with_a_registry_is_of_its_schema_unless_a_variant_is_asked_for() -> None:
    registry = {"valueFormat": "json", "schemaRegistry.url": "http://registry:8081"}
    for more, schema in (({}, LATEST_SCHEMA), ({"valueSchema": "VARIANT"}, VARIANT_SCHEMA)):
        found = rows({**registry, **more}).of("value")
        assert found is not None
        assert (found.schema, found.framing) == (schema, "confluent")


def test_fields_and_options_of_json() -> None:
    more = {"valueFields": "user, items.sku", "Value.Json.timestampformat": "yyyy"}
    found = rows({**DDL, **more}).of("value")
    assert found is not None
    assert found.fields == ("user", "items.sku")
    assert found.json == {"timestampFormat": "yyyy"}
    assert found.framing == "none"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("a,,b", "has an empty name"), ("a..b", "has an empty name"), ("a,a.b", "names 'a.b' twice")],
)
def test_fields_that_are_none(text: str, wrong: str) -> None:
    assert problem({**DDL, "valueFields": text}).startswith(f"valueFields: {wrong} (given: ")


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("Fail", BadRecords("fail")),
        ("null", BadRecords("null")),
        ("deadLetter = bad.orders", BadRecords("deadLetter", "bad.orders")),
    ],
)
def test_bad_records(text: str, parsed: BadRecords) -> None:
    assert rows({**DDL, "badRecords": text}).bad_records == parsed


@pytest.mark.parametrize(
    "text", ["", "drop", "deadLetter", "deadLetter=", "null=1", "deadLetter=a b"]
)
def test_bad_records_that_are_none(text: str) -> None:
    assert problem({**DDL, "badRecords": text}).startswith("badRecords: ")


CONTRADICTIONS: list[tuple[dict[str, str], str]] = [
    (
        {"valueFormat": "avro"},
        (
            "valueSchema: must be specified with valueFormat=avro; give a schema of Avro in JSON, "
            "or schemaRegistry.url"
        ),
    ),
    (
        {"valueFormat": "json", "valueFields": "user"},
        (
            "valueFields: needs valueSchema: without one, value is one VARIANT (given: 'user'); "
            "take fields out of it by variant_get(value, '$.user', 'string')"
        ),
    ),
    (
        {"valueFormat": "json", "valueSchema": "variant", "value.json.allowComments": "true"},
        (
            "value.json.allowComments: needs valueSchema: a VARIANT is read as parse_json reads "
            "it, without options"
        ),
    ),
    (
        {"valueFormat": "protobuf"},
        (
            "valueSchema: must be specified with valueFormat=protobuf; give a descriptor set's "
            "message, or schemaRegistry.url"
        ),
    ),
    (
        {"valueFormat": "json", "valueSchema": "version:2"},
        (
            "valueSchema: is version:2, which needs schemaRegistry.url; give the address of the "
            "registry, or DDL such as user STRING, qty INT, or a JSON Schema"
        ),
    ),
    (
        {**AVRO, "subscribe": "t,u"},
        (
            "valueSubject: must be specified where more than one topic may be read; with one "
            "topic, the default is <topic>-value"
        ),
    ),
    (
        {**AVRO, "valueSubject": " "},
        "valueSubject: is empty (given: ' '); give the name of a subject",
    ),
    (
        {"valueFormat": "avro", "valueSchema": "{}", "valueFraming": "confluent"},
        (
            "valueFraming: needs schemaRegistry.url: records name their schemas by the registry's "
            "ids (given: 'confluent')"
        ),
    ),
    (
        {"valueFormat": "protobuf", "valueSchema": "M x.desc", "valueFraming": "apicurio"},
        (
            "valueFraming: is not read: these serializers put the message's name in front of it "
            "(given: 'apicurio'); none, if they put ids in headers, which is their default"
        ),
    ),
    (
        {**AVRO, "valueFraming": "confluentHeader"},
        (
            "valueFraming: is a sink's (given: 'confluentHeader'); confluent, which reads ids in "
            "headers, too"
        ),
    ),
    (
        {**AVRO, "valueFraming": "glue"},
        (
            "valueFraming: needs the schemas of AWS Glue's registry, which has no client here "
            "(given: 'glue'); leave out valueFormat, and decode the bytes with from_avro"
        ),
    ),
    (
        {**DDL, "valueFraming": "singleobject"},
        "valueFraming: is Avro's own, which contradicts valueFormat=json (given: 'singleobject')",
    ),
    (
        {"valueFormat": "string", "valueSchema": "latest"},
        "valueSchema: contradicts valueFormat=string: a string has no schema (given: 'latest')",
    ),
    (
        {**AVRO, "value.json.dateFormat": "y"},
        "value.json.dateFormat: contradicts valueFormat=avro",
    ),
    ({"keySubject": "s"}, "keySubject: needs keyFormat, which says how keys are written"),
    (
        {"value.json.dateFormat": "y"},
        "value.json.dateFormat: needs valueFormat, which says how values are written",
    ),
    ({"columns": "value,valueError"}, "columns: has valueError, which needs valueFormat"),
    (
        {**DDL, "columns": "value,valueSchemaId"},
        (
            "columns: has valueSchemaId, and with valueFraming=none records name no id; framings "
            "with ids: confluent, apicurio"
        ),
    ),
    (
        {"schemaRegistry.timeout": "3", "valueFormat": "string"},
        "schemaRegistry.url: must be specified with schemaRegistry.*",
    ),
]


SEVERAL = {**AVRO, "valueSubject": "a,b"}
MESSAGES = {**REGISTRY, "valueFormat": "protobuf"}
UNION = {"valueFormat": "avro", "valueSchema": "[]", "valueSubject": "a, b"}
CONTRADICTIONS += [
    (
        {**SEVERAL, "valueFraming": "none"},
        (
            "valueSubject: tells records apart by the schemas that they name, and with "
            "valueFraming=none they name none (given: 'a,b'); framings that do: confluent, "
            "apicurio, singleObject"
        ),
    ),
    (
        {**UNION, "valueOtherRecords": "skip"},
        (
            "valueOtherRecords: tells records apart by the schemas that they name, and with "
            "valueFraming=none they name none (given: 'skip'); framings that do: confluent, "
            "apicurio, singleObject"
        ),
    ),
    ({**SEVERAL, "valueSubject": "a,,b"}, "valueSubject: has an empty name"),
    ({**SEVERAL, "valueSubject": "a,b,a"}, "valueSubject: names 'a' twice"),
    (
        {**SEVERAL, "valueSchema": "version:3"},
        (
            "valueSchema: is version:3, of one schema, and valueSubject names several; give "
            "latest, or one valueSubject"
        ),
    ),
    (
        {**SEVERAL, "valueFormat": "json", "valueSchema": "a INT"},
        (
            "valueSchema: is one schema, and valueSubject names several; leave it out, for those "
            "of the registry"
        ),
    ),
    (
        {
            "valueFormat": "json",
            "valueSchema": "a INT",
            "valueFraming": "confluent",
            "valueOtherRecords": "null",
        },
        (
            "valueOtherRecords: needs schemaRegistry.url: records name schemas by its ids (given: "
            "'null')"
        ),
    ),
    (
        {"valueFormat": "protobuf", "valueSchema": "M f", "valueOtherRecords": "null"},
        (
            "valueOtherRecords: tells messages apart by their indexes, and with valueFraming=none "
            "they have none (given: 'null'); framing that has: confluent"
        ),
    ),
    (
        {"valueFormat": "protobuf", "valueSchema": "a.M, b.N f.desc"},
        (
            "valueSchema: tells messages apart by their indexes, and with valueFraming=none they "
            "have none; framing that has: confluent"
        ),
    ),
    (
        {**MESSAGES, "valueSubject": "a,b", "valueSchema": "M latest"},
        (
            "valueSchema: names message M, and valueSubject names several subjects; give latest, "
            "or one valueSubject"
        ),
    ),
    (
        {**MESSAGES, "valueSubject": "a,b", "valueSchema": "M f.desc"},
        (
            "valueSchema: is given, and valueSubject names several of the registry; leave out "
            "valueSubject, and write for example shop.Placed,shop.Paid a.desc"
        ),
    ),
    ({**MESSAGES, "valueSchema": "M,N,M latest"}, "valueSchema: names 'M' twice"),
    ({**AVRO, "valueSchema": "M,N latest"}, "valueSchema: names message M,N, which only"),
    (
        {"valueFormat": "string", "valueOtherRecords": "null"},
        (
            "valueOtherRecords: contradicts valueFormat=string: a string has no schema (given: "
            "'null')"
        ),
    ),
    (
        {**AVRO, "valueOtherRecords": "drop"},
        "valueOtherRecords: is not known (given: 'drop'); allowed: bad, null, skip",
    ),
    (
        {"keyOtherRecords": "skip"},
        "keyOtherRecords: needs keyFormat, which says how keys are written",
    ),
]


@pytest.mark.parametrize(("given", "fault"), CONTRADICTIONS, ids=range(len(CONTRADICTIONS)))
def test_contradictions(given: dict[str, str], fault: str) -> None:
    assert problem(given).startswith(fault)


@pytest.mark.parametrize(
    ("given", "subject", "subjects", "others"),
    [
        (AVRO, "t-value", (), None),
        ({**AVRO, "valueSubject": " s "}, "s", (), None),
        ({**AVRO, "valueOtherRecords": "SKIP"}, "t-value", (), "skip"),
        ({**AVRO, "valueOtherRecords": "bad", "valueSchema": "id:3"}, None, (), "bad"),
        (SEVERAL, None, ("a", "b"), "bad"),
        ({**SEVERAL, "valueOtherRecords": "null"}, None, ("a", "b"), "null"),
        ({**SEVERAL, "subscribe": "t,u"}, None, ("a", "b"), "bad"),
        ({**UNION, "valueFraming": "singleObject"}, None, ("a", "b"), "bad"),
        (
            {
                **UNION,
                "valueSubject": "a",
                "valueFraming": "singleObject",
                "valueOtherRecords": "skip",
            },
            None,
            ("a",),
            "skip",
        ),
    ],
)
def test_records_by_name(
    given: dict[str, str],
    subject: str | None,
    subjects: tuple[str, ...],
    others: str | None,
) -> None:
    found = rows(given).of("value")
    assert found is not None
    assert (found.subject, found.subjects, found.others) == (subject, subjects, others)


@pytest.mark.parametrize(
    ("given", "schema", "subject", "subjects", "messages", "others"),
    [
        ({"valueSchema": "a.M latest"}, "a.M latest", "t-value", (), ("a.M",), None),
        ({"valueSchema": ".M , b.N latest"}, "M,b.N latest", "t-value", (), ("M", "b.N"), "bad"),
        ({"valueSchema": "M,N id:3"}, "M,N id:3", None, (), ("M", "N"), "bad"),
        ({"valueSubject": "a,b"}, "latest", None, ("a", "b"), (), "bad"),
        ({"valueSchema": "M, a.N f.desc"}, "f.desc", None, ("M", "a.N"), (), "bad"),
        ({"valueSchema": "M f.desc"}, "M f.desc", None, (), (), None),
        ({"valueSchema": "M f", "valueOtherRecords": "skip"}, "M f", None, (), (), "skip"),
        ({"valueOtherRecords": "skip"}, "latest", "t-value", (), (), "skip"),
    ],
)  # fmt: skip
def test_messages_by_name(
    given: dict[str, str],
    schema: str,
    subject: str | None,
    subjects: tuple[str, ...],
    messages: tuple[str, ...],
    others: str | None,
) -> None:
    found = rows({**MESSAGES, **given}).of("value")
    assert found is not None
    shown = found.schema.text if isinstance(found.schema, InlineSchema) else str(found.schema)
    assert (shown, found.subject, found.subjects) == (schema, subject, subjects)
    assert (found.messages, found.others) == (messages, others)


def test_all_faults_are_reported_together() -> None:
    given = {
        "subscribe": "t,u",
        "valueFormat": "avro",
        "schemaRegistry.url": f"http://user:{SECRET}@h:1",
        "schemaRegistry.nonsense": SECRET,
        "keyFraming": "glue",
        "badRecords": "x",
        "value.json.nonsense": "1",
    }
    found = problems(given)
    named = ["schemaRegistry.nonsense", "schemaRegistry.url", "badRecords", "keyFraming"]
    for name in (*named, "value.json.nonsense", "valueSubject"):
        assert any(each.startswith(f"{name}: ") for each in found), name
    assert SECRET not in str(found)


@pytest.mark.parametrize("name", ["badRecords", "schemaRegistry.url"])
def test_what_has_no_effect_without_a_format(name: str) -> None:
    given = {"badRecords": "null", **REGISTRY}
    assert warnings({name: given[name]}) == (
        f"option {name} has no effect without valueFormat or keyFormat",
    )


def test_a_subject_that_nothing_asks_for() -> None:
    assert warnings({**AVRO, "valueSchema": "id:3", "valueSubject": "s"}) == (
        "option valueSubject has no effect, because valueSchema names the schema without a subject",
    )


def test_columns_of_typed_rows() -> None:
    given = {**AVRO, "keyFormat": "avro", "columns": ",".join(TYPED_COLUMNS)}
    assert options(given).column_names == TYPED_COLUMNS


# -- the registry ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["", "localhost:8081", "ftp://h", "http://", "http://h:99999999", f"http://{SECRET}@h"]
)
def test_addresses_that_cannot_be_used(url: str) -> None:
    found = problem({"valueFormat": "string", "schemaRegistry.url": url})
    assert found.startswith("schemaRegistry.url: ")
    assert SECRET not in found


LOGINS: list[tuple[dict[str, str], str]] = [
    ({"basic.auth.user.info": SECRET}, "basic.auth.user.info: is wrong; write user:password"),
    (
        {"bearer.auth.credentials.source": "STATIC_TOKEN"},
        (
            "bearer.auth.token: must be specified with "
            "schemaRegistry.bearer.auth.credentials.source=STATIC_TOKEN"
        ),
    ),
    (
        {
            "bearer.auth.credentials.source": "static_token",
            "bearer.auth.token": SECRET,
            "basic.auth.user.info": f"a:{SECRET}",
        },
        "basic.auth.user.info: is given beside a source of tokens: give one",
    ),
    ({"ssl.key.location": "/k"}, "ssl.key.location: needs schemaRegistry.ssl.certificate.location"),
    ({"basic.auth.user.info": " "}, "basic.auth.user.info: is empty"),
    (
        {"bearer.auth.credentials.source": "oauthbearer_azure_imds"},
        (
            "bearer.auth.issuer.endpoint.url: must be specified with "
            "schemaRegistry.bearer.auth.credentials.source=OAUTHBEARER_AZURE_IMDS"
        ),
    ),
    *(
        (
            {"bearer.auth.issuer.endpoint.url": url},
            "bearer.auth.issuer.endpoint.url: is no URL that can be used; write https://host/path",
        )
        for url in ("http://[", "file:///run/token", "https://", f"http://{'a' * 64}/", "host/path")
    ),
]


@pytest.mark.parametrize(("given", "fault"), LOGINS, ids=range(len(LOGINS)))
def test_logins_that_cannot_be_used(given: dict[str, str], fault: str) -> None:
    more = {f"schemaRegistry.{name}": text for name, text in given.items()}
    assert fault in {each.removeprefix("schemaRegistry.") for each in problems({**AVRO, **more})}


def test_a_provider_of_tokens_must_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED_FUNCTIONS, "a.b:c")
    name = "schemaRegistry.bearer.auth.custom.provider.function"
    assert "does not list it" in problem({**AVRO, name: "os:system"})


TOKENS = {
    "schemaRegistry.bearer.auth.client.id": "me",
    "schemaRegistry.bearer.auth.client.secret": SECRET,
    "schemaRegistry.bearer.auth.scope": "s",
}
SOURCES = {"OAUTHBEARER": TOKENS, "OAUTHBEARER_AZURE_IMDS": {}}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("url", ["https://login.example.org/token", "http://169.254.169.254/m?r=x"])
def test_tokens_for_a_registry_come_only_from_a_url_of_the_list(
    source: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever gives options has the machine's token sent to a registry of theirs."""
    name = "schemaRegistry.bearer.auth.issuer.endpoint.url"
    given = {"schemaRegistry.bearer.auth.credentials.source": source, name: url, **SOURCES[source]}
    warnings({**AVRO, **given})  # it is no fault
    monkeypatch.setenv(ALLOWED_TOKEN_URLS, f"https://other.example.org, {url}")
    warnings({**AVRO, **given})
    for other in ("", f"{url}/more", url[:-1]):
        monkeypatch.setenv(ALLOWED_TOKEN_URLS, other)
        found = problem({**AVRO, **given})
        assert found.startswith(f"{name}: is not allowed here: ")
        assert f" {ALLOWED_TOKEN_URLS} " in found


def test_without_its_url_no_token_of_the_machine_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ALLOWED_TOKEN_URLS, "")
    source = {"schemaRegistry.bearer.auth.credentials.source": "OAUTHBEARER_AZURE_IMDS"}
    assert "must be specified" in problem({**AVRO, **source})


def test_a_secret_that_goes_unencrypted_is_warned_of() -> None:
    name = "schemaRegistry.bearer.auth.issuer.endpoint.url"
    given = {**AVRO, **TOKENS, "schemaRegistry.bearer.auth.credentials.source": "OAuthBearer"}
    (found,) = warnings({**given, name: "http://h/t"})
    assert found == f"option {name} sends the client's secret unencrypted; https is safe"
    assert warnings({**given, name: "https://h/t"}) == ()


def test_no_text_form_shows_a_secret() -> None:
    secrets = {
        f"schemaRegistry.{entry.name}": f"a:{SECRET}"
        for entry in REGISTRY_PROPERTIES.values()
        if entry.secret and entry.name != "bearer.auth.token"
    }
    more = {"schemaRegistry.ssl.certificate.location": "/c"}
    found: SourceOptions = options({**AVRO, **more, **secrets})
    again: Any = pickle.loads(pickle.dumps(found))
    assert again == found
    assert SECRET not in f"{found!r} {found}"
    assert found.typed_rows is not None
    assert found.typed_rows.registry is not None
    assert SECRET in found.typed_rows.registry.properties["basic.auth.user.info"]
