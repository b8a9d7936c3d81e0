"""A processor, as a process.

``python -m integration.processor_process SERVERS TOPIC DLQ FILE [CONFIG]``; CONFIG is JSON, for its
consumer.

It writes a line for each record that its handler was given: ``handled KEY OFFSET ATTEMPT``, with
``failed`` for those that fail: from the tenth record on of keys that end in 3, until there is a
file ``FILE.healed``. DLQ is a topic, or ``park``; or ``drain``: then each record takes half a
second, and those that would fail hang.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from kshare.group import KeySharedConsumer
from kshare.processing import DeadLetter, Park, Processor, Record, Retry


def main(servers: str, topic: str, letters: str, file: str, more: str = "{}") -> None:
    healed = Path(f"{file}.healed").exists
    out = os.open(file, os.O_WRONLY | os.O_APPEND)

    async def handler(record: Record) -> None:
        fails = record.key.endswith(b"3") and int(record.value) >= 10
        if letters == "drain":
            os.write(out, b"started - 0 0\n")
            hangs = fails and not healed()
            await asyncio.sleep(3600 if hangs else 0.5)
        await asyncio.sleep(0.01)
        fails = fails and not healed()
        what = "failed" if fails else "handled"
        line = f"{what} {record.key.decode()} {record.offset} {record.attempt}\n"
        os.write(out, line.encode())
        if fails:
            raise ValueError("no")

    processor = Processor(
        handler,
        concurrency=1000,
        drain_timeout="5s",
        retry=Retry(attempts=3, first=0.5, jitter=0.0),
        on_failure=Park() if letters == "park" else DeadLetter(letters, sequence=True),
    )
    config = {
        "bootstrap.servers": servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "acknowledgement.mode": "explicit",
        "auto.commit.interval.ms": 200,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 500,
        **json.loads(more),
    }
    processor.run(KeySharedConsumer(config), [topic])


if __name__ == "__main__":
    main(*sys.argv[1:])
