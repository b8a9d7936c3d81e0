"""The rows of a task that reads for a while, through a processor: handlers in the reader.

::

    OpenReader --rows--> noted as unhandled --> engine, in the event loop's thread
        ^  ^                                        |
        |  +------------- wakes the reader ---------+
        |                                           v
        +-- where the range ends <-- unhandled --> outcomes --> rows, at once

The reader and this share one thread and :class:`~kshare.core.unhandled.Unhandled`: what is handed
over and where a range ends are one and the same. See docs/design/real-time.md.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from typing import Any, Final

import pyarrow as pa

from kshare.core.hashing import key_hash
from kshare.core.progress import TopicPartition
from kshare.dead_letters.record import Record
from kshare.dead_letters.writer import Letters
from kshare.edge import edge
from kshare.kafka.protocol.wait_log import WaitLog
from kshare.processing.frame_rows import no_rows, records_of_rows, rows_of_outcomes
from kshare.processing.frame_task import FrameTask, letters_of, running
from kshare.processing.handling import Handling
from kshare.processing.held import SAY_SECONDS
from kshare.processing.task_loop import in_loop
from kshare.read.reader.open_reader import IDLE_SECONDS, Handled
from kshare.read.reader.reading_meter import ReadingMeter, Says, say_nothing

__all__ = ["process_open_rows"]

_log: Final = logging.getLogger("kshare.processing")


@edge
def process_open_rows(
    read: Callable[[Handled], Generator[pa.RecordBatch, None, None]],
    processor: Handling,
    *,
    result: str | None = None,
    options: Mapping[str, str] | None = None,
    letters: Letters | None = None,
    says: Says = say_nothing,
) -> Generator[pa.RecordBatch, None, None]:
    """Process the rows of a task that reads for a while: each leaves when it has its outcome.

    Args:
        read: Reads the rows, with the columns ``key``, ``topic``, ``partition`` and ``offset``. It
            asks what it gets when to read on, and where to end.
        processor: What is called.
        result: As of :func:`.process_rows`.
        options: The same.
        letters: The same.
        says: As of :class:`~kshare.read.reader.open_reader.OpenReader`.

    Yields:
        Batches of rows as of :func:`.process_rows`; one without rows if nothing is done for a
        second, so that whoever has gone is noticed.

    Raises:
        ProcessingError: As of :func:`.process_rows`. What has no outcome is pending.
    """
    handled = Handled(
        ReadingMeter(says),
        drain_seconds=processor.drain_seconds,
        is_full=lambda: offers.are_enough(task.engine.room),
        is_at_rest=lambda: bool(in_loop(loop, task.is_at_rest())),
    )
    task = FrameTask(processor, letters or letters_of(processor, options), handled.waker.wake)
    waits, offers = _Waits(task), _Offers(task.take, handled.waker.wake)
    with running(task) as loop, closing(read(handled)) as batches:
        first, idle_from = 0, time.monotonic()
        for batch in batches:
            records = list(records_of_rows(processor, batch, "key", first))
            first += batch.num_rows
            for record in records:
                handled.unhandled.read(*_place_of(record))
            offers.offer(loop, records)
            task.engine.raise_failure()
            done = [
                each
                for outcome in task.settled(1)
                for each in handled.unhandled.done(*_place_of(outcome.record), outcome)
            ]
            waits.look(is_waiting=len(handled.unhandled) > 0 and not records and not done)
            if done:
                for rows in rows_of_outcomes(done, result):
                    handled.meter.take(rows)
                    yield rows
            elif time.monotonic() - idle_from < IDLE_SECONDS:
                continue  # Spark takes as long for no rows as for some
            else:
                yield no_rows(batch, result)
            idle_from = time.monotonic()
        offers.look()


class _Offers:
    """Gives records to the event loop, and does not wait for it: handlers may have it just now.

    Args:
        take: Takes them, in the event loop.
        wake: Wakes the thread that reads.
    """

    def __init__(
        self,
        take: Callable[[Sequence[Record]], Coroutine[Any, Any, None]],
        wake: Callable[[], None],
    ) -> None:
        self._take = take
        self._wake = wake
        self._under_way: deque[tuple[Future[None], int]] = deque()
        self._is_waited_for = False

    def are_enough(self, room: int) -> bool:
        """True if there is no room for more records; then the thread that reads is woken later."""
        self._is_waited_for = True  # first: an offer may end while they are counted
        count = sum(count for offer, count in self._under_way if not offer.done())
        self._is_waited_for = room <= count
        return self._is_waited_for

    def offer(self, loop: asyncio.AbstractEventLoop, records: Sequence[Record]) -> None:
        """Give records; those of later calls come after them. Raises what :meth:`look` does."""
        if records:
            offer = asyncio.run_coroutine_threadsafe(self._take(records), loop)
            self._under_way.append((offer, len(records)))
            offer.add_done_callback(self._ended)
        self.look()

    def look(self) -> None:
        """Raise what has gone wrong in offers that have ended."""
        while self._under_way and self._under_way[0][0].done():
            self._under_way.popleft()[0].result()

    def _ended(self, _: Future[None]) -> None:
        if self._is_waited_for:
            self._wake()


def _place_of(record: Record) -> tuple[TopicPartition, int, int]:
    return record.topic_partition, key_hash(record.raw_key, record.offset), record.offset


class _Waits:
    """Says what is waited for while no record gets its outcome."""

    def __init__(self, task: FrameTask) -> None:
        self._task = task
        self._log = WaitLog(_log)
        self._look_at = math.inf

    def look(self, *, is_waiting: bool) -> None:
        """Nothing was read and nothing has ended since the last look, or something has."""
        now = time.monotonic()
        if not is_waiting:
            self._look_at = math.inf
            if self._log.is_waiting:
                self._log.over()
        elif self._look_at == math.inf:
            self._look_at = now + SAY_SECONDS  # not at once: what is held is counted for it
        elif now >= self._look_at:
            self._look_at = now + SAY_SECONDS
            state = "records that were read have no outcome, and no others come"
            self._log.wait(self._task.engine.waits(state, "handlers return"))
