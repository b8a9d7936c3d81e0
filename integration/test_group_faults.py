"""Groups on real brokers while coordinators die, brokers are slow, and logs are deleted.

The verdict is as in :mod:`integration.test_group_membership`: over all that was delivered, with
nothing excused during rebalances.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState

from integration.chance import chance_of
from integration.cluster import KafkaCluster
from integration.kafka import KafkaBroker
from integration.members import (
    Group,
    Member,
    end_all,
    eventually,
    fill,
    fill_until,
    wait_for_refusal,
)
from integration.proxy import CountingProxy
from kshare.cli import main as kshare_command

LOG = "__individual_commit_offsets"


@pytest.fixture(scope="module")
def brokers() -> Iterator[KafkaCluster]:
    """Two brokers that both coordinate groups, and keep a copy of each other's offsets."""
    config = {
        "offsets.topic.num.partitions": "8",
        "offsets.topic.replication.factor": "2",
        # A busy machine must not make a copy seem too old to lead: nobody would lead anything.
        "broker.session.timeout.ms": "6000",
        "replica.lag.time.max.ms": "30000",
    }
    with KafkaCluster(2, config=config) as running:
        yield running


@pytest.mark.long
def test_the_coordinator_is_killed_and_moves(brokers: KafkaCluster, tmp_path: Path) -> None:
    """Broker 2 dies, which coordinates the group and leads its log; later both move back."""
    topic = brokers.create_topic(replication=2)
    name = brokers.group_of(topic, 2)
    with closing(Group(brokers, topic, tmp_path, name)) as group:
        fill(group, 0, 3_000)
        members = [group.start(pause=0.002)]
        eventually(members[0].records)  # the log is there: how it is made is another test's
        members += [group.start(pause=0.002) for _ in range(2)]
        eventually(lambda: all(abs(m.share() - 1 / 3) < 0.01 for m in members))
        # Else nobody leads what only the broker has that dies.
        log = abs(java_hash(name)) % 8
        replicated = [(topic, 0), ("__consumer_offsets", log), (LOG, log)]
        eventually(lambda: brokers.are_in_sync(replicated))
        fill(group, 3_000, 6_000)
        eventually(lambda: len(group.delivered()) > 1_500)
        group.faults.append("a broker killed")
        brokers.brokers[2].kill9()
        eventually(lambda: brokers.coordinator(name) == 1)
        eventually(lambda: len(group.delivered()) == 6_000)
        brokers.brokers[2].start()
        fill(group, 6_000, 9_000)
        brokers.move_leader("__consumer_offsets", log, 2)
        brokers.move_leader(LOG, log, 2)
        group.faults.append("the coordinator moved")
        eventually(lambda: brokers.coordinator(name) == 2)
        fill(group, 9_000, 12_000)
        eventually(lambda: group.is_done(12_000))
        eventually(lambda: all(abs(m.share() - 1 / 3) < 0.01 for m in members))
        end_all(group)
        group.check({0: 12_000})


@pytest.mark.long
def test_the_coordinator_freezes_while_a_member_joins(
    brokers: KafkaCluster, tmp_path: Path
) -> None:
    """Who waits for the group's members is no member yet: it finds the next coordinator."""
    topic = brokers.create_topic(replication=2)
    name = topic
    assert brokers.coordinator(name) in {1, 2}  # from now on there are offsets to move
    # By itself, a broker that once was fenced coordinates nothing.
    brokers.move_leader("__consumer_offsets", abs(java_hash(name)) % 8, 2)
    eventually(lambda: brokers.coordinator(name) == 2)
    with closing(Group(brokers, topic, tmp_path, name)) as group:
        fill(group, 0, 1_000)
        first = group.start(**{"session.timeout.ms": 20_000})
        eventually(lambda: len(group.delivered()) == 1_000)
        first.signal(signal.SIGSTOP)
        second = group.start()
        eventually(lambda: state_of(brokers, name) is ConsumerGroupState.PREPARING_REBALANCING)
        group.faults.append("the coordinator frozen")
        brokers.brokers[2].freeze()
        try:
            eventually(lambda: abs(second.share() - 1) < 0.01)
            fill(group, 1_000, 2_000)
            eventually(lambda: len(group.delivered()) == 2_000)
        finally:
            brokers.brokers[2].thaw()
        first.signal(signal.SIGCONT)
        eventually(lambda: all(abs(m.share() - 1 / 2) < 0.01 for m in (first, second)))
        end_all(group)
        group.check({0: 2_000})


