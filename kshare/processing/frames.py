"""Handlers in Spark: :func:`process_by_key` runs a processor inside each task.

::

    task's thread                      event loop's thread
    rows --records--> offer ---------> engine: handlers, retries, dead letters
    outcome columns <----------------- settled outcomes

The rows that are held are bounded by the processor's ``max_records`` and one batch of Arrow.
Nothing here imports Spark: ``mapInArrow`` is a method of the frame, so those of Spark Connect do.
"""

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol

import pyarrow as pa

from kshare.core.showing import shown
from kshare.dead_letters.record import Outcome, Record
from kshare.dead_letters.writer import Letters
from kshare.edge import edge
from kshare.errors import OptionsError
from kshare.import_caches import forget_finders
from kshare.options.sink import parse_sink_options
from kshare.processing.engine import Engine
from kshare.processing.frame_rows import (
    OUTCOME_COLUMNS,
    RESULT_TYPES,
    records_of_rows,
    rewritten_parts,
    rows_of_outcomes,
)
from kshare.processing.handling import Handling
from kshare.processing.loop import new_event_loop
from kshare.processing.pickling import spark_dumps, unpicklable
from kshare.processing.policy import DeadLetter, Park

__all__ = [
    "Frame",
    "process_by_key",
    "process_rows",
    "run_batch",
]

_OUTCOMES_A_BATCH: Final = 4_096
_OF_BYTES: Final = ("binary", "string")


class Frame(Protocol):
    """A ``DataFrame`` of Spark, classic or Connect."""

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""

    @property
    def schema(self) -> Any:
        """Its schema: a ``StructType``."""

    def mapInArrow(self, func: Callable[..., Any], schema: Any) -> Any:  # noqa: N802
        """Apply a function to the record batches of each task."""


