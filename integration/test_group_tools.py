"""What is seen of a group from outside, on a real broker: owners of keys, ``kshare groups``."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from integration import members
from integration.kafka import KafkaBroker
from integration.lines import whole_lines
from integration.processes import PythonProcess
from kshare.cli import main
from kshare.core.hashing import HASH_SPACE
from kshare.group import GroupOwners, HostInfo, owner
from kshare.group.tools.offsets import list_offsets
from kshare.group.tools.owners import partition_of
from kshare.testing import Record, produce

KEYS = [f"customer-{number}" for number in range(60)]
SECONDS = 120.0


class Member:
    """A process of the group that says where it is reached."""

    def __init__(self, broker: KafkaBroker, topic: str, folder: Path, number: int) -> None:
        self.server = HostInfo(f"pod-{number}", 8000 + number)
        self.file = folder / f"{number}"
        self.file.touch()
        config = {
            "application.server": f"{self.server.host}:{self.server.port}",
            "client.id": f"client-{number}",
            "session.timeout.ms": 10_000,
        }
        arguments = [broker.bootstrap_servers, topic, topic, str(self.file), json.dumps(config)]
        self.process = PythonProcess("integration.member_process", arguments)

    def records(self) -> list[tuple[int, int, str]]:
        """Partition, offset and key of what it was handed."""
        lines = [line.split() for line in whole_lines(self.file)]
        return [
            (int(line[2]), int(line[3]), bytes.fromhex(line[4]).decode())
            for line in lines
            if line[0] == "record"
        ]

    def end(self) -> None:
        self.process.terminate()
        assert self.process.wait(SECONDS) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start(broker: KafkaBroker, tmp_path: Path) -> Iterator[Callable[[str, int], Member]]:
    with ExitStack() as stack:

        def member(topic: str, number: int) -> Member:
            started = Member(broker, topic, tmp_path, number)
            stack.callback(started.kill)
            return started

        yield member


eventually = partial(members.eventually, seconds=SECONDS)


def shares(owners: GroupOwners) -> dict[str, float]:
    """How many partitions each member owns."""
    table = owners.read()
    found: dict[str, float] = {}
    for each in table.owners:
        host = table.members[each.member].host
        found[host] = found.get(host, 0) + each.hashes.width / HASH_SPACE
    return found


def show(capsys: pytest.CaptureFixture[str], broker: KafkaBroker, *arguments: str) -> Any:
    code = main([*arguments, "--json", "--bootstrap-servers", broker.bootstrap_servers])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_owner_of_a_key_is_who_is_handed_it(
    broker: KafkaBroker,
    start: Callable[[str, int], Member],
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = broker.create_topic(partitions=2)
    config = {"bootstrap.servers": broker.bootstrap_servers}
    members = [start(topic, number) for number in range(3)]
    with GroupOwners(topic, config) as owners:
        eventually(
            lambda: sorted(round(each, 2) for each in shares(owners).values()) == [0.5, 0.5, 1]
        )
        rows = [(key, f"{number}") for number in range(5) for key in KEYS]
        broker.produce(topic, rows)
        eventually(lambda: sum(len(member.records()) for member in members) == len(rows))
        handed: dict[str, set[tuple[HostInfo, int]]] = {}
        for member in members:
            for partition, _, key in member.records():
                handed.setdefault(key, set()).add((member.server, partition))

        def owner_of(key: str) -> tuple[HostInfo | None, int]:
            return owners.owner(topic, key.encode()), partition_of(key.encode(), 2)

        eventually(lambda: all(handed[key] == {owner_of(key)} for key in KEYS))
        assert {server for each in handed.values() for server, _ in each} == {
            member.server for member in members
        }
        check_commands(broker, topic, handed, capsys)

        # One is killed: its keys have no owner, or another one, once the coordinator drops it.
        dead = members[0].server
        members[0].kill()
        eventually(lambda: sorted(shares(owners).values()) == [1, 1])
        mine = [key for key in KEYS if {server for server, _ in handed[key]} == {dead}]
        assert mine
        assert dead not in {owners.owner(topic, key.encode()) for key in KEYS}
        for member in members[1:]:
            member.end()
        assert {owner(topic, topic, key.encode(), config) for key in KEYS[:3]} == {None}
    status = show(capsys, broker, "groups", "--group", topic)
    assert (status["state"], status["members"]) == ("empty", [])
    assert {each["member"] for each in status["ranges"]} == {None}


def check_commands(
    broker: KafkaBroker,
    topic: str,
    handed: dict[str, set[tuple[HostInfo, int]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    key = KEYS[7]
    ((server, partition),) = handed[key]
    shown = show(capsys, broker, "owners", "--group", topic, "--topic", topic, "--key", key)
    assert (shown["host"], shown["port"], shown["partition"]) == (*server, partition)
    ranges = show(capsys, broker, "owners", "--group", topic)
    assert sum(hi - lo for lo, hi in (each["hashes"] for each in ranges)) == 2 * HASH_SPACE

    def has_no_lag() -> Any:
        status = show(capsys, broker, "groups", "--group", topic)
        return status if all(each["lag"] == 0 for each in status["ranges"]) else None

    status = eventually(has_no_lag)
    assert status["state"] == "stable"
    assert status["generation"] >= 1
    assert status["leader"] in {each["member"] for each in status["members"]}
    assert sorted(each["client_id"] for each in status["members"]) == [
        "client-0",
        "client-1",
        "client-2",
    ]
    for each in status["members"]:
        number = each["client_id"][-1]
        assert each["application_server"] == f"pod-{number}:800{number}"
        assert each["address"]
        assert each["member_id"].startswith(each["client_id"])
    listed = {each["group"]: each for each in show(capsys, broker, "groups")}
    assert listed[topic] == {
        "group": topic,
        "state": "stable",
        "members": 3,
        "partitions": [[topic, 0], [topic, 1]],
    }


def test_a_reset_to_a_time(broker: KafkaBroker, capsys: pytest.CaptureFixture[str]) -> None:
    topic = broker.create_topic(partitions=2)
    config = {"bootstrap.servers": broker.bootstrap_servers}
    start_ms = 1_700_000_000_000
    records = [Record(b"k", b"v", timestamp=start_ms + second * 1000) for second in range(20)]
    produce(broker.bootstrap_servers, topic, records, partition=0)

    def reset(*to: str) -> dict[int, int]:
        rows = show(capsys, broker, "offsets", "reset", "--group", topic, "--topic", topic, *to)
        return {row["partition"]: row["offset"] for row in rows}

    assert reset("--to-datetime", "2023-11-14T22:13:27") == {0: 7, 1: 0}
    assert reset("--shift-by", "100") == {0: 20, 1: 0}
    assert reset("--by-duration", "PT1H", "--dry-run") == {0: 20, 1: 0}
    listed = list_offsets(topic, config)
    assert {tp.partition: each.offset for tp, each in listed.items()} == {0: 20, 1: 0}
