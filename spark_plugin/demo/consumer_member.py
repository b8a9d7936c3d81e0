"""One process of ``kshare demo --consumer``: reads a key range, and prints what it is given.

``python -m spark_plugin.demo.consumer_member SERVERS TOPIC GROUP LO HI``: a line ``offset key`` for
each record, until SIGTERM.
"""

import signal
import sys
import time
from collections.abc import Sequence

from kshare.group import KeySharedConsumer

_WORK_SECONDS = 0.0005  # a record, so that there is something to share


def main(arguments: Sequence[str]) -> None:
    """Consume until SIGTERM."""
    servers, topic, group, low, high = arguments
    consumer = KeySharedConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
            "claim.timeout.ms": 1000,
        }
    )
    signal.signal(signal.SIGTERM, lambda *_: consumer.close())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the demo stops its processes
    consumer.assign({(topic, 0): [(int(low), int(high))]})
    for message in consumer:
        time.sleep(_WORK_SECONDS)
        sys.stdout.write(f"{message.offset()} {(message.key() or b'').hex()}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
