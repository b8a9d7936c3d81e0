"""``kshare broker``: a broker on this machine with orders to read, until Ctrl+C.

::

    client -- first connection --> localhost:9092 -- bytes --> embedded broker, at a port that
       |                                                       the system chose
       +-- all others: the broker's metadata names its own port ---^

The broker is :class:`kshare.testing.FakeCluster`'s, so it needs no Java, no Docker and no download,
and what holds for it holds here: 5 MiB a partition, nothing is kept, no checksums on the markers of
transactions. Cost: a connection's two tasks, and a batch of records each second.
"""

import argparse
import asyncio
import errno
import json
import random
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count, islice
from typing import Final

from confluent_kafka import Producer

from kshare.errors import KshareError
from kshare.kafka.topics import (
    INDIVIDUAL_COMMITS_TOPIC,
    LEDGER_TOPIC,
    PARKED_TOPIC,
    POLICIES_TOPIC,
)
from kshare.testing import FakeCluster, Record, produce_all
from kshare.testing.records import producer_config

__all__ = ["orders", "run"]

_TOPIC: Final = "orders"
_OWN_TOPICS: Final = (INDIVIDUAL_COMMITS_TOPIC, LEDGER_TOPIC, PARKED_TOPIC, POLICIES_TOPIC)
_CUSTOMERS: Final = 40
_COUNTRIES: Final = ("DE", "FR", "IN", "JP", "US")
_FIRST_ORDERS: Final = 20_000
_ORDERS_PER_SECOND: Final = 5
_ORDERS_MAX: Final = 60_000
"""The broker drops the oldest batches beyond 5 MiB, and a query that has not read them would have
lost them. This number of orders, in a batch each second, takes less."""
_CONFIG: Final = {"compression.type": "lz4", "linger.ms": 10}
_CHUNK: Final = 1 << 16
_LOOPBACK: Final = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
"""All that ``localhost`` may stand for."""


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Serve until the user ends it; return the exit code.

    Raises:
        SystemExit: There is no such port (code 2).
        KshareError: The port cannot be had.
    """
    if not 0 <= arguments.port < 1 << 16:
        parser.error(f"--port {arguments.port}: wanted 0 to 65535")
    listeners = _listen(arguments.port)
    with FakeCluster(topics=dict.fromkeys((_TOPIC, *_OWN_TOPICS), 1)) as cluster:
        made = orders()
        cluster.produce(_TOPIC, islice(made, _FIRST_ORDERS))
        asyncio.run(_serve(cluster, listeners, made))
    sys.stdout.write("\nThe broker has ended, and its records with it.\n")
    return 0


def orders() -> Iterator[Record]:
    """The records of the topic: the same ones each time."""
    for number in count(1):
        chance = random.Random(number)  # noqa: S311 - no secret
        order = {
            "order": number,
            "country": chance.choice(_COUNTRIES),
            "amount": chance.randrange(100, 20_000) / 100,
        }
        yield Record(f"customer-{chance.randint(1, _CUSTOMERS)}", json.dumps(order))


def _listen(port: int) -> list[socket.socket]:
    """Take a port of this machine, for each address that ``localhost`` may stand for.

    Raises:
        KshareError: It cannot be had.
    """
    listeners: list[socket.socket] = []
    for family, host in _LOOPBACK:
        try:
            listeners.append(socket.create_server((host, port), family=family))
        except OSError as error:
            if listeners and error.errno in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                continue  # a machine without IPv6
            for listener in listeners:
                listener.close()
            if error.errno == errno.EADDRINUSE:
                raise KshareError(
                    f"port {port} is taken, maybe by another broker: give a free one, such as "
                    f"--port {port + 1}, and name it where a snippet says localhost:9092"
                ) from error
            raise KshareError(f"cannot listen at {host}, port {port}: {error}") from error
        port = port or listeners[0].getsockname()[1]
    return listeners


async def _serve(
    cluster: FakeCluster, listeners: list[socket.socket], made: Iterator[Record]
) -> None:
    """Pass connections on, and produce, until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    host, _, behind = cluster.bootstrap_servers.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # At the end of the loop, Python 3.11 shows the traceback of a task that was cancelled.
        with suppress(OSError, asyncio.CancelledError):
            to_client = await asyncio.open_connection(host, int(behind))
            await asyncio.gather(_pass_on(reader, to_client[1]), _pass_on(to_client[0], writer))

    with ExitStack() as stack:
        for listener in listeners:
            # Nobody waits until it is closed: clients that stay connected would keep it open.
            stack.callback((await asyncio.start_server(serve, sock=listener)).close)
        sys.stdout.write(_welcome(f"localhost:{listeners[0].getsockname()[1]}"))
        sys.stdout.flush()
        await _produce(cluster, made, stop)
        await stop.wait()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what is read, until one of the two ends hangs up."""
    try:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()


async def _produce(cluster: FakeCluster, made: Iterator[Record], stop: asyncio.Event) -> None:
    """Produce some orders each second, as many as the broker can keep."""
    producer = Producer(producer_config(cluster.bootstrap_servers) | _CONFIG)
    for _ in range((_ORDERS_MAX - _FIRST_ORDERS) // _ORDERS_PER_SECOND):
        produce_all(producer, _TOPIC, islice(made, _ORDERS_PER_SECOND))
        producer.poll(0)
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 1.0)
            return
    sys.stdout.write(
        f"{_TOPIC} has {_ORDERS_MAX:,} records, which is what this broker can keep: no more come.\n"
    )
    sys.stdout.flush()


def _welcome(address: str) -> str:
    """The text that says what there is, and what to do with it."""
    example = next(orders())
    return f"""\
A broker for trying things out is at {address}, for programs on this machine.

Topic {_TOPIC}: 1 partition, {_FIRST_ORDERS:,} records, {_ORDERS_PER_SECOND} more each second.
  key    customer-1 to customer-{_CUSTOMERS}
  value  JSON, such as {example.value!s}
Other topics are made when they are first written.

Next, in another terminal:
  kshare doctor --bootstrap-servers {address} --topic {_TOPIC}
Then the snippets of docs/getting-started.md, or the ten lines of the README.

Records are in memory, and gone when it ends. For transactions (exactlyOnce, kshare replay) take a
real Kafka. Ctrl+C ends it.
"""