def state_of(brokers: KafkaCluster, group: str) -> ConsumerGroupState:
    described = brokers.admin.describe_consumer_groups([group])[group].result(30)
    return ConsumerGroupState(described.state)


def java_hash(text: str) -> int:
    """``String.hashCode``."""
    number = 0
    for letter in text:
        number = (31 * number + ord(letter)) & 0xFFFFFFFF
    return number - (number >> 31 << 32)


@pytest.mark.long
@pytest.mark.parametrize(
    "seconds",
    [pytest.param(3, id="shorter than a session"), pytest.param(9, id="longer")],
)
def test_a_broker_answers_late(tmp_path: Path, seconds: int) -> None:
    with KafkaBroker() as broker, closing(Group(broker, broker.create_topic(), tmp_path)) as group:
        fill(group, 0, 8_000)
        members = [group.start(pause=0.002) for _ in range(3)]
        eventually(lambda: all(abs(m.share() - 1 / 3) < 0.01 for m in members))
        eventually(lambda: len(group.delivered()) > 500)
        group.faults.append(f"the broker frozen for {seconds} s")
        broker.freeze()
        time.sleep(seconds)
        broker.thaw()
        eventually(lambda: group.is_done(8_000))
        eventually(lambda: all(abs(m.share() - 1 / 3) < 0.01 for m in members))
        end_all(group)
        group.check({0: 8_000})


@pytest.mark.long
def test_answers_come_late(proxied: tuple[KafkaBroker, CountingProxy], tmp_path: Path) -> None:
    """A slow network: each answer by some tenths of a second, then by more than requests wait."""
    broker, proxy = proxied
    with closing(Group(broker, broker.create_topic(), tmp_path)) as group:
        fill(group, 0, 6_000)
        members = [group.start(pause=0.002) for _ in range(3)]
        eventually(lambda: all(abs(m.share() - 1 / 3) < 0.01 for m in members))
        for delay, seconds in ((0.3, 4), (0.0, 1), (3.0, 9)):
            group.faults.append(f"answers {delay:g} s late")
            proxy.delay = delay
            time.sleep(seconds)
        proxy.delay = 0.0
        eventually(lambda: any(line[0] == "lost" for m in members for line in m.lines()))
        fill(group, 6_000, 8_000)
        eventually(lambda: group.is_done(8_000))
        eventually(lambda: all(abs(m.share() - 1 / 3) < 0.01 for m in members))
        end_all(group)
        group.check({0: 8_000})


