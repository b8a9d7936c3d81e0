"""``kshare policy`` on a mock cluster."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kshare.cli import main
from kshare.kafka.topics import POLICIES_TOPIC
from kshare.testing import FakeCluster

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, POLICIES_TOPIC: 1}) as running:
        yield running


@pytest.fixture
def run(cluster: FakeCluster, capsys: Any) -> Run:
    def run(*arguments: str) -> tuple[int, str]:
        code = main(["policy", *arguments, "--bootstrap-servers", cluster.bootstrap_servers])
        return code, capsys.readouterr().out

    return run


def test_set_and_list(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ann")
    assert run("list") == (0, "no policy is set: all is accepted\n")
    why = "one reader is enough"
    given = ("accept.range.fetch", "false", "--topic", "orders", "--why", why)
    assert run("set", *given) == (0, "accept.range.fetch of topic orders is false\n")
    assert run("set", "accept.individual.commit", "false") == (
        0,
        "accept.individual.commit is false\n",
    )
    code, out = run("list")
    assert code == 0
    (header, first, second) = (line.split() for line in out.splitlines())
    assert header == ["policy", "topic", "value", "since", "by", "why"]
    assert first[:3] == ["accept.individual.commit", "(all)", "false"]
    assert second[:3] == ["accept.range.fetch", "orders", "false"]
    listed = json.loads(run("list", "--json")[1])
    assert [row.pop("since")[-6:] for row in listed] == ["+00:00"] * 2
    assert listed[1] == {
        "policy": "accept.range.fetch",
        "topic": "orders",
        "value": False,
        "by": "ann",
        "why": why,
    }
    assert listed[0]["topic"] is None


def test_unset(run: Run) -> None:
    assert run("set", "accept.range.fetch", "false", "--topic", "orders")[0] == 0
    of_orders = "accept.range.fetch of topic orders"
    unset = ("unset", "accept.range.fetch", "--topic", "orders")
    assert run(*unset) == (0, f"{of_orders} is not set any more: it accepts\n")
    assert run("list") == (0, "no policy is set: all is accepted\n")
    assert run(*unset) == (0, f"{of_orders} was not set: it accepts\n")
    gone = run("unset", "accept.range.fetch", "--topic", "gone")
    assert gone == (0, "accept.range.fetch of topic gone was not set: it accepts\n")
    with pytest.raises(SystemExit):
        run("unset", "accept.range.fetch")


@pytest.mark.parametrize(
    "wrong",
    [
        ("accept.range.fetch", "false"),
        ("accept.individual.commit", "false", "--topic", "orders"),
        ("accept.nothing", "false"),
        ("accept.range.fetch", "maybe", "--topic", "orders"),
    ],
)
def test_what_cannot_be_set(run: Run, wrong: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("set", *wrong)
    assert caught.value.code == 2
    assert run("list") == (0, "no policy is set: all is accepted\n")
