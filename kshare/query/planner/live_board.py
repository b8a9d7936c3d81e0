"""Shows where the tasks of an open batch are, while it runs: see :mod:`kshare.core.live`.

::

    tasks --> feedback server --> each second: a file for listeners on this host
                                               a record in the log of ends, for everybody else

Guarantees: best effort; nothing that a planner decides depends on it, and no call waits for it.
Cost: a thread and a client of librdkafka while tasks report; about 60 bytes a range and second in
the log of ends, and no more than some 15 KB a second: with more ranges it is said less often.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kshare.core.live import (
    RECENT_SECONDS,
    Latency,
    Live,
    LiveRange,
    encode_live,
    live_key,
    run_of,
)
from kshare.core.open_entry import OpenBatch
from kshare.core.tasks import OpenTask
from kshare.errors import KafkaError
from kshare.kafka.row_writer import RowWriter
from kshare.monitor.live_file import clear_live, clear_old, write_live
from kshare.options import KafkaConfig
from kshare.query.feedback.messages import Reading
from kshare.query.feedback.server import FeedbackServer

__all__ = ["LiveBoard"]

_log = logging.getLogger("kshare.planner")

_EVERY_SECONDS: Final = 1.0
_RANGES_A_SECOND: Final = 250
_WRITE_SECONDS: Final = 5.0


class LiveBoard:
    """Hears of the tasks of a query's open batches, and shows where they are.

    Args:
        kafka: How the cluster is reached.
        feedback: What tasks report to; None starts a server when it is needed.
        every_seconds: How often to show it.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        feedback: FeedbackServer | None = None,
        *,
        every_seconds: float = _EVERY_SECONDS,
    ) -> None:
        self._kafka = kafka
        self._feedback = feedback
        self._every_seconds = every_seconds
        self._writer = RowWriter(kafka)
        self._shown: tuple[OpenBatch, tuple[OpenTask, ...]] | None = None  # replaced as a whole
        self._runs = set[str]()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self, batch: OpenBatch, tasks: Sequence[OpenTask]) -> tuple[OpenTask, ...]:
        """Show a batch from now on, in place of the one before.

        Args:
            batch: The batch, which is about to run.
            tasks: Its tasks.

        Returns:
            The tasks, with tickets to report by; as they are if no task can.
        """
        if self._feedback is None:
            self._feedback = FeedbackServer(
                self._kafka.bootstrap_servers[0],
                without="status, top and listeners show where the last batch began",
            )
        if not self._feedback.start():
            return tuple(tasks)
        self._feedback.retain({batch.name})
        told = tuple(
            replace(task, ticket=self._feedback.ticket(batch.name, number, hold=False))
            for number, task in enumerate(tasks)
        )
        self._shown = batch, told
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kshare-live", daemon=True)
            self._thread.start()
        return told

    def close(self) -> None:
        """Show nothing any more, and close the connections."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_WRITE_SECONDS)
        for run in self._runs:
            clear_live(run)
        self._writer.close()
        if self._feedback is not None:
            self._feedback.close()

    # -- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        clear_old()
        recent, last = _Recent(), None
        wait, has_failed = self._every_seconds, False
        while not self._closed.wait(wait):
            try:
                now = self._now(recent)
                if now is None or (last is not None and now[1].says_as(last)):
                    continue
                last = now[1]
                wait = max(self._every_seconds, len(last.ranges) / _RANGES_A_SECOND)
                self._show(*now)
                has_failed = False
            except (KafkaError, OSError) as error:
                if not has_failed:
                    _log.warning(
                        "where the tasks of this query are is not shown to status, top and "
                        "listeners, and its reading goes on: %s",
                        error,
                    )
                has_failed = True
            except Exception:  # a defect; the query goes on
                _log.exception("where the tasks of this query are is not shown any more")
                return

    def _now(self, recent: "_Recent") -> tuple[OpenBatch, Live] | None:
        """What is known of the batch that runs; None if nothing is."""
        if self._shown is None or self._feedback is None:
            return None
        batch, tasks = self._shown
        heard = self._feedback.readings(batch.name)
        if not heard:
            return None
        latency = Latency.total(each.latency for each in heard.values())
        live = Live(
            batch.name,
            round(time.time() * 1000),
            tuple(each for number, said in heard.items() for each in _ranges(tasks[number], said)),
            latency,
            recent.add(time.monotonic(), batch.name, latency),
        )
        return batch, live

    def _show(self, batch: OpenBatch, live: Live) -> None:
        run = run_of(batch.name)
        self._runs.add(run)
        write_live(live)
        row = live_key(run), encode_live(live)
        self._writer.write(batch.topic, [row], batch.log.partition, _WRITE_SECONDS)


class _Recent:
    """The latency of the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Latency]] = deque()
        self._batch: str | None = None

    def add(self, now: float, batch: str, latency: Latency) -> Latency:
        """Take note of what was counted of a batch so far; return what is new of it."""
        if batch != self._batch:  # which counts anew
            self._batch = batch
            self._seen.clear()
        while len(self._seen) > 1 and self._seen[1][0] <= now - RECENT_SECONDS:
            self._seen.popleft()
        before = self._seen[0][1] if self._seen else None
        self._seen.append((now, latency))
        return latency if before is None else latency.since(before)


def _ranges(task: OpenTask, said: Reading) -> list[LiveRange]:
    """Where the ranges of a task are; none if what it says is of another one."""
    if len(said.positions) != len(task.ranges):
        return []
    return [
        LiveRange(each.id.partition, each.id.number, each.hashes.span, position, end)
        for each, position, end in zip(task.ranges, said.positions, said.ends, strict=True)
    ]
