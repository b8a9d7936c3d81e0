"""``kshare park``, ``unpark``, ``parked``, ``status`` on a mock cluster; how commands connect."""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.cli import main
from kshare.cli.connection import is_given, parse_properties, source_options
from kshare.cli.shared_arguments import add_connection
from kshare.core.progress import TopicPartition
from kshare.errors import KshareError, OptionsError
from kshare.group.log.retry_log import Reason, RetryLog
from kshare.group.log.topic import log_table
from kshare.kafka.parked_keys import PARKED_TOPIC
from kshare.options import parse_options
from kshare.testing import FakeCluster

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, PARKED_TOPIC: 1}) as running:
        yield running


@pytest.fixture
def run(cluster: FakeCluster, capsys: Any) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--bootstrap-servers", cluster.bootstrap_servers])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def parked(run: Run, *arguments: str) -> list[dict[str, str]]:
    code, out, _ = run("parked", "--json", *arguments)
    assert code == 0
    found: list[dict[str, str]] = json.loads(out)
    return found


# -- keys ------------------------------------------------------------------------------------------


def test_park_and_unpark(run: Run, monkeypatch: Any) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ann")
    assert run("park", "--topic", "orders", "--why", "bad JSON", "a", "b") == (
        0,
        "orders a: parked\norders b: parked\n",
        "",
    )
    assert [(one["topic"], one["key"], one["by"], one["why"]) for one in parked(run)] == [
        ("orders", "a", "ann", "bad JSON"),
        ("orders", "b", "ann", "bad JSON"),
    ]
    assert run("park", "--topic", "orders", "c", "b")[1] == (
        "orders c: parked\norders b: was parked already\n"
    )
    code, out, told = run("unpark", "--topic", "orders", "b", "x", "b")
    assert (code, out) == (0, "orders b: unparked\norders x: was not parked\n")
    assert len(told.splitlines()) == 2
    assert "behind a watermark it is late, and may be dropped" in told
    assert run("unpark", "--topic", "orders", "b") == (0, "orders b: was not parked\n", "")
    assert [one["key"] for one in parked(run)] == ["a", "c"]
    code, out, _ = run("parked")
    assert (code, out.splitlines()[0].split()) == (0, ["topic", "key", "since", "by", "why"])
    assert len(out.splitlines()) == 3


def test_parked_of_one_topic(run: Run, cluster: FakeCluster) -> None:
    cluster.create_topic("other")
    run("park", "--topic", "orders", "a")
    run("park", "--topic", "other", "a", "b")
    assert [one["key"] for one in parked(run, "--topic", "other")] == ["a", "b"]
    assert run("parked", "--topic", "third")[1] == "no key is parked\n"
    # The same key of another topic is another key.
    assert run("unpark", "--topic", "other", "a")[1] == "other a: unparked\n"
    assert [(one["topic"], one["key"]) for one in parked(run)] == [("orders", "a"), ("other", "b")]


def test_keys_are_any_bytes(run: Run) -> None:
    run("park", "--topic", "orders", "--hex", "00ff", "6B")
    run("park", "--topic", "orders", "schlüssel", "00ff")
    found = sorted((one["key"] for one in parked(run)), key=str)
    assert found == ["00ff", "k", "schlüssel", {"hex": "00ff"}]


def test_a_topic_that_does_not_exist_is_not_parked(run: Run) -> None:
    code, out, err = run("park", "--topic", "order", "a")
    assert (code, out) == (1, "")
    assert err.startswith("kshare park: topic order does not exist on 127.0.0.1:")
    assert parked(run) == []


def test_a_key_is_released_in_all_partitions_and_in_the_log_of_its_group(
    run: Run, cluster: FakeCluster
) -> None:
    cluster.create_topic("own-log")
    kafka = parse_options(
        {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "orders"},
        streaming=True,
    ).options.kafka
    places = [TopicPartition("orders", number) for number in range(2)]
    with closing(RetryLog(log_table(kafka, "own-log", "billing"), "billing")) as log:
        for number, place in enumerate(places):
            record = SimpleNamespace(
                offset=number, raw_key=b"b", topic_partition=place, failures=1, since=None
            )
            log.begin_sequence(record, Reason())
        command = ("unpark", "--topic", "orders", "--group", "billing", "--log-topic", "own-log")
        assert run(*command, "b", "x")[1] == "orders b: released\norders x: was not held\n"
        assert log.read().sequences == {}


