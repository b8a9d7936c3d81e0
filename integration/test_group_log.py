"""The individual commit log on real brokers: killed members, and a log that breaks under way."""

import logging
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, NewPartitions

from integration.cluster import KafkaCluster
from integration.group_log import (
    compacted_often,
    consumer_groups,
    lose_log,
    records_in,
    reset_to,
    starts,
    unique,
)
from integration.group_member import FENCED
from integration.history import Committed, Delivery, Events, History, OwnerChange, check_history
from integration.kafka import KafkaBroker
from integration.lines import whole_lines
from integration.members import eventually
from integration.processes import PythonProcess
from kshare.cli import main
from kshare.core.hashing import ALL_HASHES, WHOLE, HashRange, KeyRanges, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.errors import ForeignMemberError
from kshare.group import KeySharedConsumer
from kshare.group.config.consumer_config import consumer_config
from kshare.group.config.table import ConsumerConfig
from kshare.group.delivery_start import DeliveryStart
from kshare.group.log.topic import log_partition
from kshare.group.session import log_follower
from kshare.group.session.session import GroupSession
from kshare.group.tools.offsets import list_offsets
from kshare.testing import check_order

LOWER, UPPER = split(WHOLE, 2)
SECONDS = 60.0
RECORDS, KEYS = 300, 30


def config(servers: str, group: str, log: str, **given: object) -> ConsumerConfig:
    return consumer_config(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "individual.commit.topic": log,
            "auto.offset.reset": "earliest",
            "claim.timeout.ms": 1_000,
            **{name.replace("_", "."): value for name, value in given.items()},
        }
    )


@contextmanager
def session(settings: ConsumerConfig, at: TopicPartition, *hashes: HashRange) -> Iterator[Any]:
    """A member that has started."""
    member = GroupSession(settings)
    try:
        member.claim({at: KeyRanges(hashes) or ALL_HASHES})
        eventually(lambda: starts(member, at))
        yield member
    finally:
        member.close(10)


def wait_for_start(member: GroupSession, at: TopicPartition, before: DeliveryStart) -> None:
    """Wait for another start than the one before."""
    eventually(lambda: starts(member, at) not in {None, before})


def rectangle(start: int, end: int, hashes: HashRange = WHOLE) -> Rectangle:
    return Rectangle(OffsetRange(start, end), hashes)


@pytest.fixture
def at(broker: KafkaBroker) -> TopicPartition:
    topic = broker.create_topic()
    records = [(f"k{i % KEYS}".encode(), b"v") for i in range(RECORDS)]
    broker.produce(topic, records, partition=0)
    return TopicPartition(topic, 0)


# -- members in processes of their own -------------------------------------------------------------


class Members:
    """Processes of one group, and what they have handed out."""

    def __init__(self, servers: str, topic: str, folder: Path) -> None:
        self.group, self.log = unique("group"), unique("log")
        self._servers = servers
        self._topic = topic
        self._folder = folder
        self.running: list[tuple[HashRange, PythonProcess]] = []

    def start(self, hashes: HashRange, pause: float = 0.01) -> PythonProcess:
        name = unique("member")
        given = (self._servers, self._topic, self.log, self.group, hashes.lo, hashes.hi)
        out, err = (self._folder / f"{name}.{kind}" for kind in ("out", "err"))
        out.touch()
        err.touch()
        process = PythonProcess(
            "integration.group_member",
            [*map(str, given), str(RECORDS), str(pause)],
            stdout=out,
            stderr=err,
        )
        self.running.append((hashes, process))
        return process

    def delivered(self) -> list[tuple[int, int, str, str]]:
        """Time, offset, key and process of each record that was handed out, in time's order."""
        rows = []
        for file in self._folder.glob("*.out"):
            for line in whole_lines(file):
                when, offset, *key = line.split()
                if key:
                    rows.append((int(when), int(offset), key[0], file.stem))
        return sorted(rows)

    def errors(self) -> str:
        return "".join(file.read_text() for file in self._folder.glob("*.err"))

    def check(self) -> None:
        """Nothing is lost; each key's records come in order, from one living owner at a time."""
        lines: dict[str, list[Delivery | OwnerChange | Committed]] = {}
        at = TopicPartition(self._topic, 0)
        for when, number, key, name in self.delivered():
            lines.setdefault(name, []).append(Delivery(when, at, number, key.encode()))
        events = {name: Events(each, has_callbacks=False) for name, each in lines.items()}
        assert check_history(History(processes=events)) == []
        first = {offset: key for _, offset, key, _ in reversed(self.delivered())}
        order = dict.fromkeys(offset for _, offset, _, _ in self.delivered())
        table = pa.table(
            {
                "topic": [self._topic] * len(order),
                "partition": [0] * len(order),
                "offset": list(order),
                "key": [first[offset].encode() for offset in order],
            }
        )
        report = check_order(table, {(self._topic, 0): (0, RECORDS)})
        assert report.ok, f"{report}\n{self.errors()}"


