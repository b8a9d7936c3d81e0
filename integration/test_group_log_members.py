"""Several processes share a partition by key ranges while the log of their group breaks.

The verdict is over what all of them delivered: nothing is lost, and each key's records came in
order.
"""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclOperation,
)

from integration.cluster import KafkaCluster
from integration.group_log import compacted_often, lose_log, records_in, reset_to
from integration.kafka import KafkaBroker
from integration.members import Group, Member, end_all, eventually, fill, fill_until
from integration.topics import Topics
from kshare.cli import main as kshare
from kshare.core.hashing import WHOLE, key_hash, split
from kshare.core.progress import TopicPartition
from kshare.group.tools.offsets import list_offsets

THIRDS = split(WHOLE, 3)
PAUSE = 0.004


class Shared:
    """Three processes, each with a third of the key hashes of one partition.

    Args:
        group: The group.
        log: The topic of its log.
        config: More configurations.
        is_subscribed: Whether they are members; else each is given its third.
    """

    def __init__(
        self, group: Group, log: str, config: Mapping[str, object], *, is_subscribed: bool = False
    ) -> None:
        self.group, self.log = group, log
        self._is_subscribed = is_subscribed
        self._config = {"individual.commit.topic": log, "pause": PAUSE, **config}
        self.given = {
            "bootstrap.servers": group.broker.bootstrap_servers,
            "individual.commit.topic": log,
        }

    def start(self) -> list[Member]:
        return [self.restart(number) for number in range(3)]

    def restart(self, number: int, **more: object) -> Member:
        config = {**self._config, **more}
        if self._is_subscribed:
            return self.group.start(**config)
        return self.group.start_range(THIRDS[number], **config)

    def delivered(self) -> int:
        return len(self.group.delivered())

    def wait_for(self, records: int) -> None:
        """Wait until so many records are delivered, some by each member that was started."""
        eventually(lambda: self.have_records(records))

    def have_records(self, records: int) -> bool:
        """Whether so many records are delivered, some by each member that was started."""
        return self.delivered() >= records and all(each.records() for each in self.group.members)

    def finish(self, end: int) -> None:
        """All that was produced is delivered and committed."""
        eventually(lambda: self.delivered() >= end)
        eventually(lambda: self.committed() == end)
        end_all(self.group)
        self.group.check({0: end})
        assert self.committed() == end

    def committed(self) -> int:
        name = self.group.name or self.group.topic
        return list_offsets(name, self.given)[TopicPartition(self.group.topic, 0)].offset


@contextmanager
def shared(
    brokers: Topics,
    folder: Path,
    *,
    config: Mapping[str, object] | None = None,
    log_config: Mapping[str, object] | None = None,
    on: tuple[int, int] | None = None,
    is_subscribed: bool = False,
) -> Iterator[Shared]:
    """A topic, and the log of its group, which has one partition.

    Args:
        brokers: Where they are.
        folder: Where processes write what they deliver.
        config: More configurations of these.
        log_config: The log's configuration.
        on: Node ids of the only brokers that have the topic and the log; None: brokers decide.
        is_subscribed: Whether processes are members; else each is given its third.
    """
    topic_on, log_on = on or (None, None)
    topic = brokers.create_topic(on=topic_on)
    log_config = log_config or {"cleanup.policy": "compact"}
    log = brokers.create_topic(f"{topic}-log", config=log_config, on=log_on)
    with closing(Group(brokers, topic, folder)) as group:
        yield Shared(group, log, config or {}, is_subscribed=is_subscribed)


def have_ended(members: list[Member]) -> bool:
    return all(member.process.poll() is not None for member in members)


def each_says(members: list[Member], text: str) -> Callable[[], bool]:
    return lambda: all(text in member.errors() for member in members)


