"""Answers that are none of a registry's: of proxies, logins and servers amid a restart."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kshare.errors import SchemaRegistryError, UnknownSchemaError
from kshare.formats.registry import SchemaRegistry
from kshare.formats.schema_files import GlobalId
from kshare.options import KafkaConfig
from kshare.options.frozen import Properties
from kshare.options.typed_rows import RegistryConfig
from tests.support.clock import Clock
from tests.support.http_answers import server

KAFKA = KafkaConfig(bootstrap_servers=(), api_timeout_ms=60_000)
GUID = "00000000-0000-0000-0000-000000000007"
HTML = b"<html><body>Not here</body></html>"
SCHEMA = {"schema": '"int"'}
VERSION = {"subject": "s", "version": 1, "id": 7, **SCHEMA}


@contextmanager
def answering(*answers: tuple[int, bytes]) -> Iterator[str]:
    """A server that gives these answers, and the last one for ever."""
    left = list(answers)
    with server(lambda _: left.pop(0) if len(left) > 1 else left[0]) as url:
        yield url


def registry_of(url: str, **more: str) -> tuple[SchemaRegistry, Clock]:
    clock = Clock()
    named = {name.replace("_", "."): text for name, text in more.items()}
    return SchemaRegistry(
        RegistryConfig(Properties({"url": url, **named})), KAFKA, None, clock
    ), clock


ASKED: list[tuple[Callable[[SchemaRegistry], Any], str, Any]] = [
    (lambda asked: asked.by_id(7), "schema id 7", SCHEMA),
    (lambda asked: asked.by_id(GUID), f"schema GUID {GUID}", SCHEMA),
    (lambda asked: asked.of_subject("s"), "the newest version of subject s", VERSION),
    (lambda asked: asked.of_text("s", "AVRO", '"int"'), "such a schema of subject s", VERSION),
]


@pytest.mark.parametrize("body", [HTML, b"", b"{}", b"[]", b'"login"', b'{"schema": 1, "id": "x"}'])
@pytest.mark.parametrize(("ask", "what", "answer"), ASKED, ids=["id", "guid", "subject", "text"])
def test_an_answer_without_a_schema_passes(
    body: bytes, ask: Callable[[SchemaRegistry], Any], what: str, answer: Any
) -> None:
    with answering((200, body), (200, json.dumps(answer).encode())) as url:
        registry, clock = registry_of(url)
        assert ask(registry).text == '"int"'
        assert len(clock.slept) == 1
    with answering((200, body)) as url, pytest.raises(SchemaRegistryError) as raised:
        ask(registry_of(url)[0])
    assert str(raised.value) == (
        f"schema registry {url} does not say {what}, after 60 s: it answers, but not with JSON of "
        "a registry"
    )


def test_references_of_a_global_id_that_are_no_json_pass() -> None:
    with answering((200, b'"int"'), (200, HTML), (200, b'"int"'), (200, b"[]")) as url:
        registry, clock = registry_of(url)
        assert registry.by_id(GlobalId(7)).text == '"int"'
        assert len(clock.slept) == 1


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (HTML, f"Unknown Schema Registry Error: {HTML!r} (HTTP 404, error code -1)"),
        (b'{"message": "no Route"}', "no Route (HTTP 404, error code None)"),
        (b'{"error_code": 404, "message": "x"}', "x (HTTP 404, error code 404)"),
    ],
)
@pytest.mark.parametrize(("ask", "what", "answer"), ASKED, ids=["id", "guid", "subject", "text"])
def test_a_404_of_a_proxy_does_not_say_that_there_is_no_schema(
    body: bytes, text: str, ask: Callable[[SchemaRegistry], Any], what: str, answer: Any
) -> None:
    with answering((404, body), (200, json.dumps(answer).encode())) as url:
        registry, clock = registry_of(url)
        assert ask(registry).text == '"int"'
        assert len(clock.slept) == 1
    with answering((404, body)) as url, pytest.raises(SchemaRegistryError) as raised:
        ask(registry_of(url)[0])
    assert not isinstance(raised.value, UnknownSchemaError)
    assert str(raised.value) == (f"schema registry {url} does not say {what}, after 60 s: {text}")


def test_a_long_page_is_cut() -> None:
    with answering((404, b"<p>" * 10_000)) as url, pytest.raises(SchemaRegistryError) as raised:
        registry_of(url)[0].by_id(7, waits=False)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("code", [40401, 40402, 40403])
def test_a_404_of_a_registry_says_that_there_is_no_schema(code: int) -> None:
    body = json.dumps({"error_code": code, "message": "gone"}).encode()
    with answering((404, body)) as url:
        registry, clock = registry_of(url)
        with pytest.raises(UnknownSchemaError, match="has no schema id 7: gone"):
            registry.by_id(7)
        assert not clock.slept


def _of_apicurio(name: str) -> bytes:
    return json.dumps({"message": "No content", "error_code": 404, "name": name}).encode()


def test_a_global_id_that_apicurio_does_not_have() -> None:
    with answering((404, _of_apicurio("ArtifactNotFoundException"))) as url:
        registry, clock = registry_of(url)
        with pytest.raises(UnknownSchemaError, match=r"has no schema global id 7: .*No content"):
            registry.by_id(GlobalId(7))
        assert not clock.slept


@pytest.mark.parametrize("body", [HTML, b"[]", b"{}", _of_apicurio("NotFoundException")])
def test_a_404_of_a_proxy_does_not_say_that_there_is_no_global_id(body: bytes) -> None:
    with answering((404, body), (200, b'"int"'), (200, b"[]")) as url:
        registry, clock = registry_of(url)
        assert registry.by_id(GlobalId(7)).text == '"int"'
        assert len(clock.slept) == 1


def no_token(_: dict[str, Any]) -> dict[str, str]:
    raise ValueError("no token today")


def test_what_a_function_for_tokens_raises_is_no_answer() -> None:
    with answering((200, b"{}")) as url:
        registry, clock = registry_of(
            url,
            bearer_auth_credentials_source="custom",
            bearer_auth_custom_provider_function=f"{__name__}:no_token",
        )
        with pytest.raises(ValueError, match="no token today"):
            registry.by_id(7)
        assert not clock.slept