@pytest.fixture
def members(broker: KafkaBroker, at: TopicPartition, tmp_path: Path) -> Iterator[Members]:
    group = Members(broker.bootstrap_servers, at.topic, tmp_path)
    yield group
    for _, process in group.running:
        if process.poll() is None:
            process.kill()
        process.wait(10)


def test_members_that_are_killed_at_random_points(
    broker: KafkaBroker, at: TopicPartition, members: Members
) -> None:
    draw = random.Random(7)
    for half in (LOWER, UPPER):
        members.start(half)
    for _ in range(4):
        wait_for_more(members)
        time.sleep(draw.random() * 0.3)
        hashes, victim = draw.choice(_alive(members) or members.running)
        victim.kill()
        victim.wait(10)
        members.start(hashes)
    for _, process in _alive(members):
        assert process.wait(120) == 0, members.errors()
    members.check()
    committed = list_offsets(members.group, _given(broker, members.log))
    assert committed[at].offset == RECORDS
    again = len(members.delivered()) - RECORDS
    assert again <= 4 * 6  # what was not committed when its member was killed


def wait_for_more(members: Members) -> None:
    count = len(members.delivered())
    eventually(lambda: len(members.delivered()) > count + 5 or not _alive(members))


def _alive(members: Members) -> list[tuple[HashRange, PythonProcess]]:
    return [each for each in members.running if each[1].poll() is None]


def _given(broker: KafkaBroker, log: str) -> dict[str, str]:
    return {"bootstrap.servers": broker.bootstrap_servers, "individual.commit.topic": log}


def test_a_stopped_process_that_goes_on_is_fenced(members: Members) -> None:
    old = members.start(WHOLE, pause=0.05)  # so that it is not done before it is stopped
    eventually(lambda: len(members.delivered()) > 20)
    os.kill(old.pid, signal.SIGSTOP)
    before = len(members.delivered())
    new = members.start(WHOLE)
    eventually(lambda: len(members.delivered()) > before + 20)
    os.kill(old.pid, signal.SIGCONT)
    assert old.wait(120) == FENCED, members.errors()
    assert new.wait(120) == 0
    members.check()
    assert "has claimed key hashes" in members.errors()
    # It was in the middle of a record when it was stopped, and hands out no other.
    taken_over = min(when for when, _, _, name in members.delivered() if name != first(members))
    late = [row for row in members.delivered() if row[3] == first(members) and row[0] > taken_over]
    assert len(late) == 0


def first(members: Members) -> str:
    return members.delivered()[0][3]


# -- the log breaks --------------------------------------------------------------------------------