@pytest.mark.parametrize("how", [pytest.param("deleted", marks=pytest.mark.long), "truncated"])
def test_the_log_is_lost_twice(broker: KafkaBroker, tmp_path: Path, how: str) -> None:
    """Deleted, or its records with ``kafka-delete-records``: the living write it again."""
    with shared(broker, tmp_path) as run:
        fill(run.group, 0, 3_000)
        members = run.start()
        for count in (500, 1_500):
            run.wait_for(count)
            run.group.note_log_loss(f"the log {how}")
            lose_log(broker, run.log, how)
        eventually(each_says(members, "the individual commit log was lost"))
        run.wait_for(2_000)
        members[0].signal(signal.SIGKILL)
        members[0].process.wait()
        run.restart(0)
        run.finish(3_000)


@pytest.mark.long
def test_the_log_is_compacted_under_way(broker: KafkaBroker, tmp_path: Path) -> None:
    with shared(broker, tmp_path, log_config=compacted_often()) as run:
        fill(run.group, 0, 6_000)
        members = run.start()
        for number, count in enumerate((1_000, 2_500, 4_000)):
            run.wait_for(count)
            members[number].signal(signal.SIGKILL)
            members[number].process.wait()
            run.restart(number)
        run.finish(6_000)
        eventually(lambda: records_in(broker, run.log) < broker.latest(run.log))
        for member in run.group.members:
            assert "log was lost" not in member.errors()


@pytest.mark.long
@pytest.mark.parametrize(
    "is_subscribed", [pytest.param(False, id="assigned"), pytest.param(True, id="subscribed")]
)
def test_the_log_has_no_leader_for_a_while(
    cluster: KafkaCluster, tmp_path: Path, *, is_subscribed: bool
) -> None:
    """The group's coordinator lives."""
    assert cluster.coordinator("any group") in {1, 2}  # from now on there are offsets to move
    cluster.move_leader("__consumer_offsets", 0, 1)
    # A busy machine is to drop nobody.
    config = {"session.timeout.ms": 20_000} if is_subscribed else {}
    with shared(cluster, tmp_path, config=config, on=(1, 2), is_subscribed=is_subscribed) as run:
        for name in (run.group.topic, run.log):
            cluster.wait_for_topic(name)
        members = run.start()
        produced = fill_until(lambda: run.have_records(600), run.group, 0)
        cluster.kill9(2)
        fill(run.group, produced, produced + 2_000)  # these take longer than the claims last
        produced += 2_000
        time.sleep(2)  # twice claim.timeout.ms
        stopped = run.delivered()
        eventually(each_says(members, "nothing is handed out, as others may have its key hashes"))
        assert run.delivered() == stopped < produced
        cluster.brokers[2].start()
        run.finish(produced)
        # Heartbeats went on: nobody was dropped, so nothing came again.
        assert not [line for member in members for line in member.lines() if line[0] == "lost"]
        assert sum(len(member.records()) for member in members) == produced


@pytest.mark.long
def test_the_right_to_write_to_the_log_is_taken_away(
    secure_broker: KafkaBroker, tmp_path: Path
) -> None:
    options = secure_broker.client_options("SASL_PLAINTEXT", user="stranger")
    given = {name.removeprefix("kafka."): value for name, value in options.items()}
    with shared(secure_broker, tmp_path, config=given) as run:
        members = run.start()
        produced = fill_until(lambda: run.have_records(600), run.group, 0)
        secure_broker.deny(run.log, operation=AclOperation.WRITE)
        produced = fill_until(lambda: have_ended(members), run.group, produced)
        for member in members:
            assert member.failed_with(f"AuthorizationError: not authorized to write to {run.log}")
        assert run.delivered() < produced
        secure_broker.allow_again(run.log, AclOperation.WRITE)
        run.start()
        run.finish(produced)


