"""Record what the dashboard shows, for its picture in the documentation.

``python -m bench.dashboard docs/pictures/dashboard.json`` runs the programs of ``docker/compose.yaml``
(a query, three members of a group, traffic) against a broker and a Prometheus for three minutes. One
member is stopped halfway. Then it asks for what each panel shows. ``docs/pictures.py`` draws it.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from integration.kafka import KafkaBroker
from integration.prometheus import Prometheus
from integration.spark import start_spark
from integration.test_dashboard import members, query, traffic
from tests.docker.dashboard import ALERTS, targets

SECONDS = 180
STEP = 3
TOPIC = "orders"


def main(out: Path) -> None:
    """Run it, and write what Prometheus has scraped to ``out``."""
    with KafkaBroker() as broker, tempfile.TemporaryDirectory() as folder:
        spark = start_spark(quick=False)
        with (
            traffic(broker, TOPIC),
            members(broker, TOPIC, 2) as staying,
            query(spark, broker, TOPIC, Path(folder)) as port,
        ):
            with members(broker, TOPIC, 1) as leaving:
                places = [f"127.0.0.1:{each}" for each in [*staying, *leaving]]
                jobs = {"query": [f"127.0.0.1:{port}"], "group": places}
                prometheus = Prometheus(jobs, ALERTS)
                prometheus.__enter__()
                time.sleep(SECONDS / 2)
            with prometheus:
                time.sleep(SECONDS / 2)
                end = time.time()
                shown = [
                    prometheus.get(
                        "query_range",
                        query=target.expression,
                        start=str(end - SECONDS),
                        end=str(end),
                        step=str(STEP),
                    )["result"]
                    for target in targets()
                ]
        spark.stop()
    start = end - SECONDS
    for result in shown:
        for series in result:
            series["values"] = [
                [round(at - start), float(f"{float(value):.3g}")]
                for at, value in series["values"]
                if value != "NaN"
            ]
    lines = ",\n".join(json.dumps(result, separators=(",", ":")) for result in shown)
    out.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