def process_by_key(
    frame: Frame,
    processor: Handling,
    *,
    key: str = "key",
    result: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Any:
    """Call a processor's handler for each row of a frame, batch or stream.

    A frame of ``format("kshare")`` has each key in one task of a micro-batch, in offset order. Any
    other frame has to bring the rows of a key together, in their order, before::

        frame.repartition("key").sortWithinPartitions("key", "time")

    PySpark wants pandas on the driver for ``mapInArrow`` (the extra ``pandas``); no row passes it.

    The handler's ``record`` has the frame's ``topic``, ``partition`` and ``offset``, if there are
    such columns. Its value is the column ``value`` as Python has it, a struct as a dict; in a frame
    without it, a dict of the other columns. Its ``raw_value``, which dead letters have, is the
    column's bytes, or a struct as JSON. A task that fails is run again by Spark, and its handlers
    with it.

    Args:
        frame: A ``DataFrame`` with a column of keys.
        processor: What is called. With ``Park()``, or ``DeadLetter(..., sequence=True)``, it is
            refused: they need a consumer's group. So it is with ``on_outcome``: outcomes are rows.
        key: Name of the column of keys.
        result: Type of a column ``result`` with what the handler returns: ``string``, ``binary``,
            ``boolean``, ``int``, ``bigint`` or ``double``. None: there is no such column.
        options: For ``DeadLetter``: where Kafka is, as the sink's options
            (``kafka.bootstrap.servers`` and what it takes to log in).

    Returns:
        A ``DataFrame``: the frame's columns, and ``status string``, ``attempts int``,
        ``error string``, and ``result`` if it is asked for. Rows come in the order in which they
        were done.

    Raises:
        OptionsError: Arguments are wrong, or a function of the processor cannot be pickled; every
            fault is listed.
        ImportError: The driver has no pandas, or an old one.
    """
    problems = [*_wrong_columns(frame, key, result), *_unsuitable(processor, options)]
    problems += _deserialized(frame, key, processor)
    dumps = spark_dumps()
    if dumps is not None:
        problems += unpicklable(processor.handler.parts, dumps)
    if problems:
        raise OptionsError(problems, of="the arguments of process_by_key")
    _letters(processor, options)  # wrong options are told now, not in tasks
    schema = type(frame.schema)(list(frame.schema.fields))
    schema = schema.add("status", "string").add("attempts", "integer").add("error", "string")
    if result is not None:
        schema = schema.add("result", RESULT_TYPES[result][0])
    given = None if options is None else dict(options)

    def process(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from process_rows(batches, processor, key=key, result=result, options=given)
        finally:
            forget_finders()

    try:
        return frame.mapInArrow(process, schema)
    except ImportError as error:
        raise ImportError(
            "process_by_key uses mapInArrow, for which PySpark wants pandas on the driver: "
            f"pip install 'kshare[pandas]' ({error})"
        ) from error


def _wrong_columns(frame: Frame, key: str, result: str | None) -> list[str]:
    """Faults of the columns that a frame has, or shall get."""
    problems: list[str] = []
    if key not in frame.columns:
        problems.append(f"key={shown(key)} is no column; there are {', '.join(frame.columns)}")
    taken = [name for name in OUTCOME_COLUMNS if name in frame.columns]
    if taken:
        problems.append(f"rename the columns {', '.join(taken)}: outcomes have these names")
    if result is not None and result not in RESULT_TYPES:
        problems.append(f"result={shown(result)}; wanted {', '.join(RESULT_TYPES)}, or None")
    return problems


def _deserialized(frame: Frame, key: str, processor: Handling) -> Iterator[str]:
    """Faults of deserializers, which are given bytes: typed columns need none."""
    deserializers = processor.handler.deserializers
    given = {"key_deserializer": deserializers.key, "value_deserializer": deserializers.value}
    for (name, function), column in zip(given.items(), (key, "value"), strict=True):
        if function is None or column not in frame.columns:
            continue
        kind = frame.schema[column].dataType.typeName()
        if kind not in _OF_BYTES:
            yield f"{name}: column {column} is of type {kind}, and handlers get it so; leave it out"


def run_batch(
    processor: Handling,
    frame: Frame,
    *,
    key: str = "key",
    options: Mapping[str, str] | None = None,
) -> Counter[str]:
    """Process a frame now, for ``foreachBatch``.

    Args:
        processor: What is called.
        frame: A ``DataFrame`` with a column of keys.
        key: Name of the column of keys.
        options: As for :func:`process_by_key`.

    Returns:
        The number of rows by status, such as ``{"done": 998, "dead_lettered": 2}``.

    Raises:
        OptionsError: Arguments are wrong; every fault is listed.
    """
    outcomes = process_by_key(frame, processor, key=key, options=options)
    rows = outcomes.groupBy("status").count().collect()
    return Counter({row["status"]: row["count"] for row in rows})


def _unsuitable(processor: Handling, options: Mapping[str, str] | None) -> Iterator[str]:
    policy = processor.on_failure
    if isinstance(policy, Park):
        yield (
            "on_failure=Park() needs a consumer's group: in Spark, a batch is a plan that its "
            "tasks finish, so none of its records can wait; use DeadLetter(...) or Stop()"
        )
    elif isinstance(policy, DeadLetter) and policy.sequence:
        yield (
            "on_failure=DeadLetter(..., sequence=True) needs a consumer's group: its log says "
            "which keys follow, through restarts; in Spark, use DeadLetter(...) or Stop()"
        )
    elif isinstance(policy, DeadLetter) and "kafka.bootstrap.servers" not in (options or {}):
        yield (
            "on_failure=DeadLetter(...) needs options={'kafka.bootstrap.servers': ...}, where "
            "the dead-letter topic is"
        )
    if processor.on_outcome is not None:
        yield (
            "on_outcome is not called in Spark; leave it out: each outcome is a row of the frame "
            "that process_by_key returns"
        )


# -- in a task ----------------------------------------------------------------------------------


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
    with _running_loop() as loop:
        task = _Task(processor, letters or _letters(processor, options), result)
        _in(loop, task.begin())
        try:
            first = 0
            for batch in batches:
                _in(loop, task.offer(records_of_rows(processor, batch, key, first)))
                first += batch.num_rows
                yield from task.outcomes(_OUTCOMES_A_BATCH)
            _in(loop, task.finish())
            yield from task.outcomes(1)
        finally:
            _in(loop, task.close())


class _Task:
    """An engine for the rows of a task; also its edge."""

    def __init__(self, processor: Handling, letters: Letters | None, result: str | None) -> None:
        self._processor = processor
        self._result = result
        self._letters = letters
        self._engine: Engine | None = None
        self._settled: list[Outcome] = []

    @property
    def engine(self) -> Engine:
        assert self._engine is not None
        return self._engine

    async def begin(self) -> None:
        self._engine = self._processor.engine(self)

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

    async def close(self) -> None:
        if self._engine is not None:
            await self._engine.close()
        if self._letters is not None:
            self._letters.close()

    def outcomes(self, at_least: int) -> Iterator[pa.RecordBatch]:
        """The outcomes since the last call, if they are enough for a batch."""
        count = len(self._settled)
        if count >= at_least:
            settled = self._settled[:count]
            del self._settled[:count]  # meanwhile the event loop's thread adds others
            yield from rows_of_outcomes(settled, self._result)

    # -- the engine's edge ------------------------------------------------------------------

    def seconds_left(self) -> float:
        return math.inf

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        self._settled.extend([each for each in outcomes if each.status.is_final])

    async def write_letter(self, record: Record, error: BaseException | None) -> None:
        assert self._letters is not None
        now = self.engine.loop.now()
        await self._letters.write(record, error, now, rewritten_parts(record))

    async def begin_sequence(self, record: Record, error: BaseException | None) -> None:
        raise NotImplementedError  # refused by process_by_key

    async def park(self, record: Record, error: BaseException | None) -> None:
        raise NotImplementedError  # refused by process_by_key

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
def _running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread: a task's own thread waits for Spark's rows."""
    loop = new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="kshare-handlers", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _in(loop: asyncio.AbstractEventLoop, work: Any) -> Any:
    return asyncio.run_coroutine_threadsafe(work, loop).result()


def _letters(processor: Handling, options: Mapping[str, str] | None) -> Letters | None:
    policy = processor.on_failure
    if not isinstance(policy, DeadLetter) or options is None:
        return None
    kafka = parse_sink_options({**options, "topic": policy.topic}, streaming=False).options.kafka
    # In tasks: a client of Spark Connect has neither brokers' clients nor kafka-python.
    from kshare.dead_letters.writer import DeadLetters  # noqa: PLC0415

    return DeadLetters(kafka, policy.topic)
