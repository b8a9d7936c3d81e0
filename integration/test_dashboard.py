"""The dashboard and the alerts ask for what a real Prometheus scrapes from the demo's programs.

They are those that ``docker/compose.yaml`` starts: the query, members of the group, the traffic.
"""

import re
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, start_http_server
from pyspark.sql import SparkSession

from integration.kafka import KafkaBroker
from integration.ports import free_ports
from integration.prometheus import Prometheus
from kshare.group.config.consumer_config import consumer_config
from kshare.kafka.parked_keys import ParkedKeys
from spark_plugin import KshareListener
from tests.docker.dashboard import ALERTS, alerts, labels, metrics, targets
from tests.support.clock import until
from tests.support.documents import ROOT

DEMO = ROOT / "docker/demo"


@contextmanager
def traffic(broker: KafkaBroker, topic: str) -> Iterator[None]:
    stop = threading.Event()
    main = runpy.run_path(str(DEMO / "traffic.py"))["main"]
    given = (broker.bootstrap_servers, topic, 200.0, lambda: not stop.is_set())
    thread = threading.Thread(target=main, args=given)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def members(broker: KafkaBroker, topic: str, count: int) -> Iterator[list[int]]:
    ports = free_ports(count)
    command = [sys.executable, str(DEMO / "consumer.py"), broker.bootstrap_servers, topic]
    running = [subprocess.Popen([*command, str(port)]) for port in ports]
    try:
        yield ports
    finally:
        for process in running:
            process.terminate()
        assert [process.wait(120) for process in running] == [0] * count


@contextmanager
def query(spark: SparkSession, broker: KafkaBroker, topic: str, folder: Path) -> Iterator[int]:
    registry = CollectorRegistry()
    listener = KshareListener(prometheus=registry)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    spark.streams.addListener(listener)
    start = runpy.run_path(str(DEMO / "query.py"))["start"]
    running = start(spark, broker.bootstrap_servers, topic, f"{folder}/checkpoint")
    try:
        yield server.server_port
    finally:
        running.stop()
        spark.streams.removeListener(listener)
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def prometheus(
    spark: SparkSession, broker: KafkaBroker, topic: str, tmp_path: Path
) -> Iterator[Prometheus]:
    config = consumer_config({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    keys = ParkedKeys(config.kafka)
    keys.park(topic, [b"customer-9"])
    with ExitStack() as stack:
        stack.callback(keys.close)
        stack.callback(keys.unpark, topic, [b"customer-9"])
        stack.enter_context(traffic(broker, topic))
        ports = stack.enter_context(members(broker, topic, 2))
        port = stack.enter_context(query(spark, broker, topic, tmp_path))
        places = {"query": [f"127.0.0.1:{port}"], "group": [f"127.0.0.1:{each}" for each in ports]}
        yield stack.enter_context(Prometheus(places, ALERTS))


@pytest.mark.long
def test_all_that_is_asked_for_is_there(prometheus: Prometheus) -> None:
    empty = {target.expression: target for target in targets()}

    def is_shown() -> bool:
        for expression in list(empty):
            found = prometheus.query(expression)
            if found:
                target = empty.pop(expression)
                shown = re.findall(r"{{(\w+)}}", target.legend)
                assert set(shown) <= found[0]["metric"].keys(), target
        time.sleep(0.2 if empty else 0)
        return not empty

    until(is_shown, 240, lambda: f"nothing is shown of {list(empty)}")
    for rule in alerts():
        named = labels(rule["expr"], "".join(rule["annotations"].values()))
        known: set[str] = set()
        for name in metrics(rule["expr"]):
            series = prometheus.get("series", **{"match[]": name})
            assert series, f"{rule['alert']}: there is no {name}"
            known |= series[0].keys()
        assert named <= known, rule["alert"]

    def health() -> dict[str, str]:
        rules = prometheus.get("rules")["groups"]
        return {rule["name"]: rule["health"] for group in rules for rule in group["rules"]}

    until(lambda: "unknown" not in health().values(), shown=health)
    assert health() == {rule["alert"]: "ok" for rule in alerts()}
