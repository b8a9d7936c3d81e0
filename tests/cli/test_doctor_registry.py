"""``kshare doctor --registry``: what it finds, with each fault, and that it writes nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from typing import Any

import pytest

from kshare.cli import main
from kshare.cli.doctor_registry import examine_registry, registry_config
from kshare.cli.findings import Finding
from kshare.errors import KshareError, OptionsError
from kshare.testing import FakeRegistry
from tests.support.certificates import make
from tests.support.http_answers import server

SCHEMA = '{"type": "record", "name": "R", "fields": [{"name": "qty", "type": "int"}]}'
PROTO = 'syntax = "proto3"; message M {}'


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake:
        yield fake


def look(url: str, file: Path | None = None, topic: str | None = None) -> dict[str, Finding]:
    found = {each.check: each for each in examine_registry(registry_config(url, file), topic)}
    assert "TOPSECRET" not in repr(found)
    return found


def levels(found: dict[str, Finding]) -> dict[str, str]:
    return {check: finding.level for check, finding in found.items()}


def test_a_registry_in_order_is_green_and_nothing_is_written(registry: FakeRegistry) -> None:
    registry.register("orders-value", SCHEMA)
    registry.register("other-value", PROTO, "PROTOBUF")
    found = look(registry.url, topic="orders")
    assert set(levels(found).values()) == {"green"}
    assert found["registry"].text == f"{registry.url} answers: Confluent Schema Registry 7.6.0"
    assert found["subjects"].text == "2 subjects"
    assert found["subject orders-value"].text == "version 1 is id 1: valueFormat=avro"
    assert found["mode"].text == "READWRITE"
    assert found["compatibility"].text == (
        "BACKWARD, of all subjects, also of orders-value, which has none of its own"
    )
    assert found["schemas by id"].text == "id 1 of orders-value is found"
    assert found["format=serialized"].text == "id 2 is given as a descriptor"
    written = [each for each in registry.requests if not each.startswith("GET ")]
    assert written == ["POST /compatibility/subjects/orders-value/versions/latest"]


def test_an_empty_registry_is_no_fault(registry: FakeRegistry) -> None:
    found = look(registry.url)
    assert set(levels(found).values()) == {"green"}
    assert found["subjects"].text == "0 subjects"
    assert "not tried" in found["schemas by id"].text
    found = look(registry.url, topic="orders")
    assert found["subject orders-value"].level == "yellow"
    assert "valueSubject" in found["subject orders-value"].remedy


def test_what_lacks_names_the_features_that_it_touches() -> None:
    with FakeRegistry(mode="READONLY") as registry:
        registry.serialized = False
        registry.register("orders-value", PROTO, "PROTOBUF")
        found = look(registry.url)
    assert found["mode"].text == "READONLY: takes no new schemas"
    assert "its mode is READONLY" in found["autoRegister"].text
    assert found["registering"].level == found["autoRegister"].level == "yellow"
    text = (
        "id 1 is given as a text, which valueFormat=protobuf reads, too, except editions and groups"
    )
    assert (found["format=serialized"].level, found["format=serialized"].text) == ("green", text)
    assert "red" not in levels(found).values()


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (401, "basic.auth.user.info"),
        (403, "basic.auth.user.info"),
        (404, "/apis/ccompat/v7"),
        (500, "the registry's own log"),
        (503, "the registry's own log"),
    ],
)
def test_a_refusal_is_red_and_says_what_to_do(
    registry: FakeRegistry, status: int, remedy: str
) -> None:
    registry.fail([status])
    (found,) = look(registry.url).values()
    assert (found.check, found.level) == ("registry", "red")
    assert f"{registry.url}: HTTP {status}" in found.text
    assert remedy in found.remedy
    assert len(registry.requests) == 1  # no retries: somebody sits and waits


def test_a_registry_that_is_not_there(registry: FakeRegistry) -> None:
    registry.stop()
    (found,) = look(registry.url).values()
    assert found.level == "red"
    assert "Connection refused" in found.text
    assert found.remedy == "start it there, or give its address"


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"{}", b"[1]", b""])
def test_a_server_that_is_no_registry(body: bytes) -> None:
    with server(lambda _: (200, body)) as url:
        (found,) = look(url).values()
    assert found.level == "red"
    assert "answers, but not with" in found.text
    assert "no schema registry's address" in found.remedy


def test_a_certificate_of_another_name_or_authority(tmp_path: Path) -> None:
    authority = make("authority", authority=True)
    own = make("elsewhere.example", authority)
    (tmp_path / "ca.pem").write_text(authority.pem)
    (tmp_path / "server.pem").write_text(own.pem + own.key_pem())
    context = SSLContext(PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    file = tmp_path / "registry.properties"
    with server(lambda _: (200, []), context) as url:
        (found,) = look(url).values()
        assert found.level == "red"
        assert "certificate verify failed" in found.text
        assert "ssl.ca.location" in found.remedy
        file.write_text(f"ssl.ca.location={tmp_path / 'ca.pem'}\n")
        (found,) = look(url, file).values()
        assert found.level == "red"
        assert "mismatch" in found.text
        assert "host name that the certificate has" in found.remedy


@pytest.mark.parametrize(
    ("path", "answer", "product"),
    [
        (
            "/v1/metadata/version",
            {"version": "7.4.1", "commitId": "a"},
            "Confluent Schema Registry 7.4.1",
        ),
        (
            "/apis/registry/v3/system/info",
            {"name": "Apicurio Registry (In Memory)", "version": "3.0.5"},
            "Apicurio Registry (In Memory) 3.0.5",
        ),
        ("/_health", {"status": {"schema_registry_ready": True}, "healthy": True}, "Karapace"),
        ("/", {}, "a registry that does not say which"),
    ],
)
def test_the_product_is_what_it_says_of_itself(path: str, answer: Any, product: str) -> None:
    def answered(asked: str) -> tuple[int, Any]:
        if asked.endswith("/subjects"):
            return 200, []
        return (200, answer) if asked == path else (404, {"error_code": 404, "message": "no"})

    with server(answered) as url:
        found = look(f"{url}/apis/ccompat/v7" if "Apicurio" in product else url)
    assert found["registry"].text.endswith(f"answers: {product}")
    assert (found["mode"].level, found["mode"].text) == (
        "green",
        "not known: this registry has no such call",
    )
    assert "does not say its mode" in found["autoRegister"].text
    assert "red" not in levels(found).values()


def test_a_refused_check_and_ids_that_are_not_given() -> None:
    schema = {"subject": "s", "version": 1, "id": 7, "schema": '"int"'}
    answers: dict[str, tuple[int, Any]] = {
        "/subjects": (200, ["s"]),
        "/subjects/s/versions/latest": (200, schema),
        "/schemas/ids/7": (403, {"error_code": 40301, "message": "denied"}),
        "/mode": (200, {"mode": "READWRITE"}),
        "/config": (200, {"compatibilityLevel": "NONE"}),
        "/compatibility/subjects/s/versions/latest": (403, {"error_code": 403, "message": "no"}),
    }
    with server(lambda path: answers.get(path, (404, {}))) as url:
        found = look(url)
    assert found["schemas by id"].level == found["typed rows"].level == "red"
    assert "valueFormat=avro and protobuf do not work" in found["typed rows"].text
    assert found["registering"].text.startswith("is not allowed")
    assert found["compatibility"].text.startswith(
        "NONE, of all subjects that have none of their own: "
    )
    assert found["autoRegister"].level == "yellow"


@pytest.mark.parametrize(
    ("own", "level", "text"),
    [
        ((200, {"compatibilityLevel": "FULL"}), "green", "FULL, of orders-value itself"),
        (
            (200, {"compatibilityLevel": "BACKWARD"}),
            "green",
            "BACKWARD, of orders-value, as of all subjects",
        ),
        (
            (404, {"error_code": 40408, "message": "none"}),
            "green",
            "BACKWARD, of all subjects, also of orders-value, which has none of its own",
        ),
        ((200, {"compatibilityLevel": "NONE"}), "yellow", "NONE, of orders-value itself: a writer"),
        ((403, {"error_code": 403, "message": "no"}), "yellow", "is not said: HTTP 403: no"),
    ],
)
def test_whose_compatibility_it_is(own: tuple[int, Any], level: str, text: str) -> None:
    answers: dict[str, tuple[int, Any]] = {
        "/subjects": (200, ["orders-value"]),
        "/config": (200, {"compatibilityLevel": "BACKWARD"}),
        "/config/orders-value": own,
    }
    with server(lambda path: answers.get(path, (404, {}))) as url:
        found = look(url, topic="orders")
    assert found["compatibility"].level == level
    assert found["compatibility"].text.startswith(text)


# -- the command ----------------------------------------------------------------------------------


def test_the_command_prints_findings_and_no_secret(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kshare.cli.doctor.examine_workers", lambda _: ())
    file = tmp_path / "registry.properties"
    file.write_text("schema.registry.basic.auth.user.info=user:TOPSECRET\n")
    with FakeRegistry(user_info="user:TOPSECRET") as registry:
        given = ["doctor", "--json", "--registry", registry.url, "--topic", "orders"]
        assert main([*given, "--registry-config", str(file)]) in {0, 1}  # Java may lack
        printed = json.loads(capsys.readouterr().out)
        assert {"subjects", "mode", "typed rows"} <= {each["check"] for each in printed}
        assert main(given) == 1
    captured = capsys.readouterr()
    assert {"check", "level", "text", "remedy"} == json.loads(captured.out)[-1].keys()
    assert "HTTP 401" in captured.out
    assert "TOPSECRET" not in captured.out + captured.err


def test_a_configuration_that_is_wrong_is_said_before_anything_else(tmp_path: Path) -> None:
    file = tmp_path / "registry.properties"
    file.write_text("basic.auth.user.info=TOPSECRET\nssl.key.location=k.pem\nsuser=1\n")
    with pytest.raises(OptionsError) as raised:
        registry_config("localhost:8081", file)
    text = str(raised.value)
    assert "TOPSECRET" not in text
    assert "schemaRegistry.url: is no URL" in text
    assert "schemaRegistry.suser: is no property" in text
    assert "basic.auth.user.info: is wrong" in text
    file.write_text("timeout=5\n")
    with pytest.raises(OptionsError, match=r"schemaRegistry\.url: must be specified"):
        registry_config(None, file)
    with pytest.raises(KshareError, match="--registry-config"):
        registry_config("http://localhost", tmp_path / "none.properties")
