"""The checkpoint: a driver killed with -9, and one checkpoint for both sources in turn."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.kafka import KafkaBroker
from integration.runs import Driver, StreamingRun
from kshare.cli.checkpoint import drop_ranges
from kshare.core.checkpoint import EXTRA_KEY
from kshare.testing import Record


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with Driver(tmp_path_factory.mktemp("checkpoint")) as running:
        yield running


def produce(broker: KafkaBroker, topic: str, count: int, partition: int | None = None) -> None:
    records = [Record(b"key-%d" % (number % 23), b"v") for number in range(count)]
    broker.produce(topic, records, partition=partition)


@pytest.mark.parametrize("later", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_driver_is_killed_in_batch_0_and_later(
    driver: Driver, broker: KafkaBroker, tmp_path: Path, later: int
) -> None:
    """Records produced after the kill do not get into the batch planned before it."""
    topic = broker.create_topic()
    produce(broker, topic, 100)
    run = StreamingRun(
        broker.bootstrap_servers, topic, tmp_path, driver, keyRanges="3", maxOffsetsPerTrigger="80"
    )
    run.start_and_kill("driver", "after-offset-log", batch=0)
    planned = run.offsets()
    assert planned[0][topic]["0"] == 80
    assert planned[0][EXTRA_KEY]["start"] == {topic: {"0": 0}}
    for _ in range(later):
        produce(broker, topic, 100)
        run.start_and_kill("driver", "before-commit-log", batch=1, keyRanges="2")
    produce(broker, topic, 100)
    run.start(keyRanges="5")
    report = run.judge({0: (0, 200 + 100 * later)})
    assert report.ok, str(report)
    assert run.offsets()[0] == planned[0]


def test_batch_0_begins_where_it_was_planned(
    driver: Driver, broker: KafkaBroker, tmp_path: Path
) -> None:
    """Spark does not keep a Python source's first offset; the dict of batch 0 does."""
    topic = broker.create_topic()
    produce(broker, topic, 50)
    run = StreamingRun(broker.bootstrap_servers, topic, tmp_path, driver)
    assert run.try_to_start("kshare", None, startingOffsets="latest") is None
    produce(broker, topic, 30)
    # The sink fails before batch 1 is noted as done: it runs again after a restart.
    kill = {"what": "planner", "where": "before-commit-log", "batch": 0, "rows": 1}
    assert run.try_to_start("kshare", kill, startingOffsets="latest") is not None
    produce(broker, topic, 20)
    run.start(startingOffsets="latest")
    report = run.judge({0: (50, 100)})
    assert report.ok, str(report)


def test_from_sparks_source_and_back(driver: Driver, broker: KafkaBroker, tmp_path: Path) -> None:
    topic = broker.create_topic(partitions=2)
    run = StreamingRun(broker.bootstrap_servers, topic, tmp_path, driver)
    read = 0
    for source, more in (
        ("kafka", {}),
        ("kshare", {"keyRanges": "3"}),
        ("kafka", {"minPartitions": "5"}),
        ("kshare", {"minPartitions": "5"}),
    ):
        for partition in (0, 1):
            produce(broker, topic, 40, partition)
        run.start(source, **more)
        read += 40
        # Spark's own cuts by offset have no order for a key: what counts there is what came.
        report = run.judge({(topic, 0): (0, read), (topic, 1): (0, read)}, has_order=False)
        assert not report.lost, str(report)
        assert not report.duplicated, str(report)
    last = run.offsets()
    assert last[max(last)] == {topic: {"0": read, "1": read}}


def test_ours_begins_and_sparks_goes_on(
    driver: Driver, broker: KafkaBroker, tmp_path: Path
) -> None:
    """A query that was begun by kshare can be handed to Spark's source once it is stopped.

    After its first batch it is set back first; later, the offsets are as Spark's source has them.
    """
    topic = broker.create_topic()
    produce(broker, topic, 60)
    run = StreamingRun(broker.bootstrap_servers, topic, tmp_path, driver, keyRanges="4")
    run.start()
    assert list(run.offsets()) == [0]
    result = drop_ranges(str(run.checkpoint))
    assert (result.dropped, result.replaced, result.is_plain) == ((), (0,), True)
    assert run.offsets() == {0: {topic: {"0": 60}}}
    run.options.clear()
    for source in ("kafka", "kshare", "kafka"):
        produce(broker, topic, 60)
        run.start(source)
    report = run.judge({0: (0, 240)})
    assert report.ok, str(report)


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "planned"])
@pytest.mark.parametrize("source", ["kshare", pytest.param("kafka", marks=pytest.mark.long)])
def test_ranges_are_dropped(
    driver: Driver, broker: KafkaBroker, tmp_path: Path, source: str, committed: bool
) -> None:
    """A query with ranges that are ahead goes on from its stable offsets, with either source."""
    topic = broker.create_topic()
    produce(broker, topic, 120)
    run = StreamingRun(broker.bootstrap_servers, topic, tmp_path, driver)
    ranges = {"keyRanges": "3", "maxRecordsPerTask": "20", "parkedKeys": '["key-5"]'}
    run.start(**ranges)
    produce(broker, topic, 30)
    if not committed:
        kill = {"what": "planner", "where": "before-commit-log", "batch": 0, "rows": 1}
        assert run.try_to_start("kshare", kill, None, **ranges) is not None
    result = drop_ranges(str(run.checkpoint))
    # Of the parked key nothing is known to be processed, not even that it has no earlier record.
    assert [dropped.stable for dropped in result.dropped] == [0]
    assert len(result.replaced) == (1 if committed else 2)
    offsets = run.offsets()
    assert all(offsets[batch] == {topic: {"0": 0}} for batch in result.replaced)
    run.start(source)
    report = run.judge({0: (0, 150)})
    assert not report.lost, str(report)
    assert report.duplicated
