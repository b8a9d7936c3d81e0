"""One process of ``kshare demo --consumer`` or ``--group``: prints the records that it is given.

``python -m spark_plugin.demo.member SERVERS TOPIC GROUP PID [LO HI]``: a member of the group, or
with LO and HI the reader of these key hashes. For each record a line ``time offset key``
(CLOCK_MONOTONIC in ns, the key in hexadecimal), until SIGTERM or until the process PID, the demo,
is not its parent any more.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from kshare.errors import KshareError
from kshare.group import KeySharedConsumer

_WORK_SECONDS = 0.0005  # a record, so that there is something to share
_POLL_SECONDS = 0.5


def main(arguments: Sequence[str]) -> None:
    """Consume until SIGTERM."""
    servers, topic, group, demo, *hashes = arguments
    config: dict[str, Any] = {
        "bootstrap.servers": servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
        "claim.timeout.ms": 1000,
    }
    if not hashes:
        config |= {
            "session.timeout.ms": 6000,  # brokers allow no less
            "heartbeat.interval.ms": 300,
            "max.poll.interval.ms": 15000,
        }
    consumer = KeySharedConsumer(config)
    signal.signal(signal.SIGTERM, lambda *_: consumer.close())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the demo stops its processes
    if hashes:
        low, high = map(int, hashes)
        consumer.assign({(topic, 0): [(low, high)]})
    else:
        consumer.subscribe([topic])
    try:
        while os.getppid() == int(demo):  # else the demo was killed, and nobody stops this process
            message = consumer.poll(_POLL_SECONDS)
            if message is None:
                continue
            key = (message.key() or b"").hex()
            sys.stdout.write(f"{time.monotonic_ns()} {message.offset()} {key}\n")
            sys.stdout.flush()
            time.sleep(_WORK_SECONDS)
    except (KshareError, RuntimeError):
        if not consumer.is_closed:
            raise
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1:])
