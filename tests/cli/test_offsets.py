"""``kshare offsets`` on a mock cluster."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kshare.cli import main
from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import TopicPartition
from kshare.group.log.primary import PrimaryOffsets
from kshare.group.protocol.commit_log.start import Anchor, Primary
from kshare.group.session.session import GroupSession
from kshare.group.tools.description import GroupDescription, JoinedMember
from kshare.kafka.cluster import Cluster
from kshare.options import Subscribe
from kshare.testing import FakeCluster
from tests.support.groups import (
    GROUP,
    LOG,
    LOWER,
    SECONDS,
    T0,
    UPPER,
    closing_session,
    commit,
    eventually,
    fetch_as_brokers_do,
    group_config,
    member,
    rectangle,
    start_of,
)

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, LOG: 1}) as running:
        running.produce("orders", [(b"k", b"v")] * 100, partition=0)
        yield running


@pytest.fixture
def run(cluster: FakeCluster, capsys: Any) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        servers = ["--bootstrap-servers", cluster.bootstrap_servers]
        code = main(["offsets", *arguments, "--group", GROUP, *servers])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def committed(cluster: FakeCluster) -> None:
    servers = cluster.bootstrap_servers
    with member(servers, LOWER) as lower, member(servers, UPPER) as upper:
        commit(upper, rectangle(0, 20, UPPER), rectangle(30, 40, UPPER))
        commit(lower, rectangle(0, 10, LOWER), rectangle(30, 35, LOWER))
        eventually(lambda: commit(lower) == 10)


@pytest.mark.usefixtures("committed")
def test_a_topic_without_offsets(run: Run) -> None:
    assert run("--topic", "other") == (
        0,
        f"group {GROUP} has committed nothing of topic other\n",
        "",
    )
    assert run("--topic", "other", "--json") == (0, "[]\n", "")


@pytest.mark.usefixtures("committed")
def test_what_is_committed(run: Run, tmp_path: Path) -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    head, _, *ranges = out.splitlines()
    assert head.startswith("orders-0: stable 10, front 40, log 0 to 100, lag 85, ")
    assert [line.split() for line in ranges] == [
        ["0.00", "%", "to", "50.00", "%", "10", "85"],
        ["50.00", "%", "to", "100.00", "%", "20", "70"],
    ]
    code, out, _ = run("list", "--json")
    assert (code, json.loads(out)) == (
        0,
        [
            {
                "topic": "orders",
                "partition": 0,
                "offset": 10,
                "front": 40,
                "end": 100,
                "lag": 85,
                "range_offsets": [[30, 35]],
                "individual_commits": [
                    {"offsets": [10, 20], "hashes": [UPPER.lo, UPPER.hi]},
                    {"offsets": [30, 35], "hashes": [LOWER.lo, LOWER.hi]},
                    {"offsets": [30, 40], "hashes": [UPPER.lo, UPPER.hi]},
                ],
                "metadata": "",
                "leader_epoch": None,
            }
        ],
    )
    assert run("--topic", "other")[1] == f"group {GROUP} has committed nothing of topic other\n"
    picture = tmp_path / "offsets.svg"
    assert run("--plot", str(picture))[0] == 0
    assert f"group {GROUP}" in picture.read_text()


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize(
    ("to", "offset"),
    [("earliest", 0), ("latest", 100), ("stable", 10), ('{"orders": {"0": 7}}', 7)],
)
def test_a_reset(run: Run, to: str, offset: int) -> None:
    assert run("reset", "--to", to) == (0, f"orders-0: starts at offset {offset}\n", "")
    (shown,) = json.loads(run("--json")[1])
    assert (shown["offset"], shown["individual_commits"]) == (offset, [])


@pytest.fixture
def two_topics(cluster: FakeCluster) -> None:
    """Both topics stand at 10, with something that is committed above."""
    cluster.create_topic("audit", 2)
    cluster.produce("audit", [(b"k", b"v")] * 30, partition=0)
    with closing_session(GroupSession(group_config(cluster.bootstrap_servers))) as session:
        audit = TopicPartition("audit", 0)
        session.claim({T0: ALL_HASHES, audit: ALL_HASHES})
        start_of(session, audit)
        start_of(session, T0)
        done = (rectangle(0, 10), rectangle(20, 25))
        eventually(lambda: session.commit({T0: done, audit: done}, SECONDS) == {T0: 10, audit: 10})


def shown(run: Run) -> dict[str, tuple[int, bool]]:
    """Stable offset of each partition, and whether anything is committed above."""
    listed = json.loads(run("--json")[1])
    return {
        f"{each['topic']}-{each['partition']}": (each["offset"], bool(each["individual_commits"]))
        for each in listed
    }


@pytest.mark.usefixtures("two_topics")
def test_a_reset_of_one_topic_leaves_all_others_alone(run: Run) -> None:
    code, out, err = run("reset", "--to", "latest", "--topic", "audit")
    assert (code, err) == (0, "")
    assert out == "audit-0: starts at offset 30\naudit-1: starts at offset 0\n"
    assert shown(run) == {"audit-0": (30, False), "audit-1": (0, False), "orders-0": (10, True)}


@pytest.mark.usefixtures("two_topics")
def test_a_drop_of_one_topic_leaves_all_others_alone(run: Run) -> None:
    would = run("drop", "--topic", "audit", "--dry-run")
    assert would[:2] == (0, f"3 records of group {GROUP} would be deleted\n")
    assert run("drop", "--topic", "audit")[:2] == (0, f"3 records of group {GROUP} deleted\n")
    assert shown(run) == {"audit-0": (10, False), "orders-0": (10, True)}


@pytest.mark.usefixtures("committed")
def test_a_dry_run_changes_nothing(run: Run) -> None:
    before = run("--json")
    code, out, err = run("reset", "--to-earliest", "--dry-run")
    assert (code, err) == (0, "")
    assert out.startswith("orders-0: would start at offset 0\nnothing was changed (--dry-run)")
    assert run("reset", "--to-latest", "--dry-run", "--json")[1] == (
        json.dumps([{"topic": "orders", "partition": 0, "offset": 100, "dry_run": True}], indent=2)
        + "\n"
    )
    assert run("--json") == before


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize(("by", "offset"), [("5", 15), ("-3", 7), ("-50", 0), ("1000", 100)])
def test_a_shift_stays_within_the_log(run: Run, by: str, offset: int) -> None:
    assert run("reset", "--shift-by", by)[:2] == (0, f"orders-0: starts at offset {offset}\n")


@pytest.mark.parametrize("offset", [99_999_999, 101, 4])
def test_an_offset_outside_of_the_log_is_refused(
    cluster: FakeCluster, run: Run, offset: int
) -> None:
    cluster.trim("orders", 0, 5)
    code, out, err = run("reset", "--to", f'{{"orders": {{"0": {offset}}}}}')
    assert (code, out) == (1, "")
    assert err == (
        f"kshare offsets: orders-0: offset {offset} is outside of the log, which is 5 to 100\n"
    )


def test_a_stable_offset_beyond_the_end_has_no_lag(cluster: FakeCluster, run: Run) -> None:
    with member(cluster.bootstrap_servers) as session:  # and then the topic was made again
        commit(session, rectangle(0, 150))
    code, out, _ = run()
    assert code == 0
    assert ", lag " not in out
    assert "BEYOND THE END: the stable offset is 50 offsets above the end of the log" in out
    assert [each["lag"] for each in json.loads(run("--json")[1])] == [None]


def test_a_reset_of_a_group_without_offsets(run: Run) -> None:
    code, out, err = run("reset", "--to", "stable")
    assert (code, out) == (1, "")
    assert err == (
        f"kshare offsets: group {GROUP} has committed nothing: there is nothing to reset. Give "
        'offsets such as {"orders": {"0": 123}}\n'
    )
    assert run("reset", "--to", '{"orders": {"0": 5}}')[:2] == (
        0,
        "orders-0: starts at offset 5\n",
    )


def test_while_a_member_lives(cluster: FakeCluster, run: Run) -> None:
    with member(cluster.bootstrap_servers) as session:
        commit(session, rectangle(0, 5))
        for action in (("reset", "--to", "earliest"), ("drop",)):
            code, out, err = run(*action)
            assert (code, out) == (1, "")
            assert err.startswith(
                f"kshare offsets: group {GROUP} is alive: {session.session_id} on "
            )


@pytest.mark.usefixtures("committed")
def test_a_subscriber_that_was_killed_counts_until_its_session_is_over(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator says so; the fake cluster's says nothing of members."""
    killed = {"id-1": JoinedMember("id-1", "client-1", "/10.0.0.1")}
    known = [GroupDescription("stable", killed), GroupDescription("empty", {})]
    monkeypatch.setattr("kshare.group.tools.offsets.describe_group", lambda *_: known[0])
    code, out, err = run("reset", "--to", "earliest")
    assert (code, out) == (1, "")
    assert f"group {GROUP} is alive: client-1 on /10.0.0.1; stop its members first" in err
    # Members of both kinds say in the log that they live.
    assert "for 30 s, and with subscribe for its session.timeout.ms, if that is longer" in err
    del known[0]
    assert run("reset", "--to", "earliest")[0] == 0


