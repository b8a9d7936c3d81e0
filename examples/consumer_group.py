"""A member of a key-shared group: python examples/consumer_group.py SERVERS TOPIC

Start it several times: the processes share the partitions by key. Ctrl-C ends one, and the others
take over what it had.
"""

import sys
from collections.abc import Callable

from kshare.group import KeySharedConsumer, Message


def bill(message: Message) -> None:
    print(message.partition(), message.offset(), message.key())


def main(servers: str, topic: str, handle: Callable[[Message], object] = bill) -> None:
    config = {
        "bootstrap.servers": servers,
        "group.id": "billing",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": True,
    }
    with KeySharedConsumer(config) as consumer:
        consumer.subscribe(
            [topic],
            on_assigned=lambda gained: print("gained", gained),
            on_revoked=lambda revoked: print("revoked", revoked),
        )
        for message in consumer:
            handle(message)


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2])
    except KeyboardInterrupt:
        print("left the group")