@pytest.mark.long
def test_kafkas_own_tool_resets_the_offsets(broker: KafkaBroker, tmp_path: Path) -> None:
    """Back to an offset amid what is committed individually: all from there on comes again."""
    with shared(broker, tmp_path) as run:
        fill(run.group, 0, 2_400)
        for number, pause in enumerate((PAUSE, PAUSE, 0.05)):  # the last one stays behind
            run.restart(number, pause=pause)
        run.wait_for(900)
        eventually(lambda: run.committed() > 100)
        end_all(run.group)
        before = list_offsets(run.group.topic, run.given)[TopicPartition(run.group.topic, 0)]
        assert before.individual_commits
        assert before.offset > 100
        reset_to(broker, run.group.topic, TopicPartition(run.group.topic, 0), 100)
        assert run.committed() == 100
        began = time.monotonic_ns()
        members = [run.restart(0)]
        eventually(members[0].records)  # so that it has written before the others look
        members += [run.restart(1), run.restart(2)]
        run.finish(2_400)
        said = [m for m in members if "reset by Kafka's own tool" in m.errors()]
        assert len(said) == 1  # the one that came first; to the others, it is as it was left
        assert "it goes on from offset 100" in said[0].errors()
        again = [r for m in run.group.members for r in m.records() if r[0] > began]
        assert sorted(offset for _, _, offset, _ in again) == list(range(100, 2_400))


@pytest.mark.long
def test_a_record_of_a_later_version(
    broker: KafkaBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All stop with an error that says what to do; after that, the group goes on."""
    with shared(broker, tmp_path) as run:
        members = run.start()
        produced = fill_until(lambda: run.have_records(600), run.group, 0)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce(run.log, b"{}", f'[2,"{run.group.topic}",0,"lease","x",0]'.encode(), 0)
        assert producer.flush(30) == 0
        produced = fill_until(lambda: have_ended(members), run.group, produced)
        for member in members:
            assert member.failed_with("LaterVersionError")
            assert f"kshare offsets drop --group {run.group.topic}" in member.errors()
        assert run.delivered() < produced
        where = ["--group", run.group.topic, "--log-topic", run.log]
        where += ["--bootstrap-servers", broker.bootstrap_servers]
        eventually(lambda: kshare(["offsets", "drop", *where]) == 0)  # once they count as dead
        capsys.readouterr()
        run.start()
        run.finish(produced)


@pytest.mark.long
def test_retention_overtakes_the_gap_of_one_process(broker: KafkaBroker, tmp_path: Path) -> None:
    """It passes over what is deleted of its key hashes, says so, and nothing else is lost."""
    with shared(broker, tmp_path, config={"max.partition.fetch.bytes": 2_000}) as run:
        topic = run.group.topic
        # A fetch has 64 KiB or more, so a process has at most 700 offsets in hand.
        rows = [(f"key-{i * i % 331}", f"{i:0200}") for i in range(6_000)]
        broker.produce(topic, rows, config={"batch.num.messages": 20})
        slow = run.restart(0, pause=0.01)  # so that it has not had all when it is stopped
        others = [run.restart(1), run.restart(2)]
        run.wait_for(600)
        slow.signal(signal.SIGSTOP)
        of_others = {
            i for i, (key, _) in enumerate(rows) if key_hash(key.encode(), i) not in THIRDS[0]
        }
        eventually(lambda: {(0, i) for i in of_others} <= run.group.delivered())
        broker.trim(topic, 0, 5_000)
        slow.signal(signal.SIGCONT)
        rest = {(0, i) for i in range(5_000, 6_000)}
        eventually(lambda: rest <= run.group.delivered())
        eventually(lambda: run.committed() == 6_000)
        end_all(run.group)
        lost = set(range(6_000)) - {offset for _, offset in run.group.delivered()}
        assert lost
        assert not lost & of_others
        assert max(lost) < 5_000
        assert "was deleted by retention or by an operator" in slow.errors()
        assert "Going on at 5000" in slow.errors()
        kept = sorted(set(range(6_000)) - lost)
        run.group.check({0: [(offset, offset + 1) for offset in kept]})
        assert all("was deleted" not in member.errors() for member in others)
