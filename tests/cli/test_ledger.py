"""``kshare ledger`` on a mock cluster."""

import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from kshare.cli import main
from kshare.errors import AuthorizationError, LedgerRecordError
from kshare.kafka.topics import LEDGER_TOPIC
from kshare.options.sink import parse_sink_options
from kshare.query.produce.ledger import Ledger
from kshare.query.produce.ledger_state import Entry, State, encode
from kshare.testing import FakeCluster, watermarks

OWN = f"{LEDGER_TOPIC}.a"
STATE = State(4, "r1", ("r1",), (Entry(0, 0, 1, 0, 3),), ended=True)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={OWN: 2}) as running:
        yield running


def run(cluster: FakeCluster, capsys: Any, *arguments: str) -> tuple[int, str]:
    code = main(["ledger", *arguments, "--bootstrap-servers", cluster.bootstrap_servers])
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "said", "is_damaged"),
    [
        (encode(STATE), "batch 4 of run r1, with 3 rows", False),
        (encode(STATE.retract()), "batch 3 of run r1, with an unknown number of rows", False),
        (b"[" * 5000, f"topic {OWN}, partition ", True),
        (b'{"v":2}', "use the kshare that wrote it", True),
    ],
)
def test_the_record_of_one_query_is_shown_and_dropped(
    cluster: FakeCluster, capsys: Any, value: bytes, said: str, *, is_damaged: bool
) -> None:
    for query, written in (("p", encode(STATE)), ("q", b"{"), ("q", value)):
        cluster.produce(OWN, [(query.encode(), written)], partition=zlib.crc32(query.encode()) % 2)
    named = ("--query", "q", "--ledger-topic", OWN)
    for more, expected in ((("show",), int(is_damaged)), (("drop", "--dry-run"), 0)):
        code, out = run(cluster, capsys, *more, *named)
        assert code == expected
        assert said in out
        assert "deleted" not in out
    code, out = run(cluster, capsys, "drop", *named)
    assert (code, out.endswith("deleted\n")) == (0, True)
    assert run(cluster, capsys, "show", *named) == (0, "query q: nothing\n")
    _, out = run(cluster, capsys, "show", "--query", "p", "--ledger-topic", OWN, "--json")
    assert json.loads(out)["said"].startswith("batch 4")


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_of_a_misspelt_query_nothing_is_said_to_be_deleted(
    cluster: FakeCluster, capsys: Any, more: tuple[str, ...]
) -> None:
    cluster.produce(OWN, [(b"q", encode(STATE))] * 2, partition=zlib.crc32(b"q") % 2)
    ends = [watermarks(cluster.bootstrap_servers, OWN, number) for number in range(2)]
    command = ("drop", "--query", "qq", "--ledger-topic", OWN, *more)
    assert run(cluster, capsys, *command) == (0, "query qq: nothing\nnothing to delete\n")
    found = json.loads(run(cluster, capsys, *command, "--json")[1])
    assert found == {"query": "qq", "said": "nothing", "damaged": False, "dropped": False}
    assert ends == [watermarks(cluster.bootstrap_servers, OWN, number) for number in range(2)]


def test_a_damaged_record_stops_its_own_query_until_it_is_dropped(
    cluster: FakeCluster, capsys: Any
) -> None:
    given = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "topic": "orders",
        "exactlyOnce": "true",
        "ledgerTopic": OWN,
        "transactionalIdPrefix": "billing",
    }
    options = parse_sink_options(given, streaming=True).options
    cluster.produce(OWN, [(b"q", b"{")], partition=zlib.crc32(b"q") % 2)
    with Ledger(options, "p") as other:
        assert other.read() is None
    with Ledger(options, "q") as ledger:
        with pytest.raises(
            LedgerRecordError, match=f"topic {OWN}, partition ., offset 0, holds a record"
        ):
            ledger.read()
        run(cluster, capsys, "drop", "--query", "q", "--ledger-topic", OWN)
        assert ledger.read() is None
        assert ledger._producer_config()["transactional.id"] == "billing-ledger-q"
        ledger.take_over()
        ledger.write(STATE)
    with Ledger(options, "q") as ledger:
        assert ledger.read() == STATE


@pytest.mark.parametrize("action", ["show", "drop"])
def test_a_record_that_kafka_does_not_hand_out_is_not_damaged_and_not_dropped(
    cluster: FakeCluster, capsys: Any, monkeypatch: Any, action: str
) -> None:
    cluster.produce(OWN, [(b"q", encode(STATE))], partition=zlib.crc32(b"q") % 2)
    named = ("--query", "q", "--ledger-topic", OWN)

    def refuse(_: object) -> None:
        raise AuthorizationError("may not read")

    with monkeypatch.context() as patch:
        patch.setattr("kshare.kafka.compacted_topic.CompactedTopic.read", refuse)
        given = [action, *named, "--json", "--bootstrap-servers", cluster.bootstrap_servers]
        assert main(["ledger", *given]) == 1
        said = capsys.readouterr()
        assert (said.out, "may not read" in said.err) == ("", True)
    assert "batch 4" in run(cluster, capsys, "show", *named)[1]


def test_a_ledger_that_is_not_there_is_named(cluster: FakeCluster, capsys: Any) -> None:
    given = ("show", "--query", "q", "--ledger-topic", "nope")
    assert main(["ledger", *given, "--bootstrap-servers", cluster.bootstrap_servers]) == 1
    assert "nope" in capsys.readouterr().err
