"""A consumer that releases: ``python -m integration.releasing_process SERVERS TOPIC FILE [LAST]``.

It writes a line for each record: ``handled KEY OFFSET COUNT``, or ``released``: the first three
deliveries of records from offset 100 on whose keys end in 3. After the line LAST it only waits to
be killed, and what it writes behind is written.
"""

import os
import sys
import time

from kshare.group import KeySharedConsumer


def main(servers: str, topic: str, file: str, last: str = "") -> None:
    out = os.open(file, os.O_WRONLY | os.O_APPEND)
    config = {
        "bootstrap.servers": servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "acknowledgement.mode": "explicit",
        "enable.auto.commit": True,
        "auto.commit.interval.ms": 100,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 500,
    }
    with KeySharedConsumer(config) as consumer:
        consumer.subscribe([topic])
        while True:
            for message in consumer.consume(20, 0.2):
                if message.is_released():
                    continue
                key, offset, count = message.key(), message.offset(), message.delivery_count()
                assert key is not None
                fails = key.endswith(b"3") and offset >= 100 and count <= 3
                line = f"{'released' if fails else 'handled'} {key.decode()} {offset} {count}"
                os.write(out, f"{line}\n".encode())
                if fails:
                    consumer.release(message, 0.3)
                    while line == last:
                        time.sleep(1)
                else:
                    consumer.acknowledge(message)


if __name__ == "__main__":
    main(*sys.argv[1:])
