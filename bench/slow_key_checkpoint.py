"""Record the checkpoint of a query with a slow key, for the picture in the README.

``python -m bench.slow_key_checkpoint docs/pictures/slow-key.json`` runs the query of
:mod:`bench.slow_key` for a while, parks one more key on the way, and writes what ``kshare status``
would read: the newest files of the checkpoint, the ends of the log and the parked keys.
``docs/pictures.py`` draws it.
"""

import contextlib
import json
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import functions as F

from bench.slow_key import slow_work
from integration.kafka import KafkaBroker
from integration.spark import start_spark
from kshare.errors import KshareError
from kshare.kafka.parked_keys import ParkedKeys
from kshare.monitor.status import read_checkpoint
from kshare.options import parse_options
from kshare.testing import produce, skewed_records, watermarks

TOPIC = "orders"
RECORDS = 300_000
KEYS = 1_000
SLOW_SECONDS = 0.1
PARK_AT, END_AT = RECORDS // 20, RECORDS * 6 // 10
TIMEOUT = 500.0
PARKED = b"customer-39"


def main(out: Path) -> None:
    """Run the query, and write its checkpoint to ``out``."""
    config = {"spark.python.daemon.module": "spark_plugin.daemon"}
    with KafkaBroker() as broker, tempfile.TemporaryDirectory() as folder:
        servers = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
        produce(servers, TOPIC, records())
        spark = start_spark(master="local[8]", config=config, quick=False)
        checkpoint = Path(folder) / "checkpoint"
        counts = Path(folder) / "counts"
        counts.mkdir()
        rows = (
            spark.readStream.format("kshare")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .option("keyRanges", 8)
            .option("rangeAssignor", "adaptive")
            .option("targetTaskDuration", "5s")
            .load()
        )
        query = (
            rows.withColumn("done", F.udf(slow_work(str(counts), SLOW_SECONDS), "int")("key"))
            .writeStream.format("noop")
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime="0 seconds")
            .start()
        )
        wait_for(checkpoint, PARK_AT)
        park(servers)
        wait_for(checkpoint, END_AT)
        recorded = snapshot(checkpoint, servers)
        query.stop()
        spark.stop()
    out.write_text(json.dumps(recorded, indent=1) + "\n")


def records() -> Any:
    """Each hundredth record is of the slow key, each two hundredth of the key that is parked."""
    for number, record in enumerate(skewed_records(RECORDS, KEYS)):
        if number % 100 == 7:
            yield (b"key-slow", b"v" * 50)
        elif number % 200 == 50:
            yield (PARKED, b"v" * 50)
        else:
            yield record


def wait_for(checkpoint: Path, offset: int) -> None:
    """Wait until the fastest range of a committed batch is at an offset."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        time.sleep(1)
        with contextlib.suppress(KshareError):
            (source,) = read_checkpoint(str(checkpoint)).sources
            if any(progress.front >= offset for progress in source.done.values()):
                return
    raise TimeoutError(f"the query did not reach offset {offset}")


def park(servers: str) -> None:
    """Park one key."""
    options = {"kafka.bootstrap.servers": servers, "subscribe": TOPIC}
    kafka = parse_options(options, streaming=True).options.kafka
    with closing(ParkedKeys(kafka)) as keys:
        keys.park(TOPIC, [PARKED], why="bad JSON")


def snapshot(checkpoint: Path, servers: str) -> dict[str, Any]:
    """Read what ``kshare status`` reads."""
    planned = sorted(int(file.name) for file in (checkpoint / "offsets").glob("[0-9]*"))[-2:]
    committed = max(int(file.name) for file in (checkpoint / "commits").glob("[0-9]*"))
    return {
        "offsets": {str(n): offsets_of(checkpoint / "offsets" / str(n)) for n in planned},
        "committed": committed,
        "log": watermarks(servers, TOPIC),
        "parked": [PARKED.decode()],
    }


def offsets_of(file: Path) -> str:
    """The file of a batch, without what Spark's session was set to."""
    version, _, *offsets = file.read_text().split("\n")
    return "\n".join([version, "{}", *offsets])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
