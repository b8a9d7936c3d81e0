"""Rows of parked keys and policies that others have written: passed over, named, deleted alone."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from kshare.cli import main
from kshare.kafka.parked_keys import PARKED_TOPIC
from kshare.kafka.topics import POLICIES_TOPIC
from kshare.testing import FakeCluster, Record
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
