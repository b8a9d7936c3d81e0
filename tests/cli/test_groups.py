"""``kshare groups`` and ``kshare owners`` on a mock cluster."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kshare.cli import main
from kshare.core.hashing import key_hash
from kshare.core.progress import TopicPartition
from kshare.group import KeySharedConsumer
from kshare.group.protocol.owners.range_owners import RangeOwner
from kshare.group.session.session import GroupSession
from kshare.group.tools.status import RangeLag, range_lags
from kshare.testing import FakeCluster
from tests.support.groups import (
    GROUP,
    LOG,
    LOWER,
    SECONDS,
    T0,
    T1,
    UPPER,
    commit,
    eventually,
    fetch_as_brokers_do,
    member,
    quick_settings,
    rectangle,
)

Run = Callable[..., tuple[int, str, str]]
LOW_KEY, HIGH_KEY = b"customer-7", b"customer-2"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, LOG: 3}) as running:
        running.produce("orders", [(b"k", b"v")] * 100, partition=0)
        yield running


@pytest.fixture
def run(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--bootstrap-servers", cluster.bootstrap_servers])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def lower(cluster: FakeCluster) -> Iterator[GroupSession]:
    """A member that owns the lower half; one that owned the upper half has left."""
    servers = cluster.bootstrap_servers
    with member(servers, LOWER, application_server="pod-3:8080") as lower:
        with member(servers, UPPER) as upper:
            commit(upper, rectangle(0, 20, UPPER))
        commit(lower, rectangle(0, 10, LOWER), rectangle(30, 35, LOWER))
        eventually(lambda: commit(lower) == 10)
        yield lower


def test_no_groups(run: Run) -> None:
    assert run("groups") == (0, "no group has committed anything\n", "")
    assert run("groups", "--json") == (0, "[]\n", "")


@pytest.mark.parametrize(
    "command", [("groups",), ("owners",), ("offsets",), ("offsets", "drop"), ("groups", "--json")]
)
def test_a_group_that_nobody_knows(run: Run, command: tuple[str, ...]) -> None:
    code, out, err = run(*command, "--group", "nosuch")
    assert (code, out) == (1, "")
    assert err == (
        f"kshare {command[0]}: group nosuch does not exist: brokers know no members and no "
        f"offsets of it, and topic {LOG} has none of its records\n"
    )


@pytest.mark.usefixtures("lower")
def test_the_list_of_groups(run: Run, cluster: FakeCluster) -> None:
    with member(cluster.bootstrap_servers, LOWER, group_id="audit"):
        code, out, err = run("groups")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["group", "state", "members", "partitions", "topics"],
        ["audit", "unknown", "1", "1", "orders"],
        [GROUP, "unknown", "1", "1", "orders"],
    ]
    listed = json.loads(run("groups", "--json")[1])
    assert listed[1] == {
        "group": GROUP,
        "state": "unknown",
        "members": 1,
        "partitions": [["orders", 0]],
    }


def test_one_group(run: Run, lower: GroupSession, tmp_path: Path) -> None:
    code, out, err = run("groups", "--group", GROUP)
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines == [
        f"group {GROUP}: unknown, 1 member, lag 165".split(),
        [],
        ["member", "ranges", "lag", "client", "id", "host"],
        [lower.session_id, "1", "85", "(not", "joined)", "pod-3:8080"],
        [],
        ["partition", "key", "hashes", "position", "lag", "member"],
        ["orders-0", *["0.00", "%", "to", "50.00", "%"], "10", "85", lower.session_id],
        ["orders-0", *["50.00", "%", "to", "100.00", "%"], "20", "80", "(nobody)"],
    ]
    shown = json.loads(run("groups", "--group", GROUP, "--json")[1])
    assert shown.pop("keeps_log") is True
    assert shown == {
        "group": GROUP,
        "state": "unknown",
        "epoch": None,
        "generation": None,
        "leader": None,
        "members": [
            {
                "member": lower.session_id,
                "member_id": None,
                "client_id": None,
                "instance_id": None,
                "address": None,
                "host": "pod-3:8080",
                "application_server": "pod-3:8080",
            }
        ],
        "ranges": [
            {
                "topic": "orders",
                "partition": 0,
                "hashes": [part.lo, part.hi],
                "member": who,
                "position": position,
                "lag": lag,
            }
            for part, who, position, lag in (
                (LOWER, lower.session_id, 10, 85),
                (UPPER, None, 20, 80),
            )
        ],
        "chunks": [],
    }
    picture = tmp_path / "group.svg"
    assert run("groups", "--group", GROUP, "--plot", str(picture))[0] == 0
    assert f"group {GROUP}" in picture.read_text()


def test_the_owner_of_a_key(run: Run, lower: GroupSession) -> None:
    arguments = ("owners", "--group", GROUP, "--topic", "orders", "--key")
    hash_ = key_hash(LOW_KEY, 0)
    assert hash_ in LOWER
    said = f"orders-0, key hash {hash_}: {lower.session_id} on pod-3:8080\n"
    assert run(*arguments, LOW_KEY.decode()) == (0, said, "")
    assert run(*arguments, LOW_KEY.hex(), "--hex") == (0, said, "")
    assert json.loads(run(*arguments, LOW_KEY.decode(), "--json")[1]) == {
        "topic": "orders",
        "partition": 0,
        "hash": hash_,
        "member": lower.session_id,
        "host": "pod-3",
        "port": 8080,
    }
    assert key_hash(HIGH_KEY, 0) in UPPER
    code, out, _ = run(*arguments, HIGH_KEY.decode())
    assert (code, out) == (1, f"orders-0, key hash {key_hash(HIGH_KEY, 0)}: nobody\n")
    code, out, _ = run(*arguments, HIGH_KEY.decode(), "--partition", "0", "--json")
    assert (code, json.loads(out)["member"]) == (1, None)


def test_the_owners_of_all_ranges(run: Run, lower: GroupSession) -> None:
    code, out, _ = run("owners", "--group", GROUP)
    assert (code, [line.split() for line in out.splitlines()]) == (
        0,
        [
            ["partition", "key", "hashes", "member", "host"],
            ["orders-0", *["0.00", "%", "to", "50.00", "%"], lower.session_id, "pod-3:8080"],
        ],
    )
    assert json.loads(run("owners", "--group", GROUP, "--json")[1]) == [
        {
            "topic": "orders",
            "partition": 0,
            "hashes": [LOWER.lo, LOWER.hi],
            "member": lower.session_id,
            "host": "pod-3",
            "port": 8080,
        }
    ]
    assert run("owners", "--group", GROUP, "--topic", "other")[1].startswith("nobody owns")


def test_a_group_that_was_joined(run: Run, cluster: FakeCluster) -> None:
    config = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": GROUP,
        "auto.offset.reset": "earliest",
        "claim.timeout.ms": 500,
    }
    with KeySharedConsumer(config) as consumer:
        consumer.subscribe(["orders"])
        eventually(lambda: consumer.poll(0.05) is not None)
        shown = json.loads(run("groups", "--group", GROUP, "--json")[1])
        (who,) = shown["members"]
        assert (who["member"], shown["leader"]) == (consumer.memberid(), consumer.memberid())
        assert who["member_id"]
        assert who["application_server"] is None
        assert shown["epoch"] is not None
        assert shown["generation"] >= 1
        (part,) = shown["ranges"]
        assert (part["hashes"], part["member"]) == ([0, 2**63], consumer.memberid())
        out = run("groups", "--group", GROUP)[1]
        assert f"epoch {shown['epoch']} (generation {shown['generation']}), 1 member" in out


@pytest.fixture
def sharers(cluster: FakeCluster) -> Iterator[dict[str, dict[str, int]]]:
    """Two members that share a partition by chunks of 10; what each has leased and done."""
    config = {
        **quick_settings(cluster.bootstrap_servers),
        "consumption.order": "none",
        "cooperative.chunk.records": 10,
        "cooperative.lease.timeout.ms": 60_000,
        "enable.auto.commit": False,
    }
    with KeySharedConsumer(config) as first, KeySharedConsumer(config) as second:
        for consumer in (first, second):
            consumer.assign({("orders", 0): []})
        chunk = first.consume(10, SECONDS)
        assert len(chunk) == 10
        assert second.consume(5, SECONDS)
        begin = second.position()[T0] - 5
        first.commit()
        yield {
            first.memberid(): {"done": 0 if chunk[0].offset() == 0 else 10},
            second.memberid(): {"done": 0, "first": begin},
        }


def test_a_group_without_key_order(run: Run, sharers: dict[str, dict[str, int]]) -> None:
    code, out, err = run("groups", "--group", GROUP)
    assert (code, err) == (0, "")
    assert "cooperative: chunks" in out
    assert "(2 share it)" in out
    assert "0.00 %" not in out
    shown = json.loads(run("groups", "--group", GROUP, "--json")[1])
    assert [each["member"] for each in shown["ranges"]] == [None]
    assert sorted(each["member"] for each in shown["chunks"]) == sorted(sharers)
    for each in shown["chunks"]:
        assert (each["topic"], each["partition"]) == ("orders", 0)
        assert each["leased"] % 10 == 0
        assert each["leased"] > 0
        assert each["done"] == sharers[each["member"]]["done"]

    rows = json.loads(run("owners", "--group", GROUP, "--json")[1])
    assert [(row["hashes"], row["member"]) for row in rows] == [
        (None, member) for member in sorted(sharers)
    ]
    assert "cooperative: chunks" in run("owners", "--group", GROUP)[1]
    code, out, _ = run("owners", "--group", GROUP, "--topic", "orders", "--key", "a")
    assert code == 1
    assert out.endswith(": nobody, as 2 members share it (cooperative: chunks)\n")


def test_ranges_of_partitions_without_offsets_or_owners() -> None:
    owners = [RangeOwner(T1, UPPER, "a")]
    assert list(range_lags(owners, {}, {})) == [
        RangeLag(T1, LOWER, None, None, None),
        RangeLag(T1, UPPER, "a", None, None),
    ]
    assert list(range_lags([], {}, {TopicPartition("other", 0): 5})) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("groups", "--plot", "x.svg"),
        ("owners", "--group", GROUP, "--key", "a"),
        ("owners", "--group", GROUP, "--hex"),
        ("owners", "--group", GROUP, "--partition", "1"),
        ("owners", "--group", GROUP, "--topic", "orders", "--key", "xy", "--hex"),
        ("owners",),
    ],
)
def test_what_is_not_understood(run: Run, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    assert caught.value.code == 2


@pytest.mark.parametrize("command", [("groups",), ("owners", "--group", GROUP)])
def test_which_cluster(command: tuple[str, ...], capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main([*command])
    assert "which cluster?" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["groups", "owners", "offsets", "top"])
def test_a_group_without_a_name(run: Run, capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run(command, "--group", "")
    assert ended.value.code == 2
    assert "argument --group: it is empty; wanted a name" in capsys.readouterr().err


@pytest.mark.usefixtures("lower")
@pytest.mark.parametrize("partition", ["-1", "1"])
def test_a_partition_that_does_not_exist_has_no_owner(
    run: Run, capsys: pytest.CaptureFixture[str], partition: str
) -> None:
    key = ("--topic", "orders", "--key", LOW_KEY.decode())
    assert run("owners", "--group", GROUP, *key, "--partition", "0")[0] == 0
    with pytest.raises(SystemExit) as ended:
        run("owners", "--group", GROUP, *key, "--partition", partition)
    assert ended.value.code == 2
    said = f"argument --partition: topic orders has no partition {partition}; wanted 0 to 0"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ("groups",),
        ("groups", "--group", GROUP),
        ("owners", "--group", GROUP),
        ("top", "--once", "--group", GROUP),
        ("unpark", "--topic", "orders", "k", "--group", GROUP),
    ],
)
def test_a_log_that_does_not_exist(run: Run, command: tuple[str, ...]) -> None:
    code, out, err = run(*command, "--log-topic", "own-lgo")
    assert (code, out) == (1, "")
    said = f"kshare {command[0]}: argument --log-topic: topic own-lgo does not exist on "
    assert err.startswith(said)


REPLAY = ("replay", "--from", "dlq", "--topic", "orders", "--release")
UNPARK = ("unpark", "--topic", "orders", "customer-7")


@pytest.mark.parametrize("command", [UNPARK, REPLAY])
def test_a_misspelt_group_has_released_nothing(
    run: Run, cluster: FakeCluster, command: tuple[str, ...]
) -> None:
    """Nor was a key "not held": who has misspelt the group believes that it goes on."""
    cluster.create_topic("dlq")
    code, out, err = run(*command, "--group", "biling")
    assert (code, out) == (1, "")
    assert err.startswith(f"kshare {command[0]}: group biling does not exist: brokers know no ")


@pytest.mark.usefixtures("lower")
def test_a_group_that_is_known_may_hold_no_key(run: Run, cluster: FakeCluster) -> None:
    cluster.create_topic("dlq")
    said = "orders customer-7: was not held\n"
    assert run(*UNPARK, "--group", GROUP) == (0, said, "")
    assert run(*REPLAY, "--group", GROUP) == (0, "no key to release\n", "")


@pytest.mark.parametrize(
    "command",
    [("groups",), ("owners",), ("top", "--once"), UNPARK, REPLAY],
    ids=lambda each: each[0],
)
def test_the_log_of_others(
    cluster: FakeCluster, run: Run, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_as_brokers_do(monkeypatch, T0)
    cluster.create_topic("own-log")
    cluster.create_topic("dlq")
    with member(cluster.bootstrap_servers, individual_commit_topic="own-log") as session:
        commit(session, rectangle(0, 10))
        code, out, err = run(*command, "--group", GROUP)
    assert (code, out) == (1, "")
    assert err == (
        f"kshare {command[0]}: offsets of group {GROUP} (orders-0) belong to the log own-log, not "
        f"to {LOG}, which was read: name it with --log-topic\n"
    )
