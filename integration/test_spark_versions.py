"""A query whose checkpoint moves between versions of Spark, while its ranges stand apart."""

import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from integration.kafka import KafkaBroker
from integration.runs import Driver, StreamingRun
from integration.spark_versions import OLDEST, WANTED
from kshare.core.checkpoint import EXTRA_KEY
from kshare.testing import Record

KEYS = [b"key-%d" % number for number in range(8)]


@pytest.mark.long
def test_a_checkpoint_moves_to_and_fro(broker: KafkaBroker, tmp_path: Path) -> None:
    """Each time amid a batch that has not ended: killed in its tasks, or when it is written."""
    topic, produced = broker.create_topic(), 0

    def produce() -> int:
        records = [Record(KEYS[i % 8] if i % 4 == 0 else KEYS[0], b"%d" % i) for i in range(240)]
        broker.produce(topic, records)
        return produced + len(records)

    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    produced = produce()
    with Driver(folders[0], version=OLDEST) as old, Driver(folders[1]) as new:
        run = StreamingRun(broker.bootstrap_servers, topic, tmp_path, old)
        options = {"keyRanges": "3", "maxRecordsPerTask": "25"}
        run.start_and_kill("driver", "in-tasks", 2, **options)
        assert "limits" in newest(run)[EXTRA_KEY]
        assert "ic" in newest(run)[EXTRA_KEY]
        run.driver = new
        run.start_and_kill("driver", "before-commit-log", 1, **options)
        assert "ic" in newest(run)[EXTRA_KEY]
        run.driver = old
        run.start(**{**options, "maxRecordsPerTask": "80"})
        produced = produce()
        run.driver = new
        run.start(**options)
    report = run.judge({0: (0, produced)})
    assert report.ok, report


def newest(run: StreamingRun) -> dict[str, Any]:
    """The newest dict in the offset log."""
    offsets = run.offsets()
    return offsets[max(offsets)]


def test_the_spark_is_of_the_wanted_version(spark: SparkSession) -> None:
    """A matrix that runs one version four times proves nothing."""
    wanted = os.environ.get(WANTED, version("pyspark"))
    assert (pyspark.__version__, spark.version) == (wanted, wanted)
