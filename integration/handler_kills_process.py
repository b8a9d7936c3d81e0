"""A processor with the default commit interval, as a process.

``python -m integration.handler_kills_process SERVERS TOPIC DLQ FILE WAY``. It writes a line for
each call that its handler begins: ``KEY OFFSET ATTEMPT PID SECONDS``, by the machine's clock. By
WAY:

- ``sequence``: records with the value ``bad`` fail for good at once, and those behind follow;
- ``blocks``: the first step of each call blocks the event loop for a while;
- ``fails``: each call takes a while, and fails.
"""

import asyncio
import os
import time

from kshare.group import KeySharedConsumer
from kshare.processing import DeadLetter, Processor, Record, Retry


def main(servers: str, topic: str, letters: str, file: str, way: str) -> None:
    out = os.open(file, os.O_WRONLY | os.O_APPEND)

    async def handler(record: Record) -> None:
        line = f"{record.key.decode()} {record.offset} {record.attempt} {os.getpid()}"
        os.write(out, f"{line} {time.monotonic():.6f}\n".encode())
        if way == "blocks":
            time.sleep(0.02)  # noqa: ASYNC251 - it is to
        elif way == "fails":
            await asyncio.sleep(1.0)
        if way == "fails" or record.value == b"bad":
            raise ValueError("no")

    processor = Processor(
        handler,
        retry=Retry(attempts=2 if way == "fails" else 1, first=0.5, most=0.5, jitter=0.0),
        on_failure=DeadLetter(letters, sequence=way == "sequence"),
    )
    config = {
        "bootstrap.servers": servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "acknowledgement.mode": "explicit",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 500,
    }
    processor.run(KeySharedConsumer(config), [topic])
