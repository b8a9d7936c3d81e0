"""A member that is suspended while others come and go, and whose group's log is compacted then."""

import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as RdTopicPartition

from integration.group_log import compacted_often, unique
from integration.kafka import KafkaBroker
from integration.members import Group, Member, end_all, eventually
from integration.processes import PythonProcess
from integration.query_process import BATCHES, FENCED
from integration.query_process import RECORDS as BATCH
from kshare.core.hashing import WHOLE, key_hash, split
from kshare.core.progress import Progress, TopicPartition
from kshare.group.config.consumer_config import consumer_config
from kshare.group.tools.offsets import GroupOffsets

QUARTER = split(WHOLE, 4)[0]
RECORDS, KEYS = 400, 40
KEY_NAMES = [f"key-{i % KEYS}" for i in range(RECORDS)]
OF_QUARTER = {i for i, key in enumerate(KEY_NAMES) if key_hash(key.encode(), i) in QUARTER}


@pytest.fixture(params=[0, 86_400_000], ids=["tombstones go, too", "tombstones stay"])
def log(broker: KafkaBroker, request: pytest.FixtureRequest) -> str:
    """The topic of the group's log, which is compacted as often as brokers can."""
    config = {
        **compacted_often(),
        "delete.retention.ms": request.param,
        "max.compaction.lag.ms": 500,
        "segment.bytes": 1 << 20,
    }
    return broker.create_topic(unique("log"), config=config)


@pytest.fixture
def topic(broker: KafkaBroker) -> str:
    name = broker.create_topic()
    broker.produce(name, [(key, f"{i}") for i, key in enumerate(KEY_NAMES)], partition=0)
    return name


@pytest.fixture
def group(broker: KafkaBroker, topic: str, tmp_path: Path) -> Iterator[Group]:
    with closing(Group(broker, topic, tmp_path)) as running:
        yield running


def records_of(broker: KafkaBroker, log: str) -> list[tuple[bytes, bytes | None]]:
    """What the log holds now, tombstones too."""
    end, rows = broker.latest(log), list[tuple[bytes, bytes | None]]()
    reader = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "looks",
            "enable.partition.eof": True,
        }
    )
    reader.assign([RdTopicPartition(log, 0, 0)])
    try:
        while (message := reader.poll(10.0)) is not None and message.error() is None:
            rows.append((message.key() or b"", message.value()))
            if message.offset() == end - 1:
                break
    finally:
        reader.close()
    return rows


def has_claims(broker: KafkaBroker, log: str, pid: int) -> bool:
    """Whether the log holds claims of a process."""
    return any(
        b'"claim"' in key and f"-{pid}-".encode() in key and value is not None
        for key, value in records_of(broker, log)
    )


def forget_claims_of(broker: KafkaBroker, log: str, pid: int) -> None:
    """Another group writes to the log, until compaction has deleted the claims of a process."""

    def is_forgotten() -> bool:
        broker.produce(log, [("another-group", "a beat")], partition=0)
        return not has_claims(broker, log, pid)

    eventually(is_forgotten)


def progress_of(broker: KafkaBroker, group: str, at: TopicPartition, log: str) -> Progress:
    config = consumer_config({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    with closing(GroupOffsets(group, config.kafka, log)) as offsets:
        found = offsets.committed()
    return found[at].progress if at in found else Progress.at(0)


def work_in_its_place(
    broker: KafkaBroker, group: Group, log: str, stop: Callable[[], Any], **config: Any
) -> Member:
    """Suspend a member; let another one process all records of some of its hashes, and leave."""
    at = TopicPartition(group.topic, 0)
    stop()
    other = group.start_range(QUARTER, **config)
    eventually(
        lambda: progress_of(broker, group.topic, at, log).position(QUARTER) >= max(OF_QUARTER)
    )
    assert has_claims(broker, log, other.process.pid)  # once it has left, compaction may be quick
    other.end()
    forget_claims_of(broker, log, other.process.pid)
    return other


def test_a_suspended_member_hands_out_nothing_that_others_have_committed(
    broker: KafkaBroker, group: Group, log: str
) -> None:
    config = {"individual.commit.topic": log}
    suspended = group.start_range(WHOLE, pause=0.02, **config)
    eventually(lambda: len(suspended.records()) > 20)
    other = work_in_its_place(
        broker, group, log, lambda: suspended.signal(signal.SIGSTOP), **config
    )
    theirs = {offset for _, _, offset, _ in other.records()}
    assert theirs
    before = len(suspended.records())
    suspended.signal(signal.SIGCONT)
    eventually(lambda: group.delivered() == {(0, i) for i in range(RECORDS)})
    at = TopicPartition(group.topic, 0)
    eventually(lambda: progress_of(broker, group.topic, at, log).stable == RECORDS)
    end_all(group)
    # What was in hand when it was stopped is written when it goes on.
    late = [offset for _, _, offset, _ in suspended.records()[before + 1 :]]
    assert not theirs & set(late)
    assert "records are missing that others have written since" in suspended.errors()
    group.check({0: RECORDS})


def test_a_query_in_whose_place_others_have_worked_is_fenced(
    broker: KafkaBroker, group: Group, log: str, tmp_path: Path
) -> None:
    file = tmp_path / "query"
    file.touch()
    given = [broker.bootstrap_servers, group.topic, group.topic, log, str(file)]
    query = PythonProcess("integration.query_process", given)
    at = TopicPartition(group.topic, 0)
    eventually(lambda: progress_of(broker, group.topic, at, log).stable == BATCHES * BATCH)
    config = {"individual.commit.topic": log}
    work_in_its_place(broker, group, log, lambda: query.send_signal(signal.SIGSTOP), **config)
    query.send_signal(signal.SIGCONT)
    assert query.wait(120) == FENCED
    fenced = file.read_text().splitlines()[-1]
    assert f"{at}: another member of group {group.topic} has committed offset" in fenced
    assert "Start the query again" in fenced
