"""A registry that goes down and comes back, as the stream of a plain script sees it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.kafka import KafkaBroker
from integration.members import eventually
from integration.orders import NEWER, ORDER, order_records
from integration.spark import QUERY_S
from kshare.testing import FakeRegistry, Record
from spark_plugin.interpreter import worker_python

SCRIPT = Path(__file__).with_name("plain_orders.py")
# Other ids than ORDER's.
OTHERS = ({**ORDER, "doc": "other"}, {**ORDER, "doc": "another"})


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry(first_id=100) as fake:
        yield fake


class Script:
    """A run of the script.

    Args:
        arguments: Its arguments.
        log: Where it prints to.
    """

    def __init__(self, arguments: list[str], log: Path) -> None:
        python = {"PYSPARK_PYTHON": worker_python(), "PYSPARK_DRIVER_PYTHON": worker_python()}
        self._log = log
        with log.open("wb") as printed:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                env={**os.environ, **python, "SPARK_LOCAL_IP": "127.0.0.1"},
                start_new_session=True,
            )

    @property
    def printed(self) -> str:
        """All that it has printed."""
        return self._log.read_text(errors="replace")

    def wait_for(self, *texts: str) -> None:
        """Wait until it has printed some texts."""

        def are_there() -> bool:
            assert self.process.poll() is None, self.printed[-8000:]
            return all(text in self.printed for text in texts)

        eventually(are_there, QUERY_S)

    @property
    def orders(self) -> list[int]:
        """The orders that it has printed."""
        return [int(each) for each in re.findall(r"order (\d+) of", self.printed)]


@contextmanager
def started(arguments: list[str], log: Path) -> Iterator[Script]:
    script = Script(arguments, log)
    try:
        yield script
    finally:
        if script.process.poll() is None:
            os.killpg(script.process.pid, signal.SIGKILL)
        script.process.wait(QUERY_S)


def test_a_plain_stream_over_an_outage(
    broker: KafkaBroker, topic: str, registry: FakeRegistry, tmp_path: Path
) -> None:
    def records(schema: object, number: int, **more: object) -> list[Record]:
        return order_records(topic, registry.url, schema, range(number, number + 1), **more)

    def write(written: list[Record]) -> None:
        broker.produce(topic, written, partition=0)

    arguments = [broker.bootstrap_servers, topic, registry.url, str(tmp_path / "c")]
    unsaid = f"schema registry {registry.url} does not say schema id"
    write(records(ORDER, 0))
    with started(arguments, tmp_path / "first.log") as script:
        script.wait_for("order 0 ")
        write(records(NEWER, 1, note="n"))
        script.wait_for("order 1 ")
        known = [*records(ORDER, 2), *records(NEWER, 3, note="n")]
        unknown = [records(each, 4 + number) for number, each in enumerate(OTHERS)]
        registry.stop()

        # Ids that are known go on. One that is new waits and says for what, and goes on.
        write(known)
        script.wait_for("order 3 ")
        write(unknown[0])
        script.wait_for("WARNING kshare.formats: waits for ", f"{unsaid} 102 (")
        assert "order 4 " not in script.printed
        registry.start()
        script.wait_for("order 4 ")
        assert script.orders == [0, 1, 2, 3, 4]
        assert "HTTP Request" not in script.printed

    # A restart amid an outage: what this host knows is enough, but for an id that is new.
    registry.stop()
    write(known)
    with started(arguments, tmp_path / "second.log") as script:
        script.wait_for("order 3 ")
        assert script.orders[-2:] == [2, 3]
        kept = f"which this host has kept: id 100 (version 1 of {topic}-value)"
        assert "does not say the newest version of subject" in script.printed
        assert kept in script.printed
        write(unknown[1])
        eventually(lambda: script.process.poll() is not None, QUERY_S)
        failed = f"{topic}-0 at offset 7 names a schema, and {unsaid} 103, after 45 s: "
        assert failed in script.printed
        assert f"value is read as avro id 100 (version 1 of {topic}-value)" in script.printed
