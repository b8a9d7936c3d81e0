"""A process of a group: ``python -m integration.consumer_process SERVERS TOPIC GROUP LO HI FILE``.

It appends a line ``offset key`` for each record that it is given and a line ``commit offset`` for
each commit, until SIGTERM. A fence is a line ``fenced``.
"""

import signal
import sys
import time
from pathlib import Path

from kshare.errors import ConsumerClosedError, FencedError, KshareError
from kshare.group import KeySharedConsumer


def main(servers: str, topic: str, group: str, low: str, high: str, file: str) -> None:
    consumer = KeySharedConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "claim.timeout.ms": 1000,
        }
    )
    signal.signal(signal.SIGTERM, lambda *_: consumer.close())
    consumer.assign({(topic, 0): [(int(low), int(high))]})
    with Path(file).open("a", buffering=1) as out:
        try:
            for number, message in enumerate(consumer, 1):
                out.write(f"{message.offset()} {(message.key() or b'').hex()}\n")
                time.sleep(0.001)
                if number % 300 == 0:
                    consumer.commit()
                    out.write(f"commit {message.offset()}\n")
        except FencedError:
            out.write("fenced -\n")
        except (KshareError, ConsumerClosedError):
            if not consumer.is_closed:  # else the signal came amid a commit
                raise


if __name__ == "__main__":
    main(*sys.argv[1:])
