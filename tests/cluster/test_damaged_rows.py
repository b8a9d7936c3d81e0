"""Rows of parked keys and policies that others have written: passed over, named, deleted alone."""

import json
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.cli import main
from kshare.cluster.parked_keys import PARKED_TOPIC, ParkedKeys
from kshare.cluster.policies import Policies
from kshare.cluster.topics import POLICIES_TOPIC
from kshare.core.bounded_json import DAMAGE
from kshare.testing import FakeCluster, Record
from tests.support.effort import examples
from tests.support.parked_keys import keys_of


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={PARKED_TOPIC: 1, POLICIES_TOPIC: 1}) as running:
        yield running


def test_what_cannot_be_read_is_deleted_and_nothing_else(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A value, a key, and bombs of both; what a later record mends is not damaged any more."""
    good = json.dumps({"by": "b", "when": "w", "why": "y"})
    places = [json.dumps({"key": f"6{n}", "topic": "t"}, separators=(",", ":")) for n in range(3)]
    cluster.produce(
        PARKED_TOPIC,
        [
            Record(places[0], good),
            Record(places[1], "[" * 100_000),
            Record(places[2], '{"by": 1e999}'),
            Record(places[2], good),
            Record("{" * 100_000, good),
            Record('{"key": "61", "topic": "t", "topic": "u"}', good),
        ],
        partition=0,
    )
    with closing(keys_of(cluster)) as keys:
        before = set(keys.parked())
        assert before == {("t", b"\x60"), ("t", b"\x62")}
        assert keys.drop_damaged() == 3
        assert keys.drop_damaged() == 0
        assert set(keys.parked()) == before
    named = caplog.text.count("'kshare parked --drop-damaged'")
    assert named == 4
    caplog.clear()
    with closing(keys_of(cluster)) as fresh:
        assert set(fresh.parked()) == before
        assert fresh.drop_damaged() == 0
    assert len(caplog.text) < 10_000


SAMPLES = [
    b'{"key":"61","topic":"t"}',
    b'{"by":"b","when":"2026-01-01T00:00:00+00:00","why":"y"}',
    b'{"policy":"accept.range.fetch","topic":"orders"}',
    b'{"by":"b","value":"true","when":"w","why":"y"}',
]
PIECES = [
    b"",
    b"[" * 40,
    b"}",
    b'"',
    b"\xff",
    b"\\ud800",
    b"1e999",
    b"NaN",
    b"9" * 5000,
    b"null",
    b",",
]


@examples(300)
@given(st.sampled_from(SAMPLES), st.data())
def test_whatever_a_row_is_it_is_read_or_damage(sample: bytes, data: st.DataObject) -> None:
    mutated = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(mutated)))
        width = data.draw(st.integers(0, 4))
        mutated[at : at + width] = data.draw(st.sampled_from(PIECES) | st.binary(max_size=4))
    for table in (ParkedKeys, Policies):
        for decode in (table.decode_key, table.decode_value):
            with suppress(*DAMAGE):
                found: Any = decode(bytes(mutated))
                texts = [each for each in vars_of(found) if isinstance(each, str)]
                "".join(texts).encode()


def vars_of(found: Any) -> list[Any]:
    """The fields of a decoded row."""
    return [*found] if isinstance(found, tuple) else [getattr(found, n) for n in found.__slots__]


@pytest.mark.parametrize(
    ("topic", "command"), [(PARKED_TOPIC, ["parked"]), (POLICIES_TOPIC, ["policy", "list"])]
)
def test_the_commands_delete_what_cannot_be_read(
    cluster: FakeCluster, capsys: Any, topic: str, command: list[str]
) -> None:
    cluster.produce(topic, [Record("{" * 5000, "{}")], partition=0)
    given = [*command, "--drop-damaged", "--bootstrap-servers", cluster.bootstrap_servers]
    for count in ("1 damaged record deleted", "0 damaged records deleted"):
        assert main(given) == 0
        assert count in capsys.readouterr().err
