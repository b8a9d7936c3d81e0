"""``kshare replay`` on a mock cluster: where letters may go, and what stays."""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from kshare.cli import main
from kshare.core.progress import TopicPartition
from kshare.dead_letters.writer import HEADERS
from kshare.group.config.consumer_config import consumer_config
from kshare.group.log.retry_log import Reason, RetryLog
from kshare.group.log.topic import log_table
from kshare.testing import FakeCluster, Record, watermarks
from tests.support.groups import GROUP, LOG

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    topics = {"orders": 1, "payments": 1, "dlq": 1, LOG: 1}
    with FakeCluster(topics=topics) as running:
        letters = [letter("orders", at) for at in range(3)] + [letter("payments", 7)]
        running.produce("dlq", letters, partition=0)
        yield running


@pytest.fixture
def run(cluster: FakeCluster, capsys: Any) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        quick = ["--option", "kafka.check.crcs=false"]
        servers = ["--bootstrap-servers", cluster.bootstrap_servers]
        code = main(["replay", "--from", "dlq", *arguments, *quick, *servers])
        return code, *capsys.readouterr()

    return run


def letter(topic: str, at: int, partition: str = "0", why: str = "") -> Record:
    values = (topic, partition, str(at), "builtins.ValueError", why)
    headers = [(name, value.encode()) for name, value in zip(HEADERS, values, strict=False)]
    return Record(b"k", b"v%d" % at, headers=headers)


def ends(cluster: FakeCluster) -> list[int]:
    return [watermarks(cluster.bootstrap_servers, topic)[1] for topic in ("orders", "payments")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_named_topic_it_shows_what_would_go_where_and_asks(
    run: Run, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))  # no terminal: a script
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == "orders: 3 letters\npayments: 1 letter\n"
    assert "--topic" in err
    assert "--yes" in err
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert run()[0] == 1
    assert ends(cluster) == [0, 0]
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    code, said, _ = run()
    asked = "orders: 3 letters\npayments: 1 letter\nPut them back to these topics? [y/N] "
    assert (code, said) == (0, asked + "orders: 3 put back\npayments: 1 put back\n")
    assert run("--yes")[1] == "nothing to put back\n"


def test_letters_of_topics_that_are_not_named_stay_and_are_counted(
    run: Run, cluster: FakeCluster
) -> None:
    assert run("--topic", "orders") == (
        0,
        "orders: 3 put back\npayments: 1 letter stay, not named\n",
        "",
    )
    assert ends(cluster)[1] == 0
    assert run("--topic", "orders", "--topic", "payments")[1] == "payments: 1 put back\n"


def test_bad_letters_are_listed_and_stay(run: Run, cluster: FakeCluster) -> None:
    cluster.produce("dlq", [letter("orders", 8, "9" * 5_000), letter("orders", 9)], partition=0)
    code, out, err = run("--yes")
    assert (code, out) == (1, "")
    assert "dlq-0 offset 4: it is no dead letter" in err
    assert "--skip-bad" in err
    assert run("--dry-run")[0] == 1
    code, out, _ = run("--yes", "--skip-bad")
    assert code == 0
    assert out.startswith("orders: 4 put back\npayments: 1 put back\nstays: dlq-0 offset 4: it is")


def test_a_letter_cannot_forge_a_line_of_the_dry_run(run: Run, cluster: FakeCluster) -> None:
    cluster.produce("dlq", [letter("orders", 4, why="\x1b[2K\rk\nforged")], partition=0)
    out = run("--dry-run")[1]
    assert "\x1b" not in out
    assert "\r" not in out
    assert len(out.splitlines()) == 6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--release"], "--release and --group belong together"),
        (["--group", "g"], "--release and --group belong together"),
        (["--release", "--group", "g", "--to", "other"], "leave --to out"),
        (["--release", "--group", "g", "--dry-run"], "leave --dry-run out"),
    ],
)
def test_arguments_that_do_not_fit(run: Run, capsys: Any, arguments: list[str], said: str) -> None:
    with pytest.raises(SystemExit):
        run(*arguments)
    assert said in capsys.readouterr().err


def test_a_key_that_is_held_is_found_though_its_letters_are_gone(
    run: Run, cluster: FakeCluster
) -> None:
    """Letters go only where those go that were agreed to; what is held is another question."""
    kafka = consumer_config(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": GROUP}
    ).kafka
    with closing(RetryLog(log_table(kafka, LOG, GROUP), GROUP)) as log:
        for topic, key in (("invoices", b"gone"), ("orders", b"k")):
            log.begin_sequence(
                SimpleNamespace(
                    offset=0,
                    raw_key=key,
                    topic_partition=TopicPartition(topic, 0),
                    failures=1,
                    since=None,
                ),
                Reason(),
            )
    lines = "{}-0 {}: no letters, not released: kshare unpark releases it\n"
    invoices, orders = lines.format("invoices", "gone"), lines.format("orders", "k")
    cluster.create_topic("invoices")
    cluster.create_topic("empty-dlq")
    held = ("--from", "empty-dlq", "--release", "--group", GROUP)
    assert run(*held, "--yes") == (0, invoices + orders, "")
    assert run(*held, "--topic", "orders") == (0, orders, "")


def test_letters_of_named_topics_are_put_elsewhere(run: Run, cluster: FakeCluster) -> None:
    """``--topic`` is where they came from; ``--to`` is where all of these go."""
    cluster.create_topic("orders.fixed")
    named = ("--topic", "orders", "--to", "orders.fixed")
    code, out, _ = run(*named, "--dry-run")
    assert code == 0
    assert out.splitlines()[-2:] == [
        "3 letters would be put back",
        "payments: 1 letter stay, not named",
    ]
    said = "orders.fixed: 3 put back\npayments: 1 letter stay, not named\n"
    assert run(*named) == (0, said, "")
    assert watermarks(cluster.bootstrap_servers, "orders.fixed")[1] >= 3
    assert ends(cluster) == [0, 0]
    assert run("--to", "orders.fixed") == (0, "orders.fixed: 1 put back\n", "")


def test_letters_of_other_topics_are_no_fault(run: Run, cluster: FakeCluster) -> None:
    """Of those that were not named, it does not matter whether they could be put back."""
    bad = [letter("payments", 8, "7"), letter("x" * 300, 9), letter("orders", 9, "none")]
    cluster.produce("dlq", bad, partition=0)
    code, out, _ = run("--topic", "orders")
    assert code == 0
    assert out.splitlines() == [
        "orders: 3 put back",
        "(an unknown topic): 1 letter stay, not named",
        "payments: 2 letters stay, not named",
        f"{'x' * 260}: 1 letter stay, not named",
    ]