@pytest.mark.long
def test_the_log_is_made_as_the_offsets_topic_is() -> None:
    offsets = {"offsets.topic.num.partitions": "7", "offsets.topic.replication.factor": "2"}
    # A broker that a busy machine kept from its heartbeats would lead nothing any more.
    config_of_all = {"min.insync.replicas": "2", "broker.session.timeout.ms": "9000"}
    with KafkaCluster(2, config=offsets | config_of_all) as brokers:
        topic, log = brokers.create_topic(), unique("log")
        for group in ("a", *map(unique, "bcdefg")):  # hashes of both signs
            size = {"individual_commit_log_segment_bytes": 3 << 20}
            settings = config(brokers.bootstrap_servers, group, log, **size)
            at = TopicPartition(topic, 0)
            with session(settings, at) as member:
                member.commit({at: [rectangle(0, 1)]}, SECONDS)
            topics = brokers.admin.list_topics(timeout=30).topics
            ours, theirs = topics[log].partitions, topics["__consumer_offsets"].partitions
            assert [ours[n].replicas for n in ours] == [theirs[n].replicas for n in ours]
            assert len(ours) == len(theirs) == 7
            found = brokers.admin.describe_consumer_groups([group])[group].result(30)
            number = log_partition(group, 7)
            assert found.coordinator.id == ours[number].leader
        resource = ConfigResource(ConfigResource.Type.TOPIC, log)
        entries = brokers.admin.describe_configs([resource])[resource].result(30)
        assert entries["cleanup.policy"].value == "compact"
        assert entries["segment.bytes"].value == str(3 << 20)
        assert entries["min.insync.replicas"].value == "2"
        copied = ConfigSource.DYNAMIC_TOPIC_CONFIG  # not the brokers' default
        assert ConfigSource(entries["min.insync.replicas"].source) is copied
        assert {len(part.replicas) for part in ours.values()} == {2}
        with session(config(brokers.bootstrap_servers, unique("a"), unique("log")), at) as member:
            made = ConfigResource(ConfigResource.Type.TOPIC, member._thread.ground.partition.topic)
            entries = brokers.admin.describe_configs([made])[made].result(30)
            assert entries["segment.bytes"].value == str(10 << 20)


