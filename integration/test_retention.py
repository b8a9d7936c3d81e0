"""What a broker says of retention, and the warning before it deletes what is pending.

No test waits for the broker to delete; records are written with timestamps old enough.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from integration.kafka import KafkaBroker
from kshare.core.progress import TopicPartition
from kshare.kafka.cluster import Cluster
from kshare.kafka.topic_config import TopicConfig
from kshare.monitor.report import decode_report
from kshare.options import SourceOptions, parse_options
from kshare.query.planner import StreamPlanner
from kshare.testing import Record

HOUR_MS, MIB = 3_600_000, 1 << 20
COUNT = 100
AGED = {"retention.ms": 10 * HOUR_MS}
BOUNDED = {"retention.bytes": 10 * MIB, "segment.bytes": MIB, "max.message.bytes": MIB}


def topic_of(broker: KafkaBroker, config: dict[str, int | str], age_hours: float = 0.0) -> str:
    """Make a topic of one partition with records of an age."""
    topic = broker.create_topic(config=config)
    written_ms = int(time.time() * 1000 - age_hours * HOUR_MS)
    broker.produce(topic, [Record(b"k", b"v", timestamp=written_ms)] * COUNT)
    return topic


def options_of(broker: KafkaBroker, topic: str) -> SourceOptions:
    settings = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic}
    return parse_options(settings, streaming=True).options


@contextmanager
def planner_of(broker: KafkaBroker, topic: str) -> Iterator[StreamPlanner]:
    options = options_of(broker, topic)
    with closing(StreamPlanner(options, Cluster(options.kafka))) as planner:
        yield planner


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (AGED, TopicConfig(False, 10 * HOUR_MS, batch_bytes=64 * MIB)),
        (
            BOUNDED,
            TopicConfig(False, None, retention_bytes=10 * MIB, segment_bytes=MIB, batch_bytes=MIB),
        ),
        (
            {"cleanup.policy": "compact", **AGED, **BOUNDED},
            TopicConfig(True, None, segment_bytes=MIB, batch_bytes=MIB),
        ),
        (
            {"cleanup.policy": "compact,delete", "message.timestamp.type": "LogAppendTime", **AGED},
            TopicConfig(True, 10 * HOUR_MS, log_append_time=True, batch_bytes=64 * MIB),
        ),
    ],
)
def test_what_a_broker_says_of_a_topic(
    broker: KafkaBroker, config: dict[str, int | str], expected: TopicConfig
) -> None:
    topic = broker.create_topic(config=config)
    with closing(Cluster(options_of(broker, topic).kafka)) as cluster:
        assert cluster.topic_configs([topic]) == {topic: expected}
        assert cluster.topic_configs(["not-there", topic]) == {topic: expected}


@pytest.mark.parametrize(
    ("config", "age_hours", "trimmed", "stable", "text"),
    [
        (AGED, 9, 0, 25, "older than 80 % of the topic's retention time"),
        (AGED, 7, 0, 25, None),
        (AGED, 9, 0, COUNT, None),
        (BOUNDED, 0, 20, 25, f"near the start of the log, which begins at 20 and ends at {COUNT}"),
        (BOUNDED, 0, 20, 50, None),
        ({"cleanup.policy": "compact", **AGED, **BOUNDED}, 9, 0, 0, None),
    ],
)
def test_a_run_that_goes_on_warns_in_its_first_trigger(
    broker: KafkaBroker,
    caplog: pytest.LogCaptureFixture,
    config: dict[str, int | str],
    age_hours: float,
    trimmed: int,
    stable: int,
    text: str | None,
) -> None:
    topic = topic_of(broker, config, age_hours)
    if trimmed:
        broker.trim(topic, 0, trimmed)
    with planner_of(broker, topic) as planner, caplog.at_level(logging.WARNING, "kshare.planner"):
        planner.pin_latest()
        planner.latest_offsets({topic: {"0": stable}}, None)
        reports = decode_report(planner.seen_offsets() or {})
    tp = TopicPartition(topic, 0)
    at_risk = tp in reports and reports[tp].retention_at_risk
    lines = [line for line in caplog.messages if "are pending and" in line]
    assert (len(lines), at_risk) == ((0, False) if text is None else (1, True))
    if text is not None:
        assert f"{tp}: records from offset {stable} on are pending and {text}" in lines[0]
