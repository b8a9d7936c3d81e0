"""A transactional process of a group: it writes the offset of each record to another topic.

``python -m integration.transaction_process SERVERS TOPIC OUTPUT GROUP LO HI ID FILE`` appends a
line ``begin``, ``offset N`` for each record, and ``commit``, ``abort`` or ``error`` for each
transaction, until SIGTERM; ``fenced`` ends it, too. With LO ``-`` it subscribes, as a member. With
a number after FILE, the handler of that transaction with records, or of the next one if that one
fails, writes ``hangs``, and does so until there is a file ``FILE.goes-on``. After that number, JSON
may name more configurations, and ``dies``: the number of a transaction with records amid whose
commit the process kills itself, or amid the next one's if that one does not come so far.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from kshare.errors import FencedError, KafkaError, TransactionAbortedError
from kshare.group import KeySharedConsumer

COUNT, TIMEOUT_MS = 50, 20_000
POLL_INTERVAL_MS = 6_000


def main(
    servers: str,
    topic: str,
    output: str,
    group: str,
    low: str,
    high: str,
    name: str,
    file: str,
    hangs: str = "0",
    config: str = "{}",
) -> None:
    settings = json.loads(config)
    dies, hangs_at = settings.pop("dies", 0), int(hangs)
    consumer = KeySharedConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "claim.timeout.ms": 1000,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            "transactional.id": name,
            "transaction.timeout.ms": TIMEOUT_MS,
            **({"max.poll.interval.ms": POLL_INTERVAL_MS} if hangs_at else {}),
            **settings,
        }
    )
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    if low == "-":
        consumer.subscribe([topic])
    else:
        consumer.assign({(topic, 0): [(int(low), int(high))]})
    with Path(file).open("a", buffering=1) as out, consumer:
        number = 0
        while not stopped:
            try:
                with consumer.transaction() as transaction:
                    out.write("begin\n")
                    messages = consumer.consume(COUNT, 0.5)
                    number += bool(messages)
                    for message in messages:
                        out.write(f"offset {message.offset()}\n")
                        transaction.produce(output, str(message.offset()), message.key())
                        time.sleep(0.001)
                    if messages and 0 < hangs_at <= number:
                        hangs_at = 0
                        out.write("hangs\n")
                        while not Path(f"{file}.goes-on").exists():
                            time.sleep(0.05)
                    if messages and 0 < dies <= number:
                        die_amid_commit(consumer)
                    out.write("ready\n")
                out.write("commit\n")
            except TransactionAbortedError as error:
                out.write(f"abort {error}\n")
            except FencedError as error:
                out.write(f"fenced {error}\n")
                return
            except KafkaError as error:  # the coordinator does not answer
                out.write(f"error {error}\n")


def die_amid_commit(consumer: KeySharedConsumer) -> None:
    """Kill this process once its facts are in the log, and its transaction is not decided."""
    transactions = consumer._receiver.transactions
    assert transactions is not None
    producer = transactions._producer

    def die(seconds: float) -> None:
        assert producer._sender is not None
        assert producer._sender.producer.flush(30) == 0
        os.kill(os.getpid(), signal.SIGKILL)

    producer.commit = die  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    main(*sys.argv[1:])