@pytest.mark.parametrize("how", ["deleted", "truncated"])
def test_living_members_write_a_lost_log_again(
    broker: KafkaBroker, at: TopicPartition, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = config(broker.bootstrap_servers, unique("group"), unique("log"))
    with session(settings, at, LOWER) as lower, session(settings, at, UPPER) as upper:
        upper.commit({at: [rectangle(0, 50, UPPER), rectangle(60, 70, UPPER)]}, SECONDS)
        lower.commit({at: [rectangle(0, 10, LOWER)]}, SECONDS)
        before = {member: member.started()[at] for member in (lower, upper)}
        with caplog.at_level(logging.WARNING, "kshare.group"):
            lose_log(broker, settings.log_topic, how)
            for member, start in before.items():
                wait_for_start(member, at, start)
        assert upper.commit({at: [rectangle(50, 55, UPPER)]}, SECONDS)[at] <= 10
        assert lower.commit({at: [rectangle(10, 20, LOWER)]}, SECONDS)[at] == 20
    lost = [r.getMessage() for r in caplog.records if "log was lost" in r.getMessage()]
    assert len(lost) == 2, lost  # once for each member
    assert all(f"{at} at stable offset" in text for text in lost)
    found = list_offsets(settings.group, _given(broker, settings.log_topic))[at]
    assert found.offset == 20
    assert found.individual_commits == (
        rectangle(20, 55, UPPER),
        rectangle(60, 70, UPPER),
    )


def test_partitions_that_are_added_to_the_log_and_a_policy_that_deletes(
    broker: KafkaBroker, at: TopicPartition, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kshare.group")
    log, group = unique("log"), unique("group")
    broker.create_topic(log, partitions=1, config={"cleanup.policy": "delete"})
    settings = config(broker.bootstrap_servers, group, log)
    count = next(count for count in range(2, 20) if log_partition(group, count))
    with session(settings, at, LOWER) as member, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_follower, "_LOOK_SECONDS", 0.2)
        member.commit({at: [Rectangle(OffsetRange(0, 10), LOWER)]}, SECONDS)
        member._thread.ground.follower._inspector._due = 0.0
        before = member.started()[at]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_partitions([NewPartitions(log, count)])[log].result(SECONDS)
        eventually(lambda: (starts(member, at) or before) != before)
        # Who comes now meets it.
        with session(settings, at, UPPER) as other:
            other.commit({at: [Rectangle(OffsetRange(0, 20), UPPER)]}, SECONDS)
            done = {at: [Rectangle(OffsetRange(0, 10), LOWER)]}
            eventually(lambda: member.commit(done, SECONDS) == {at: 10})
    texts = " ".join(caplog.messages)
    assert "Set its cleanup.policy to compact" in texts
    assert "partitions were added to its topic" in texts


def test_a_log_that_was_deleted_while_nobody_lived(
    broker: KafkaBroker, at: TopicPartition, caplog: pytest.LogCaptureFixture
) -> None:
    settings = config(broker.bootstrap_servers, unique("group"), unique("log"))
    with session(settings, at) as member:
        assert member.commit({at: [rectangle(0, 10), rectangle(20, 30)]}, SECONDS) == {at: 10}
    broker.delete_topic(settings.log_topic)
    eventually(lambda: settings.log_topic not in broker.admin.list_topics(timeout=30).topics)
    with caplog.at_level(logging.WARNING, "kshare.group"), session(settings, at) as member:
        assert member.started()[at].done == Progress.at(10)
        assert member.commit({at: [rectangle(10, 15)]}, SECONDS) == {at: 15}
    (said,) = [text for text in caplog.messages if "deleted or truncated" in text]
    assert str(at) in said
    assert "offset 10" in said


def test_a_member_with_another_log_is_refused(broker: KafkaBroker, at: TopicPartition) -> None:
    """Each would hand out all records; once the other log is left, the group goes on."""
    settings = config(broker.bootstrap_servers, unique("group"), unique("log"))
    moved = replace(settings, log_topic=unique("log"))
    with session(settings, at) as member:
        assert member.commit({at: [rectangle(0, 10), rectangle(20, 30)]}, SECONDS) == {at: 10}
        other = GroupSession(moved)
        other.claim({at: ALL_HASHES})
        with pytest.raises(ForeignMemberError, match=f"belong to the log {settings.log_topic}"):
            eventually(other.check)
        other.close(10)
        member.check()
    drop = ["offsets", "drop", "--group", settings.group, "--log-topic", settings.log_topic]
    assert main([*drop, "--bootstrap-servers", broker.bootstrap_servers]) == 0
    with session(moved, at) as member:
        assert member.started()[at].done == Progress.at(10)


def test_a_log_that_is_compacted_under_way(broker: KafkaBroker, at: TopicPartition) -> None:
    log = broker.create_topic(unique("log"), config=compacted_often())
    settings = config(broker.bootstrap_servers, unique("group"), log)
    with session(settings, at, LOWER) as lower, session(settings, at, UPPER) as upper:
        for count in range(1, 301):
            piece = rectangle(count, count + 1, UPPER if count % 3 else LOWER)
            (upper if count % 3 else lower).commit({at: [piece]}, SECONDS)
        expected = list_offsets(settings.group, _given(broker, log))[at]
    eventually(lambda: records_in(broker, log) < 300)
    with session(settings, at) as member:
        assert member.started()[at].done == expected.progress


@pytest.mark.long
def test_while_the_log_has_no_leader_delivery_stops(cluster: KafkaCluster) -> None:
    topic = cluster.create_topic()
    log = cluster.create_topic(unique("log"), config={"cleanup.policy": "compact"})
    for name, leader in ((topic, 1), (log, 2)):
        cluster.wait_for_topic(name)
        cluster.move_leader(name, 0, leader)
    at = TopicPartition(topic, 0)
    with session(config(cluster.bootstrap_servers, unique("group"), log), at) as member:
        member.commit({at: [rectangle(0, 5)]}, SECONDS)
        start = member.started()[at]
        cluster.kill9(2)
        eventually(lambda: not member.may_deliver())
        member.commit({at: [rectangle(5, 9)]}, 0)  # in memory
        cluster.brokers[2].start()
        eventually(member.may_deliver)
        assert member.commit({at: []}, SECONDS) == {at: 9}
        assert member.started()[at] == start


@pytest.mark.parametrize("subscribes", [False, pytest.param(True, marks=pytest.mark.long)])
def test_plain_consumers_find_the_leader_epoch_of_the_last_record(
    cluster: KafkaCluster, subscribes: bool
) -> None:
    at = TopicPartition(cluster.create_topic(replication=2), 0)
    given = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": unique("group")}
    found = []
    with KeySharedConsumer(given | {"auto.offset.reset": "earliest"}) as consumer:
        if subscribes:
            consumer.subscribe([at.topic])
        else:
            consumer.assign({at: []})
        for count, leader in enumerate((1, 2, 1), 1):
            cluster.move_leader(*at, leader)
            cluster.produce(at.topic, [("k", "v")] * 10, partition=0)
            messages = [consumer.poll(SECONDS) for _ in range(10)]
            epochs = {message and message.leader_epoch() for message in messages}
            assert consumer.commit() == {at: 10 * count}
            (listed,) = list_offsets(given["group.id"], given).values()
            plain = Consumer(given)
            (stored,) = plain.committed([RdTopicPartition(*at)], 30)
            plain.close()
            assert stored.offset == 10 * count
            assert epochs == {listed.leader_epoch} == {stored.leader_epoch}
            found.append(listed.leader_epoch)
    assert found[0] is not None
    assert len(set(found)) == 3


def test_kafkas_own_tool_resets_the_offsets(
    broker: KafkaBroker, at: TopicPartition, caplog: pytest.LogCaptureFixture
) -> None:
    settings = config(broker.bootstrap_servers, unique("group"), unique("log"))
    with session(settings, at) as member:
        assert member.commit({at: [rectangle(0, 10), rectangle(20, 30)]}, SECONDS) == {at: 10}
    assert at.topic in consumer_groups(broker, settings.group, "--describe")
    reset_to(broker, settings.group, at, 4)
    found = list_offsets(settings.group, _given(broker, settings.log_topic))[at]
    assert (found.offset, found.individual_commits) == (4, ())
    with caplog.at_level(logging.WARNING, "kshare.group"), session(settings, at) as member:
        assert member.started()[at].done == Progress.at(4)
        assert member.commit({at: [rectangle(4, 6)]}, SECONDS) == {at: 6}
    (said,) = [text for text in caplog.messages if "reset by Kafka's own tool" in text]
    assert f"{at}" in said


def test_kafkas_own_tool_resets_the_offsets_while_members_live(
    broker: KafkaBroker, at: TopicPartition
) -> None:
    """Brokers know no members of a standalone group: what these commit next counts."""
    settings = config(broker.bootstrap_servers, unique("group"), unique("log"))
    with session(settings, at) as member:
        start = member.started()[at]
        assert member.commit({at: [rectangle(0, 10), rectangle(20, 30)]}, SECONDS) == {at: 10}
        reset_to(broker, settings.group, at, 4)
        assert member.commit({at: [rectangle(10, 15)]}, SECONDS) == {at: 15}
        assert member.started()[at] == start
        found = list_offsets(settings.group, _given(broker, settings.log_topic))[at]
        assert found.offset == 15
        assert len(found.individual_commits) == 1
    with session(settings, at) as member:
        assert member.started()[at].done == Progress.of(15, [rectangle(20, 30)])
    given = _given(broker, settings.log_topic) | {"group.id": unique("group")}
    with KeySharedConsumer(given | {"auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([at.topic])
        while not consumer.assignment():
            consumer.poll(0.1)
        refused = reset_to(broker, given["group.id"], at, 0)
        assert "can only be reset if the group" in refused
