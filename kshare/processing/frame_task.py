"""The rows of a task of Spark through a processor: the part of ``process_by_key`` that runs there.

::

    task's thread                      event loop's thread
    rows --records--> offer ---------> engine: handlers, retries, dead letters
    outcome columns <----------------- settled outcomes

The rows that are held are bounded by the processor's ``max_records`` and one batch of Arrow.
The loop is the process's, and stays (:mod:`kshare.processing.task_loop`): a task ends its calls.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import pyarrow as pa

from kshare.dead_letters.record import Outcome, Record
from kshare.dead_letters.writer import Letters
from kshare.edge import edge
from kshare.options.sink import parse_sink_options
from kshare.processing.core.lane import State
from kshare.processing.engine import Engine
from kshare.processing.frame_rows import (
    as_in_letter,
    records_of_rows,
    rewritten_parts,
    rows_of_outcomes,
)
from kshare.processing.handling import Handling
from kshare.processing.measures import LoopWatch
from kshare.processing.policy import DeadLetter
from kshare.processing.task_loop import in_loop, task_loop

__all__ = ["FrameTask", "letters_of", "process_rows", "running"]

_log = logging.getLogger("kshare.processing")

_OUTCOMES_A_BATCH: Final = 4_096


@edge
def process_rows(
    batches: Iterable[pa.RecordBatch],
    processor: Handling,
    *,
    key: str = "key",
    result: str | None = None,
    options: Mapping[str, str] | None = None,
    letters: Letters | None = None,
) -> Iterator[pa.RecordBatch]:
    """Process the rows of a task.

    Args:
        batches: The rows.
        processor: What is called.
        key: Name of the column of keys.
        result: Type of the column of results; None if there is none.
        options: As for :func:`process_by_key`.
        letters: Writes dead letters; made of the options if None.

    Yields:
        The rows with :data:`OUTCOME_COLUMNS`, in the order in which they were done.

    Raises:
        ProcessingError: A record has failed for good, with ``Stop()``, or its handler returned
            what the column of results does not take.
    """
    task = FrameTask(processor, letters or letters_of(processor, options))
    with running(task) as loop:
        first = 0
        for batch in batches:
            in_loop(loop, task.offer(records_of_rows(processor, batch, key, first)))
            first += batch.num_rows
            yield from rows_of_outcomes(task.settled(_OUTCOMES_A_BATCH), result)
        in_loop(loop, task.finish())
        yield from rows_of_outcomes(task.settled(1), result)


class FrameTask:
    """An engine for the rows of a task; also its edge.

    Args:
        processor: What is called.
        letters: Writes dead letters; None if there are none.
        on_settled: Called when there are outcomes, in the event loop's thread.
    """

    def __init__(
        self,
        processor: Handling,
        letters: Letters | None,
        on_settled: Callable[[], object] = lambda: None,
    ) -> None:
        self._processor = processor
        self._letters = letters
        self._on_settled = on_settled
        self._engine: Engine | None = None
        self._watch: LoopWatch | None = None
        self._settled: list[Outcome] = []

    @property
    def engine(self) -> Engine:
        """The engine, once it has begun."""
        assert self._engine is not None
        return self._engine

    async def begin(self) -> None:
        """Make the engine, and have the event loop watched, in it."""
        self._engine = self._processor.engine(self)
        self._watch = LoopWatch(
            asyncio.get_running_loop(),
            self._engine.handler_name,
            quiet_until=task_loop().quiet_until,
        )

    async def take(self, records: Sequence[Record]) -> None:
        """Take records, also beyond what there is room for."""
        if records:
            self.engine.offer(records)
        self.engine.raise_failure()

    async def is_at_rest(self) -> bool:
        """True if no handler runs or is about to: what is held waits for its time.

        Raises:
            ProcessingError: A record has failed for good.
        """
        self.engine.settle()
        self.engine.raise_failure()
        lanes = self.engine.scheduler.lanes()
        return not self._settled and all(lane.state is State.WAITING for lane in lanes)

    async def offer(self, records: Iterable[Record]) -> None:
        """Take records, and wait until there is room for more."""
        engine = self.engine
        engine.offer(records)
        await engine.loop.wait(
            lambda: engine.room > 0 or engine.failure is not None,
            waits=partial(engine.waits, "there is no room for more records", "handlers return"),
        )
        engine.raise_failure()

    async def finish(self) -> None:
        """Wait until every record has its outcome."""
        engine = self.engine
        await engine.loop.wait(
            lambda: engine.is_idle or engine.failure is not None,
            waits=partial(engine.waits, "not every record has its outcome", "handlers return"),
        )
        await asyncio.sleep(0)  # the last outcomes are handed out in the loop's next turn
        engine.raise_failure()

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Leave over what is held, and end the calls that are under way, within a second.

        From the task's thread: a handler that blocks the loop is named meanwhile, too.
        """
        try:
            in_loop(loop, self._close())
        finally:
            if self._watch is not None:
                self._watch.close()

    async def _close(self) -> None:
        if self._engine is not None:
            await self._engine.close()
            left = self._engine.loop.tasks
            if left:
                _log.warning(
                    "%d calls of %s go on although they are cancelled, such as %r: they are left "
                    "behind, beside those of the next task",
                    len(left),
                    self._engine.handler_name,
                    next(iter(left)).get_coro(),
                )
        if self._letters is not None:
            self._letters.close()

    def settled(self, at_least: int) -> list[Outcome]:
        """The outcomes since the last call, if they are enough for a batch."""
        count = len(self._settled)
        if count < at_least:
            return []
        settled = self._settled[:count]
        del self._settled[:count]  # meanwhile the event loop's thread adds others
        return settled

    # -- the engine's edge ------------------------------------------------------------------

    def seconds_left(self) -> float:
        """For ever: nobody else has a task's records."""
        return math.inf

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Keep outcomes for :meth:`settled`."""
        self._settled.extend([each for each in outcomes if each.status.is_final])
        self._on_settled()

    async def write_letter(self, record: Record, error: BaseException | None) -> None:
        """Write a dead letter."""
        assert self._letters is not None
        now = self.engine.loop.now()
        await self._letters.write(as_in_letter(record), error, now, rewritten_parts(record))

    async def begin_sequence(self, record: Record, error: BaseException | None) -> None:
        """Refused by ``process_by_key``."""
        raise NotImplementedError

    async def park(self, record: Record, error: BaseException | None) -> None:
        """Refused by ``process_by_key``."""
        raise NotImplementedError

    def give_back(self, firsts: Sequence[Record]) -> None:
        """Nothing to do: what has no outcome fails the task, and Spark runs it again."""

    def take_again(self, record: Record) -> None:
        """Nothing to do."""

    def remember(self, record: Record) -> None:
        """Nothing to do: a task that runs again begins anew."""

    def forget(self, record: Record, *, is_parked: bool) -> None:
        """Nothing to do."""


# -- the event loop -----------------------------------------------------------------------------


@contextmanager
def running(task: FrameTask) -> Iterator[asyncio.AbstractEventLoop]:
    """The event loop, in another thread: a task's own thread waits for Spark's rows.

    Raises:
        KshareError: What an earlier task has left in the loop blocks it.
    """
    loop = task_loop().ready()
    in_loop(loop, task.begin())
    try:
        yield loop
    finally:
        task.close(loop)


def letters_of(processor: Handling, options: Mapping[str, str] | None) -> Letters | None:
    """Return what writes a processor's dead letters; None if it writes none.

    Raises:
        OptionsError: The options are wrong.
    """
    policy = processor.on_failure
    if not isinstance(policy, DeadLetter) or options is None:
        return None
    kafka = parse_sink_options({**options, "topic": policy.topic}, streaming=False).options.kafka
    # In tasks: a client of Spark Connect has neither brokers' clients nor kafka-python.
    from kshare.dead_letters.writer import DeadLetters  # noqa: PLC0415

    return DeadLetters(kafka, policy.topic)
