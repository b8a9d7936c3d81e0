"""A member of a group: ``python -m integration.member_process SERVERS TOPIC GROUP FILE [CONFIG]``.

It appends a line to the file for each thing that happens, with the time (CLOCK_MONOTONIC, ns)::

    record TIME PARTITION OFFSET KEY
    assigned TIME WIDTH PARTITION:LOW-HIGH,... EPOCH
    revoked TIME WIDTH PARTITION:LOW-HIGH,...
    lost TIME WIDTH PARTITION:LOW-HIGH,...
    closing TIME
    committed TIME PARTITION OFFSET
    anew TIME

WIDTH is how wide the key hashes are, in partitions; a PARTITION alone is all of it. ``closing``
says that SIGTERM has come, which ends it; ``anew``, that it claims again what it had, as records of
the log are missing: what it has not committed comes again.

CONFIG is JSON; beside the consumer's configuration, it has ``pause``, the seconds that a record
takes, and ``hang``: the number of a record that takes until there is a file ``FILE.goes-on``;
``hot``: a key whose records take another time, and how long; and ``assign``: the key hashes of
partition 0 to take instead of subscribing, as [[low, high]], or true for all. With ``ways``, a
seed, it receives in all ways (:mod:`integration.ways`), writes records when their call returns, and
``committed`` for those of them that the group's log says are processed. With ``output``, a topic,
it does so in transactions.
"""

import faulthandler
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from integration.ways import Ways
from kshare.core.hashing import HASH_SPACE, HashRange
from kshare.core.progress import TopicPartition
from kshare.errors import ConsumerClosedError, KshareError
from kshare.group import KeySharedConsumer


def main(servers: str, topic: str, group: str, file: str, config: str = "{}") -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    settings = json.loads(config)
    pause, assigns = settings.pop("pause", 0.001), settings.pop("assign", None)
    hang_at = settings.pop("hang", 0)
    subscribed = f"^{re.escape(topic)}$" if settings.pop("pattern", False) else topic
    hot, hot_pause = settings.pop("hot", ("", 0.0))
    seed, output = settings.pop("ways", None), settings.pop("output", "")
    settings = {
        "bootstrap.servers": servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
        "claim.timeout.ms": 1000,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 500,
        **settings,
    }
    consumer = KeySharedConsumer(settings)
    out = os.open(file, os.O_WRONLY | os.O_APPEND)

    def write(line: str) -> None:
        os.write(out, f"{line}\n".encode())  # the signal handler may write amid a line

    def close(*_: object) -> None:
        write(f"closing {time.monotonic_ns()}")
        consumer.close()

    logging.getLogger("kshare").addHandler(ClaimsAnew(write))
    signal.signal(signal.SIGTERM, close)
    signal.signal(signal.SIGUSR1, lambda *_: _say_where(consumer))
    ways = None if seed is None else Ways(consumer, settings, seed, write, output)

    def note(what: str) -> Callable[[Mapping[TopicPartition, tuple[HashRange, ...]]], None]:
        def write_change(changed: Mapping[TopicPartition, tuple[HashRange, ...]]) -> None:
            epoch = "" if what != "assigned" else epoch_of(consumer)
            if ways is not None and what == "revoked":
                ways.gone(changed)
            write(f"{change_line(what, changed)} {epoch}")

        return write_change

    with consumer:
        try:
            if assigns not in (None, False):
                consumer.assign({(topic, 0): [] if assigns is True else assigns})
            else:
                consumer.subscribe([subscribed], note("assigned"), note("revoked"), note("lost"))
            if ways is not None:
                ways.run(pause)
                return
            for number, message in enumerate(consumer, 1):
                where = f"{message.partition()} {message.offset()}"
                key = (message.key() or b"").hex()
                write(f"record {time.monotonic_ns()} {where} {key}")
                while number == hang_at and not Path(f"{file}.goes-on").exists():
                    time.sleep(0.05)
                time.sleep(hot_pause if message.key() == hot.encode() else pause)
        except (KshareError, ConsumerClosedError):
            if not consumer.is_closed:
                raise


class ClaimsAnew(logging.Handler):
    """Writes a line when a consumer claims again what it had."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        """Look at a line of the log."""
        if "claims them anew" in record.getMessage():
            self._write(f"anew {time.monotonic_ns()}")


def change_line(what: str, changed: Mapping[TopicPartition, tuple[HashRange, ...]]) -> str:
    """The line of a callback.

    Args:
        what: ``assigned``, ``revoked`` or ``lost``.
        changed: The key hashes of each partition; none are all of it.
    """
    wide = sum(sum(part.width for part in hashes) or HASH_SPACE for hashes in changed.values())
    which = ",".join(
        f"{at.partition}:{part.lo}-{part.hi}" if part else f"{at.partition}"
        for at, hashes in changed.items()
        for part in hashes or (None,)
    )
    return f"{what} {time.monotonic_ns()} {wide / HASH_SPACE:.4f} {which}"


def _say_where(consumer: KeySharedConsumer) -> None:
    """Print what keeps a consumer from its records, and where each thread is."""
    right = consumer._session._right
    now = consumer._session._now()
    print(
        f"{consumer.health()}; seconds left {right.seconds_to_deliver(now):.3f}, "
        f"proven {right.is_proven}, log read {now - right.read_at:.3f} s ago, "
        f"by the coordinator {right.coordinator and right.coordinator.seconds_to_deliver(now)}; "
        f"assigned {consumer.assignment()}",
        file=sys.stderr,
        flush=True,
    )
    faulthandler.dump_traceback()


def epoch_of(consumer: KeySharedConsumer) -> str:
    """What tells the last rebalance from others; empty among plain consumers."""
    subscriber = consumer._receiver.subscriber
    epoch = None if subscriber is None else subscriber.member.epoch
    return "" if epoch is None else f"{epoch[1]}:{epoch[0]}"


if __name__ == "__main__":
    main(*sys.argv[1:])
