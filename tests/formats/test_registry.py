"""The registry's client: what is asked how often, what is waited for, and what errors say."""

import gc
import json
import logging
import os
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kshare.errors import OptionsError, SchemaRegistryError, UnknownSchemaError
from kshare.formats.registry import SchemaRegistry
from kshare.formats.schema_files import (
    GlobalId,
    LastAnswers,
    RegisteredSchema,
    SchemaFiles,
    SchemaNumber,
)
from kshare.options import KafkaConfig
from kshare.options.frozen import Properties
from kshare.options.typed_rows import RegistryConfig
from kshare.testing import FakeRegistry
from tests.support.clock import Clock
from tests.support.options import SECRET

INT, LONG, USER = '"int"', '"long"', '{"type": "array", "items": "int"}'
KAFKA = KafkaConfig(bootstrap_servers=(), api_timeout_ms=60_000)


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        yield registry


def registry_of(
    fake: FakeRegistry,
    files: SchemaFiles | None = None,
    clock: Clock | None = None,
    last: Path | None = None,
    **more: str,
) -> SchemaRegistry:
    named = {name.replace("_", "."): text for name, text in more.items()}
    config = RegistryConfig(Properties({"url": fake.url, **named}))
    answers = None if last is None else LastAnswers(config, last)
    return SchemaRegistry(config, KAFKA, files, clock or Clock(), answers)


def test_versions_of_a_subject(fake: FakeRegistry) -> None:
    first, second = fake.register("s", INT), fake.register("s", LONG)
    registry = registry_of(fake)
    assert registry.of_subject("s", 1) == RegisteredSchema(first, "AVRO", INT, "s", 1)
    newest = registry.of_subject("s")
    assert newest == RegisteredSchema(second, "AVRO", LONG, "s", 2)
    assert str(newest) == "id 2 (version 2 of s)"
    third = fake.register("s", USER)
    assert registry.of_subject("s").id == third


def test_an_answer_is_given_again_until_it_is_too_old(fake: FakeRegistry) -> None:
    clock = Clock()
    first, registry = fake.register("s", INT), registry_of(fake, clock=clock)
    assert registry.of_subject("s", max_age=60).id == first
    second = fake.register("s", LONG)
    clock.now += 59.0
    assert registry.of_subject("s", max_age=60).id == first
    assert registry.of_subject("s", 1, max_age=60).id == first  # of another question
    clock.now += 1.0
    assert registry.of_subject("s", max_age=60).id == second
    assert registry.of_subject("s").id == second  # asked each time
    asked = ("/subjects/s/versions/latest", "/subjects/s/versions/1")
    assert [each.partition(" ")[2].partition("?")[0] for each in fake.requests] == [
        asked[0],
        asked[1],
        asked[0],
        asked[0],
    ]


def test_an_id_is_asked_for_once(fake: FakeRegistry) -> None:
    number = fake.register("s", INT)
    registry = registry_of(fake)
    assert registry.by_id(number) == registry.by_id(number) == RegisteredSchema(1, "AVRO", INT)
    assert str(registry.by_id(number)) == "id 1"
    assert fake.requests == ("GET /schemas/ids/1",)


def test_processes_of_a_host_ask_once_and_known_ids_go_on_while_it_is_down(
    fake: FakeRegistry, tmp_path: Path
) -> None:
    number = fake.register("s", INT)
    files = SchemaFiles("load1", tmp_path / "schemas")
    registry_of(fake, files).by_id(number)
    other = registry_of(fake, SchemaFiles("load1", tmp_path / "schemas"))
    fake.stop()
    assert other.by_id(number).text == INT
    assert fake.requests == ("GET /schemas/ids/1",)
    with pytest.raises(SchemaRegistryError):
        registry_of(fake, SchemaFiles("load2", tmp_path / "schemas")).by_id(number)


def test_what_is_asked_by_subject_is_known_by_its_id(fake: FakeRegistry, tmp_path: Path) -> None:
    number = fake.register("s", INT)
    files = SchemaFiles("load1", tmp_path / "schemas")
    registry_of(fake, files).of_subject("s")
    fake.stop()
    assert registry_of(fake, files).by_id(number).text == INT