def test_a_key_of_a_deleted_topic_can_be_unparked(run: Run, cluster: FakeCluster) -> None:
    value = b'{"by":"ann","when":"2026","why":""}'
    cluster.produce(PARKED_TOPIC, [(b'{"key":"61","topic":"gone"}', value)])
    assert run("unpark", "--topic", "gone", "a")[:2] == (0, "gone a: unparked\n")


def test_a_user_without_a_name(run: Run, monkeypatch: Any) -> None:
    def nobody() -> str:
        raise OSError("no name")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert run("park", "--topic", "orders", "a")[0] == 0
    assert parked(run)[0]["by"] == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["park", "--topic", "t", "k"], "which cluster? Give --bootstrap-servers"),
        (["unpark", "--topic", "t", "k"], "which cluster? Give --bootstrap-servers"),
        (["parked"], "which cluster? Give --bootstrap-servers"),
        (["park", "--bootstrap-servers", "x:1", "k"], "required: --topic"),
        (["park", "--topic", "", "k"], "argument --topic: it is empty; wanted a name"),
        (["unpark", "--topic", "t", "--group", "", "k"], "argument --group: it is empty"),
        (["replay", "--from", ""], "argument --from: it is empty"),
        (["park", "--bootstrap-servers", "x:1", "--topic", "t"], "required: KEY"),
        (
            ["park", "--bootstrap-servers", "x:1", "--topic", "t", "--hex", "0g"],
            "--hex: '0g' is not bytes in hexadecimal; wanted such as 00ff",
        ),
    ],
)
def test_wrong_arguments(arguments: list[str], said: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


# -- status ----------------------------------------------------------------------------------------


def checkpoint(folder: Path, offsets: str) -> str:
    for log, lines in (("offsets", ["v1", "{}", offsets]), ("commits", ["v1", "{}"])):
        (folder / log).mkdir(parents=True)
        (folder / log / "0").write_text("\n".join(lines))
    return str(folder)


def test_status_with_a_broker(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.produce("orders", [(b"k", b"v")] * 30)
    run("park", "--topic", "orders", "a")
    folder = checkpoint(tmp_path / "c", '{"orders":{"0":12}}')
    code, out, err = run("status", "--checkpoint", folder)
    assert (code, err) == (0, "")
    assert "orders-0: stable 12, log 0 to 30, lag 18\n" in out
    assert out.splitlines()[-1].split()[:2] == ["orders", "a"]
    code, out, _ = run("status", "--checkpoint", folder, "--json")
    (partition,) = json.loads(out)["partitions"]
    assert (partition["lag"], partition["end"]) == (18, 30)


def test_status_of_a_topic_that_is_gone(run: Run, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", '{"gone":{"0":12},"orders":{"0":0,"7":3}}')
    code, out, err = run("status", "--checkpoint", folder)
    assert code == 0
    assert err.startswith("warning: topic gone does not exist on ")
    assert "gone-0: stable 12\n" in out
    assert "orders-0: stable 0, log 0 to 0, lag 0\n" in out
    assert "orders-7: stable 3\n" in out


def test_status_without_a_broker(capsys: Any, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", '{"orders":{"0":12}}')
    plot = tmp_path / "x.svg"
    assert main(["status", "--checkpoint", folder, "--plot", str(plot)]) == 0
    assert capsys.readouterr().out == (
        f"{folder}: batch 0 planned, 0 committed\n\norders-0: stable 12\n"
    )
    assert plot.exists()
    assert main(["status", "--checkpoint", str(tmp_path / "none")]) == 1
    assert "there is no such directory" in capsys.readouterr().err


# -- how commands connect --------------------------------------------------------------------------


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_connection(parser)
    return parser.parse_args(arguments)


def test_what_is_given_further_up_wins(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=f:1\nclient.id=file\nrequest.timeout.ms=1000\n")
    given = ["--kafka-config", str(file)]
    config = source_options(parsed(*given)).kafka
    assert config.bootstrap_servers == (("f", 1),)
    assert (config.client_id, config.request_timeout_ms) == ("file", 1000)
    given += ["--option", "kafka.bootstrap.servers=o:2", "--option", "Kafka.Client.ID=option"]
    config = source_options(parsed(*given)).kafka
    assert config.bootstrap_servers == (("o", 2),)
    assert (config.client_id, config.request_timeout_ms) == ("option", 1000)
    config = source_options(parsed(*given, "--bootstrap-servers", "s:3,s:4")).kafka
    assert config.bootstrap_servers == (("s", 3), ("s", 4))


def test_is_given() -> None:
    assert not is_given(parsed())
    for one in (
        ["--bootstrap-servers", "x:1"],
        ["--option", "kafka.client.id=x"],
        ["--kafka-config", "x"],
    ):
        assert is_given(parsed(*one))


def test_all_faults_at_once() -> None:
    given = ["--option", "kafka.isolation.level=x", "--option", "kafka.request.timeout.ms=y"]
    with pytest.raises(OptionsError) as raised:
        source_options(parsed(*given))
    assert len(raised.value.problems) == 3
    assert "kafka.bootstrap.servers" in str(raised.value)


def test_warnings_are_told(capsys: Any) -> None:
    given = ["--bootstrap-servers", "x:1", "--option", "kafka.client.idd=x"]
    assert source_options(parsed(*given)).kafka.client_id == "kshare"
    assert capsys.readouterr().err.startswith("warning: option kafka.client.idd is ignored")


def test_an_option_is_one_of_kafkas_and_its_value_is_never_shown(capsys: Any) -> None:
    for option in ("sasl.password=hunter2", "kafka.sasl.password", "=hunter2"):
        with pytest.raises(SystemExit):
            parsed("--option", option)
        said = capsys.readouterr().err
        assert "wanted kafka.NAME=VALUE" in said
        assert "hunter2" not in said


def test_a_value_may_hold_an_equals_sign() -> None:
    given = ["--bootstrap-servers", "x:1", "--option", "kafka.client.id=a=b"]
    assert source_options(parsed(*given)).kafka.client_id == "a=b"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(KshareError, match=r"--kafka-config .*none: No such file or directory"):
        source_options(parsed("--kafka-config", str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("a=b", {"a": "b"}),
        ("a = b ", {"a": "b "}),
        ("a:b", {"a": "b"}),
        ("a b c", {"a": "b c"}),
        ("a\tb", {"a": "b"}),
        ("a", {"a": ""}),
        ("a==b", {"a": "=b"}),
        ("a = = b", {"a": "= b"}),
        ("  # no\n! no\n\n \t\na=b", {"a": "b"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\\\n   2\\\r\n3", {"a": "123"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("# no \\\na=b", {"a": "b"}),
        ("a=1\\", {"a": "1"}),
        (r"a\=\:\ b=c", {"a=: b": "c"}),
        (r"a=\t\n\r\f\q\\", {"a": "\t\n\r\fq\\"}),
        (r"a=\u00e9\ud83d\ude00", {"a": "é😀"}),
        (r"a=\ud83d", {"a": "\ufffd"}),
        ("a=x\x0by\x85z", {"a": "x\x0by\x85z"}),
        ("=v", {"": "v"}),
    ],
)
def test_properties_as_java_reads_them(text: str, found: dict[str, str]) -> None:
    assert parse_properties(text) == found


def test_an_escape_that_java_refuses() -> None:
    with pytest.raises(KshareError, match=r"\\u without four hexadecimal digits"):
        parse_properties(r"a=\u12")


def stored(text: str, *, name: bool) -> str:
    """As ``java.util.Properties.store`` writes it."""
    written = []
    for i, character in enumerate(text):
        if character in "\t\n\r\f":
            written.append({"\t": r"\t", "\n": r"\n", "\r": r"\r", "\f": r"\f"}[character])
        elif character in "\\=:#!" or (character == " " and (name or i == 0)):
            written.append("\\" + character)
        elif " " <= character <= "~":
            written.append(character)
        else:
            units = character.encode("utf-16-be")
            halves = (units[at : at + 2] for at in range(0, len(units), 2))
            written += [rf"\u{half.hex().upper()}" for half in halves]
    return "".join(written)


texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(" \t\n\\=:#!\f"))


@given(st.dictionaries(texts, texts, max_size=4))
def test_what_java_stores_is_read_again(properties: dict[str, str]) -> None:
    lines = [f"{stored(n, name=True)}={stored(v, name=False)}" for n, v in properties.items()]
    assert parse_properties("#comment\n" + "\n".join(lines)) == properties
