"""A plain consumer, as a process: ``python -m integration.plain_process SERVERS TOPIC GROUP FILE``.

It writes the same lines as :mod:`integration.member_process`, with whole partitions, and takes its
configuration in the same way; ``pause`` is the seconds that a record takes. It commits what it has
processed, also before partitions are revoked, and ends at SIGTERM.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException


def main(servers: str, topic: str, group: str, file: str, config: str = "{}") -> None:
    settings = json.loads(config)
    pause = settings.pop("pause", 0.001)
    properties = {
        "bootstrap.servers": servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.offset.store": False,
        "auto.commit.interval.ms": 200,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 500,
        **settings,
    }
    consumer = Consumer({name: value for name, value in properties.items() if value is not None})
    is_ending = False

    def end(*_: object) -> None:
        nonlocal is_ending
        is_ending = True

    signal.signal(signal.SIGTERM, end)
    out = os.open(file, os.O_WRONLY | os.O_APPEND)

    def write(line: str) -> None:
        os.write(out, f"{line}\n".encode())

    def note(what: str) -> Callable[[Consumer, list[Any]], None]:
        def write_change(_: Consumer, partitions: list[Any]) -> None:
            which = ",".join(f"{each.partition}" for each in partitions)
            write(f"{what} {time.monotonic_ns()} {len(partitions)} {which}")
            if what == "revoked":
                with suppress(KafkaException):  # there is nothing to commit
                    consumer.commit(asynchronous=False)

        return write_change

    consumer.subscribe([topic], note("assigned"), note("revoked"), note("lost"))
    while not is_ending:
        message = consumer.poll(0.1)
        if message is None:
            continue
        error = message.error()
        if error is not None:
            write(f"error {time.monotonic_ns()} {error.name()}")
            continue
        key = (message.key() or b"").hex()
        write(f"record {time.monotonic_ns()} {message.partition()} {message.offset()} {key}")
        consumer.store_offsets(message)
        time.sleep(pause)
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