@pytest.mark.usefixtures("committed")
def test_a_drop(run: Run) -> None:
    code, out, _ = run("drop")
    assert code == 0
    assert out.endswith(f" records of group {GROUP} deleted\n")
    (shown,) = json.loads(run("--json")[1])
    assert (shown["offset"], shown["individual_commits"]) == (10, [])


def test_a_drop_of_damaged_records_while_a_member_lives(cluster: FakeCluster, run: Run) -> None:
    with member(cluster.bootstrap_servers) as session:
        commit(session, rectangle(0, 5))
        assert run("drop", "--damaged")[:2] == (0, f"0 records of group {GROUP} deleted\n")
        session.check()


@pytest.mark.usefixtures("committed")
def test_a_drop_for_programs(run: Run) -> None:
    code, out, _ = run("drop", "--json", "--dry-run")
    records = json.loads(out)["records"]
    assert (code, json.loads(out)) == (0, {"group": GROUP, "records": records, "dry_run": True})
    assert records > 0
    assert json.loads(run("drop", "--json")[1]) == {
        "group": GROUP,
        "records": records,
        "dry_run": False,
    }


# -- another log -----------------------------------------------------------------------------------


@pytest.fixture
def own_log(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupSession]:
    """A member that is alive and has committed, with a log of its own."""
    fetch_as_brokers_do(monkeypatch, T0)
    cluster.create_topic("own-log")
    with member(cluster.bootstrap_servers, individual_commit_topic="own-log") as session:
        commit(session, rectangle(0, 10), rectangle(20, 25))
        eventually(lambda: commit(session) == 10)
        yield session


