"""A processor that writes what its handler does.

``python -m integration.handler_process SERVERS TOPIC GROUP FILE CONFIG`` appends a line to the file
for each thing that happens, with the time (CLOCK_MONOTONIC, ns)::

    began TIME PARTITION OFFSET KEY ATTEMPT
    handled|failed|later|cancelled TIME PARTITION OFFSET KEY ATTEMPT
    assigned|revoked|lost TIME WIDTH PARTITION:LOW-HIGH,...

The second says how a call has ended; ``later`` is a RetryAfter. What a record's value begins with
says what its handler does: ``ok``; ``fails N``, so many times; ``bad``, until its offset is a line
of the file HEALED; ``later``, once in each process; ``hangs`` at the first attempt, in a coroutine.

CONFIG is JSON; beside the consumer's configuration it has ``policy``, one of :data:`POLICIES`,
``letters``, a topic, ``healed``, a file, and ``plain``: whether the handler is a plain function.
"""

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from integration.member_process import ClaimsAnew, change_line
from kshare.core.hashing import HashRange
from kshare.core.progress import TopicPartition
from kshare.group import KeySharedConsumer
from kshare.processing import DeadLetter, Park, Processor, Record, Retry, RetryAfter, Stop
from kshare.processing.policy import FailurePolicy

__all__ = ["ATTEMPTS", "FIRST_SECONDS", "JITTER", "LATER_SECONDS", "POLICIES", "main"]

POLICIES: Final = ("stop", "dead letters", "sequences", "park")
ATTEMPTS: Final = 4
FIRST_SECONDS: Final = 0.2
MOST_SECONDS: Final = 1.0
JITTER: Final = 0.2
LATER_SECONDS: Final = 0.5
_CALL_SECONDS: Final = 0.01
_TIMEOUT: Final = "2s"


def policy_of(name: str, letters: str) -> FailurePolicy:
    """The policy with one of the names."""
    if name == "stop":
        return Stop()
    if name == "park":
        return Park()
    return DeadLetter(letters, sequence=name == "sequences")


class Noted(KeySharedConsumer):
    """A consumer that writes what it is assigned; what is revoked, when all of it has ended."""

    out: int

    def subscribe(self, topics: Any, *given: Any, **listeners: Any) -> None:
        assert not given
        noted = {f"on_{what}": self._noted(what, listeners) for what in _CHANGES}
        super().subscribe(topics, **{**listeners, **noted})

    def _noted(self, what: str, listeners: Mapping[str, Any]) -> Any:
        own = listeners.get(f"on_{what}")

        def changed(hashes: Mapping[TopicPartition, tuple[HashRange, ...]]) -> None:
            if own is not None:
                own(hashes)
            os.write(self.out, f"{change_line(what, hashes)}\n".encode())

        return changed


_CHANGES: Final = ("assigned", "revoked", "lost")


class Handler:
    """What is called for each record, as a coroutine function or a plain one.

    Args:
        out: Where lines go.
        healed: The file of offsets that fail no more.
    """

    def __init__(self, out: int, healed: Path) -> None:
        self._out, self._healed = out, healed
        self._later: set[int] = set()

    async def call(self, record: Record) -> None:
        """Handle a record."""
        self._note("began", record)
        try:
            is_first = record.failures == 0
            hangs = self._says(record, "hangs") and is_first
            await asyncio.sleep(3600.0 if hangs else _CALL_SECONDS)
        except asyncio.CancelledError:
            self._note("cancelled", record)
            raise
        self._end(record)

    def call_plain(self, record: Record) -> None:
        """Handle a record."""
        self._note("began", record)
        time.sleep(_CALL_SECONDS)
        self._end(record)

    def _end(self, record: Record) -> None:
        words = record.value.split()
        fails = int(words[1]) if words[0] == b"fails" else 0
        if self._says(record, "later") and record.offset not in self._later:
            self._later.add(record.offset)
            self._note("later", record)
            raise RetryAfter(LATER_SECONDS)
        if record.failures < fails or (self._says(record, "bad") and not self._is_well(record)):
            self._note("failed", record)
            raise ValueError("no")
        self._note("handled", record)

    def _is_well(self, record: Record) -> bool:
        return str(record.offset) in self._healed.read_text().split()

    def _says(self, record: Record, word: str) -> bool:
        return bool(record.value.startswith(word.encode()))

    def _note(self, what: str, record: Record) -> None:
        where = f"{record.partition} {record.offset} {record.key.hex()} {record.failures + 1}"
        os.write(self._out, f"{what} {time.monotonic_ns()} {where}\n".encode())


def main(servers: str, topic: str, group: str, file: str, config: str) -> None:
    """Run it until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    settings = json.loads(config)
    policy = policy_of(settings.pop("policy"), settings.pop("letters", ""))
    out = os.open(file, os.O_WRONLY | os.O_APPEND)
    handler = Handler(out, Path(settings.pop("healed")))
    processor = Processor(
        handler.call_plain if settings.pop("plain", False) else handler.call,
        concurrency=16,
        timeout=_TIMEOUT,
        drain_timeout="3s",
        retry=Retry(ATTEMPTS, FIRST_SECONDS, MOST_SECONDS, JITTER),
        on_failure=policy,
    )
    consumer = Noted(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "acknowledgement.mode": "explicit",
            **settings,
        }
    )
    consumer.out = out

    def write(line: str) -> None:
        os.write(out, f"{line}\n".encode())

    logging.getLogger("kshare").addHandler(ClaimsAnew(write))
    processor.run(consumer, [topic])


if __name__ == "__main__":
    main(*sys.argv[1:])