def test_a_policy_is_switched_while_three_members_run(
    broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """Key ranges become one whole partition, and are shared again, twice."""
    where = ["--bootstrap-servers", broker.bootstrap_servers, "--topic", topic]
    with closing(Group(broker, topic, tmp_path)) as group:
        fill(group, 0, 2_000)
        members = [group.start(**{"session.timeout.ms": 45_000}) for _ in range(3)]
        eventually(lambda: all(abs(m.share() - 1 / 3) < 0.01 for m in members))
        produced = 2_000
        for _ in range(2):
            for value, shares in (("false", [0, 0, 1]), ("true", [1 / 3] * 3)):
                fill(group, produced, produced + 1_000)
                produced += 1_000
                group.faults.append(f"accept.range.fetch={value}")
                assert kshare_command(["policy", "set", "accept.range.fetch", value, *where]) == 0
                eventually(lambda wanted=shares: have_shares(members, wanted))  # type: ignore[misc]
        eventually(lambda: group.is_done(produced))
        end_all(group)
        group.check({0: produced})
        assert sum(len(member.records()) for member in members) == produced


def have_shares(members: list[Member], wanted: list[float]) -> bool:
    """Whether members have such parts of the partition, whoever has which."""
    found = sorted(member.share() for member in members)
    return all(abs(each - share) < 0.01 for each, share in zip(found, wanted, strict=True))


@pytest.mark.long
def test_the_log_is_deleted(tmp_path: Path) -> None:
    with KafkaBroker() as broker, closing(Group(broker, broker.create_topic(), tmp_path)) as group:
        fill(group, 0, 4_000)
        members = [group.start(pause=0.002) for _ in range(2)]
        eventually(lambda: all(abs(m.share() - 1 / 2) < 0.01 for m in members))
        eventually(lambda: len(group.delivered()) > 500)
        group.note_log_loss("the log deleted")
        broker.admin.delete_topics([LOG])[LOG].result()
        fill(group, 4_000, 8_000)
        members.append(group.start(pause=0.002))
        eventually(lambda: all(abs(m.share() - 1 / 3) < 0.01 for m in members))
        eventually(lambda: group.is_done(8_000))
        end_all(group)
        group.check({0: 8_000})


def test_a_handler_hangs(broker: KafkaBroker, topic: str, tmp_path: Path) -> None:
    with closing(Group(broker, topic, tmp_path)) as group:
        config = {"max.poll.interval.ms": 6_000}
        one = group.start(hang=200, **config)
        others = [group.start(**config) for _ in range(2)]
        group.faults.append("a handler hung")
        produced = fill_until(lambda: len(one.records()) >= 200, group, 0)
        # The one that hangs is dropped.
        eventually(lambda: all(abs(m.share() - 1 / 2) < 0.01 for m in others))
        one.let_go()
        eventually(lambda: "lost" in [line[0] for line in one.lines()])
        fill(group, produced, produced + 1_000)
        produced += 1_000
        eventually(lambda: all(abs(m.share() - 1 / 3) < 0.01 for m in group.members))
        eventually(lambda: group.is_done(produced))
        end_all(group)
        group.check({0: produced})


def test_a_plain_consumer_joins(broker: KafkaBroker, topic: str, tmp_path: Path) -> None:
    """It is refused, and the members go on."""
    with closing(Group(broker, topic, tmp_path)) as group:
        fill(group, 0, 2_000)
        members = [group.start(**{"session.timeout.ms": 45_000}) for _ in range(3)]
        eventually(lambda: all(abs(m.share() - 1 / 3) < 0.01 for m in members))
        group.faults.append("a plain consumer joined")
        wait_for_refusal(broker.bootstrap_servers, topic, topic)
        fill(group, 2_000, 4_000)
        eventually(lambda: group.is_done(4_000))
        end_all(group)
        group.check({0: 4_000})
        assert sum(len(member.records()) for member in members) == 4_000


def test_two_groups_on_one_topic(broker: KafkaBroker, topic: str, tmp_path: Path) -> None:
    with (
        closing(Group(broker, topic, tmp_path, f"{topic}-a")) as first,
        closing(Group(broker, topic, tmp_path, f"{topic}-b")) as second,
    ):
        fill(first, 0, 2_000)
        for group in (first, second) * 3:
            group.start()
        eventually(lambda: all(len(g.delivered()) == 2_000 for g in (first, second)))
        for group in (first, second):
            end_all(group)
            group.check({0: 2_000})


@pytest.mark.long
@pytest.mark.timeout(600)  # two minutes without a word, and then what is awaited
def test_members_join_and_leave_every_second(
    broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """For two minutes; at most five live at a time."""
    chance = chance_of(7)
    with closing(Group(broker, topic, tmp_path)) as group:
        living = [group.start(), group.start()]
        until, total = time.monotonic() + 120, 0
        while time.monotonic() < until:
            fill(group, total, total + 100)
            total += 100
            time.sleep(1)
            if len(living) < 3 or (len(living) < 5 and chance.random() < 0.5):
                living.append(group.start())
            else:
                living.pop(chance.randrange(len(living))).signal(
                    chance.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGKILL])
                )
        eventually(lambda: group.is_done(total))
        end_all(group)
        group.check({0: total})