@pytest.mark.usefixtures("own_log")
@pytest.mark.parametrize(
    "command", [("list",), ("drop",), ("reset", "--to", "latest"), ("reset", "--to-latest")]
)
def test_the_log_of_others_is_refused(run: Run, command: tuple[str, ...]) -> None:
    code, out, err = run(*command)
    assert (code, out) == (1, "")
    assert err == (
        f"kshare offsets: offsets of group {GROUP} (orders-0) belong to the log own-log, not to "
        f"{LOG}, which was read: name it with --log-topic\n"
    )
    assert run("--log-topic", "own-log")[0] == 0


@pytest.mark.parametrize("command", [("list",), ("reset", "--to", '{"orders": {"0": 5}}')])
def test_a_log_that_does_not_exist_is_refused(run: Run, command: tuple[str, ...]) -> None:
    code, out, err = run(*command, "--log-topic", "own-lgo")
    assert (code, out) == (1, "")
    assert err.startswith("kshare offsets: argument --log-topic: topic own-lgo does not exist on ")


def anchor(cluster: FakeCluster, partition: TopicPartition, topic_id: str) -> None:
    """Store an offset as a member does whose log has this id."""
    with closing(PrimaryOffsets(group_config(cluster.bootstrap_servers).kafka, GROUP)) as primary:
        offset = Primary(0, Anchor(1, 0, topic_id))
        assert primary.stored(primary.store({partition: offset})) == {partition: None}


@pytest.mark.usefixtures("committed")
def test_offsets_of_a_log_that_the_group_has_left(
    cluster: FakeCluster, run: Run, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not changed; for the rest, the group goes on."""
    cluster.create_topic("audit")
    audit = TopicPartition("audit", 0)
    fetch_as_brokers_do(monkeypatch, T0, audit)
    anchor(cluster, audit, topic_id_of(cluster, "audit"))  # any other topic
    assert [each["topic"] for each in json.loads(run("--json")[1])] == ["audit", "orders"]
    said = f"offsets of group {GROUP} (audit-0) belong to the log audit, not to {LOG}"
    assert caplog.text.count(said) == 1
    assert run("reset", "--to-latest", "--topic", "orders")[0] == 0
    assert said in run("reset", "--to-latest")[2]
    assert said in run("drop")[2]
    assert run("drop", "--topic", "orders")[0] == 0


def topic_id_of(cluster: FakeCluster, topic: str) -> str:
    with closing(Cluster(group_config(cluster.bootstrap_servers).kafka)) as asked:
        asked.partitions(Subscribe((topic,)))
        return asked.topic_ids()[topic]


def test_offsets_of_a_log_that_is_gone_can_be_reset(
    cluster: FakeCluster, run: Run, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_as_brokers_do(monkeypatch, T0)
    anchor(cluster, T0, "SP/z+RJSRM2rEOTLUnCmYA")
    assert run("reset", "--to-latest")[:2] == (0, "orders-0: starts at offset 100\n")
    assert f"offsets of group {GROUP} (orders-0) belong to a log that is gone" in caplog.text


@pytest.mark.parametrize(
    "arguments",
    [
        ("reset",),
        ("list", "--to", "latest"),
        ("reset", "--to", "newest"),
        ("reset", "--to", "{}"),
        ("reset", "--to", '{"orders": {"0": -1}}'),
        ("reset", "--to", '{"orders": {"x": 1}}'),
        ("reset", "--to", '{"orders": 1}'),
        ("reset", "--to", '{"a\\u0000b": {"0": 1}}'),
        ("reset", "--to", '{"orders": {"-1": 5}}'),
        ("reset", "--to", '{"orders": {"99999999999": 5}}'),
        ("reset", "--to", '{"": {"0": 5}}'),
        ("reset", "--to", '{"orders": {"0": 1}}', "--topic", "orders"),
        ("reset", "--to", "latest", "--shift-by", "1"),
        ("reset", "--shift-by", "1.5"),
        ("reset", "--to-datetime", "yesterday"),
        ("reset", "--by-duration", "P"),
        ("reset", "--by-duration", "10"),
        ("drop", "--shift-by", "1"),
        ("list", "--damaged"),
        ("reset", "--to", "latest", "--damaged"),
        ("list", "--dry-run"),
    ],
)
def test_what_is_not_understood(run: Run, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    assert caught.value.code == 2


def test_which_cluster(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["offsets", "--group", GROUP])
    assert "which cluster?" in capsys.readouterr().err
