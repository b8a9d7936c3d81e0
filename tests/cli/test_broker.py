"""``kshare broker`` as a user runs it: a process of its own, which Ctrl+C ends."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice

import pytest
from confluent_kafka import Consumer, TopicPartition

from kshare import cli
from kshare.cli import broker
from kshare.errors import KshareError
from kshare.testing import FakeCluster, watermarks


@contextmanager
def running() -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The process, where it is, and what it said at its start."""
    command = [sys.executable, "-m", "kshare", "broker", "--port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            while "Ctrl+C ends it.\n" not in said:
                line = process.stdout.readline()
                assert line, said
                said += line
            address = re.search(r"localhost:\d+", said)
            assert address, said
            yield process, address[0], said
        finally:
            process.kill()


def test_it_has_orders_and_more_come() -> None:
    with running() as (_, servers, said):
        with closing(Consumer({"bootstrap.servers": servers, "group.id": "g"})) as consumer:
            consumer.assign([TopicPartition("orders", 0, 0)])
            messages: list[tuple[bytes | None, bytes | None]] = []
            while len(messages) < 20_010:  # 20,000 were there
                read = consumer.consume(500, 1.0)
                assert all(message.error() is None for message in read)
                messages += [(message.key(), message.value()) for message in read]
        keys = {key for key, _ in messages}
        assert keys == {b"customer-%d" % n for n in range(1, 41)}
        values = [json.loads(value or b"") for _, value in messages]
        assert [value["order"] for value in values] == list(range(1, len(values) + 1))
        assert "1 partition, 20,000 records, 5 more each second" in said
        assert f"kshare doctor --bootstrap-servers {servers} --topic orders" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_while_clients_are_connected(number: signal.Signals) -> None:
    with running() as (process, servers, _):
        host, _, port = servers.rpartition(":")
        with socket.create_connection((host, int(port))):
            process.send_signal(number)
            rest, _ = process.communicate(timeout=60)
        assert (process.returncode, rest) == (
            0,
            "\nThe broker has ended, and its records with it.\n",
        )


@pytest.mark.parametrize(("family", "host"), broker._LOOPBACK)
def test_a_port_that_is_taken(family: socket.AddressFamily, host: str) -> None:
    """At either of the two addresses: a client that asks for localhost may reach the other one."""
    with socket.create_server((host, 0), family=family) as other:
        port = other.getsockname()[1]
        with pytest.raises(KshareError, match=rf"port {port} is taken.* --port {port + 1}"):
            broker._listen(port)
    for listener in broker._listen(port):
        listener.close()


def test_a_port_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["broker", "--port", "65536"])
    assert ended.value.code == 2
    assert "--port 65536: wanted 0 to 65535" in capsys.readouterr().err


def test_the_broker_keeps_all_orders_that_come() -> None:
    """Even as they come: a batch for each second."""
    with FakeCluster(topics={"orders": 1}) as cluster:
        config = {**broker._CONFIG, "linger.ms": 1000, "batch.num.messages": 5}
        made = islice(broker.orders(), broker._ORDERS_MAX)
        cluster.produce("orders", made, config=config)
        assert watermarks(cluster.bootstrap_servers, "orders") == (0, broker._ORDERS_MAX)