def test_an_unknown_id_waits_while_the_registry_is_down(
    fake: FakeRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    number = fake.register("s", INT)
    fake.stop()
    clock: Clock

    def back(_: int) -> None:
        if clock.now >= 1035:
            fake.start()

    clock = Clock(on_sleep=back)
    caplog.set_level(logging.INFO, "kshare.formats")
    assert registry_of(fake, clock=clock).by_id(number).text == INT
    warned = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    (text,) = warned
    assert f"schema registry {fake.url} does not say schema id 1" in text
    assert "Connection refused" in text


def test_what_it_said_before_is_taken_while_it_is_down(
    fake: FakeRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake.register("s", INT)
    fake.register("s", LONG)

    def started(path: str = "") -> tuple[SchemaRegistry, Clock]:
        clock = Clock()
        url = f"{fake.url}{path}"
        return registry_of(fake, clock=clock, last=tmp_path / "r", url=url), clock

    def asked(registry: SchemaRegistry) -> list[RegisteredSchema]:
        return [
            registry.by_id(1),
            registry.of_subject("s", 1),
            registry.of_text("s", "AVRO", LONG),
            registry.of_subject("s"),
        ]

    before = asked(started()[0])
    fake.stop()
    registry, clock = started()
    begun = clock.now
    assert asked(registry)[:3] == before[:3]
    waited = clock.now - begun
    assert 5 <= waited < 10  # for the newest version alone
    warned = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    (newest,) = (each for each in warned if "newest" in each)
    assert len(warned) == 4
    assert newest == (
        f"schema registry {fake.url} does not say the newest version of subject s: [Errno 111] "
        "Connection refused. What it said before is taken, which this host has kept: id 2 "
        "(version 2 of s). It may have a newer one now, which is seen after a restart when it "
        "answers"
    )
    with pytest.raises(SchemaRegistryError, match=r"does not say schema id 2, after 60 s"):
        started()[0].by_id(2, "JSON")  # nobody has asked for that
    with pytest.raises(SchemaRegistryError, match=r"does not say schema id 1, after 60 s"):
        started("/other")[0].by_id(1)


def test_a_registry_that_answers_is_believed(fake: FakeRegistry, tmp_path: Path) -> None:
    number = fake.register("s", INT)
    assert registry_of(fake, last=tmp_path / "r").by_id(number).text == INT
    registry_of(fake, last=tmp_path / "r").of_subject("s", 1)
    httpx.delete(f"{fake.url}/subjects/s")
    with pytest.raises(UnknownSchemaError):
        registry_of(fake, last=tmp_path / "r").of_subject("s", 1)
    fake.fail([401])
    with pytest.raises(SchemaRegistryError, match="asked to fail"):
        registry_of(fake, last=tmp_path / "r").by_id(number)


def test_requests_of_others_are_logged_and_its_own_are_not(
    fake: FakeRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    number = fake.register("s", INT)
    registry_of(fake).by_id(number)
    assert caplog.text == ""
    httpx.get(f"{fake.url}/subjects")
    assert f"{fake.url}/subjects" in caplog.text


def test_a_registry_that_stays_down_is_an_error_that_names_it(fake: FakeRegistry) -> None:
    fake.stop()
    clock = Clock()
    registry = registry_of(fake, clock=clock)
    with pytest.raises(SchemaRegistryError) as raised:
        registry.by_id(7)
    assert str(raised.value) == (
        f"schema registry {fake.url} does not say schema id 7, after 60 s: [Errno 111] Connection "
        "refused"
    )
    assert (raised.value.url, raised.value.schema_id) == (fake.url, 7)
    assert clock.now == pytest.approx(1060)
    with pytest.raises(SchemaRegistryError) as raised:
        registry.of_subject("s")
    assert "the newest version of subject s" in str(raised.value)
    assert raised.value.subject == "s"


def test_who_does_not_wait_asks_once(fake: FakeRegistry) -> None:
    number = fake.register("s", INT)
    fake.fail([503])
    clock = Clock()
    registry = registry_of(fake, clock=clock)
    with pytest.raises(SchemaRegistryError) as raised:
        registry.by_id(number, waits=False)
    assert str(raised.value).startswith(f"schema registry {fake.url} does not say schema id 1: ")
    assert clock.now == 1000
    assert len(fake.requests) == 1
    assert registry.by_id(number, waits=False).text == INT


@pytest.mark.parametrize("status", [404, 429, 500, 503])
def test_statuses_that_pass_are_waited_for(fake: FakeRegistry, status: int) -> None:
    fake.register("s", INT)
    fake.fail([status, status])
    clock = Clock()
    assert registry_of(fake, clock=clock).by_id(1).text == INT
    assert len(clock.slept) == 2


def test_a_refusal_is_an_error_at_once_that_holds_no_secret() -> None:
    with FakeRegistry(user_info="me:right") as fake:
        fake.register("s", INT)
        clock = Clock()
        registry = registry_of(fake, clock=clock, basic_auth_user_info=f"me:{SECRET}")
        with pytest.raises(SchemaRegistryError, match="Unauthorized") as raised:
            registry.by_id(1)
        assert not clock.slept
        assert SECRET not in f"{raised.value!r}{registry!r}"
        assert registry_of(fake, basic_auth_user_info="me:right").by_id(1).text == INT


def test_what_the_registry_lacks_is_not_asked_for_again_at_once(fake: FakeRegistry) -> None:
    clock = Clock()
    registry = registry_of(fake, clock=clock)
    for _ in range(2):
        with pytest.raises(UnknownSchemaError) as raised:
            registry.by_id(9)
    assert str(raised.value) == f"schema registry {fake.url} has no schema id 9: Schema 9 not found"
    assert len(fake.requests) == 1
    clock.now += 31
    for _ in range(9):
        fake.register(
            "s", json.dumps({"type": "fixed", "name": "F", "size": len(fake.requests) + _})
        )
    assert registry.by_id(9).id == 9
    with pytest.raises(UnknownSchemaError, match="no version 77 of subject s"):
        registry.of_subject("s", 77)


def test_what_the_registry_lacks_keeps_no_rows_that_asked_for_it(fake: FakeRegistry) -> None:
    clock = Clock()
    registry, rows = registry_of(fake, clock=clock), []

    class Batch:
        pass

    def asks(number: int) -> None:
        batch = Batch()
        rows.append(weakref.ref(batch))
        with pytest.raises(UnknownSchemaError) as raised:
            registry.by_id(number)
        assert (raised.value.url, raised.value.schema_id) == (fake.url, number)

    for _ in range(3):
        asks(9)
    gc.collect()
    assert [each() for each in rows] == [None] * 3
    clock.now += 31
    asks(8)
    assert 9 not in registry._unknown


def test_references_come_with_their_schema(fake: FakeRegistry) -> None:
    def refers(name: str) -> list[dict[str, Any]]:
        return [{"name": name, "subject": name, "version": 1}]

    fake.register("A", INT)
    fake.register("B", LONG, references=refers("A"))
    number = fake.register("C", USER, references=refers("B"))
    assert registry_of(fake).by_id(number).references == (("A", INT), ("B", LONG))


def test_a_client_that_cannot_be_made(fake: FakeRegistry) -> None:
    with pytest.raises(OptionsError, match=r"schemaRegistry\.\*: .*No such file"):
        registry_of(fake, ssl_ca_location="/no/such/file").by_id(1)


def test_tokens_of_a_function(fake: FakeRegistry) -> None:
    fake.register("s", INT)
    registry = registry_of(
        fake,
        bearer_auth_credentials_source="custom",
        bearer_auth_custom_provider_function=f"{__name__}:bearer_fields",
    )
    assert registry.by_id(1).text == INT


def bearer_fields(_: dict[str, Any]) -> dict[str, str]:
    return {"bearer.auth.token": "t", "bearer.auth.logical.cluster": "c"}


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [7, "00000000-0000-0000-0000-000000000007", GlobalId(7)])
def test_each_kind_of_number_has_its_own_file(tmp_path: Path, number: SchemaNumber) -> None:
    schema = RegisteredSchema(number, "AVRO", INT)
    SchemaFiles("a", tmp_path / "r").put(schema)
    files = SchemaFiles("a", tmp_path / "r")
    assert files.get(number) == schema
    others: list[SchemaNumber] = [7, "00000000-0000-0000-0000-000000000007", GlobalId(7)]
    assert [each for each in others if files.get(each) is not None] == [number]


def test_files_of_others_are_not_read(tmp_path: Path) -> None:
    schema = RegisteredSchema(1, "AVRO", INT, references=(("A", LONG),))
    files = SchemaFiles("a", tmp_path / "r")
    assert files.get(1) is None
    files.put(schema)
    assert files.get(1) == schema
    assert files.get(2) is None
    (tmp_path / "r").chmod(0o777)
    assert files.get(1) is None
    files.put(RegisteredSchema(2, "AVRO", INT))
    with files.asking(3):
        pass
    (tmp_path / "r").chmod(0o700)
    assert files.get(2) is None
    assert files.get(1) == schema


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": 1}', '{"id": 2, "kind": "", "text": ""}'])
def test_damaged_files_count_as_none(tmp_path: Path, text: str) -> None:
    files = SchemaFiles("a", tmp_path / "r")
    files.put(RegisteredSchema(1, "AVRO", INT))
    (tmp_path / "r" / "a" / "1.json").write_text(text)
    assert files.get(1) is None


def test_folders_that_nobody_uses_are_removed(tmp_path: Path) -> None:
    root = tmp_path / "r"
    for token in ("old", "used"):
        SchemaFiles(token, root).put(RegisteredSchema(1, "AVRO", INT))
        os.utime(root / token, (1, 1))
    assert SchemaFiles("used", root).get(1) is not None
    SchemaFiles("new", root).put(RegisteredSchema(1, "AVRO", INT))
    assert {each.name for each in root.iterdir()} == {"used", "new"}


def test_answers_of_before_are_kept_for_a_month(tmp_path: Path) -> None:
    root = tmp_path / "r"
    config, schema = RegistryConfig(Properties({"url": "http://a"})), RegisteredSchema(1, "X", INT)
    last = LastAnswers(config, root)
    last.put("a question", schema)
    (folder,) = root.iterdir()
    for days, there in ((29, True), (31, False)):
        os.utime(folder, (time.time() - days * 86_400,) * 2)
        SchemaFiles(f"new{days}", root).put(schema)
        assert (last.get("a question") is not None) is there
