"""Handlers in Spark: :func:`process_by_key` runs a processor inside each task.

::

    task's thread                      event loop's thread
    rows --records--> offer ---------> engine: handlers, retries, dead letters
    outcome columns <----------------- settled outcomes

The rows that are held are bounded by the processor's ``max_records`` and one batch of Arrow.
Nothing here imports Spark: ``mapInArrow`` is a method of the frame, so those of Spark Connect do.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

import pyarrow as pa

from kshare.core.showing import shown
from kshare.errors import OptionsError
from kshare.import_caches import forget_finders
from kshare.processing.frame_rows import OUTCOME_COLUMNS, RESULT_TYPES
from kshare.processing.frame_task import letters_of
from kshare.processing.handling import Handling
from kshare.processing.open_source import (
    REAL_TIME,
    PlannedSource,
    open_source,
    planned_sources,
    processing_source,
    why_not_in_reader,
)
from kshare.processing.pickling import spark_dumps, unpicklable
from kshare.processing.policy import DeadLetter, Park, reads_own_letters
from kshare.processing.work import Work

__all__ = [
    "Frame",
    "process_by_key",
    "run_batch",
]

_log = logging.getLogger("kshare.processing")
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
            refused: they need a consumer's group. So it is with ``on_outcome``: outcomes are rows;
            and with ``max_delay``: a header ``not-before`` means nothing in Spark.
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
        OptionsError: Arguments are wrong, a function of the processor cannot be pickled, or the
            frame's source reads the topic of ``DeadLetter``; every fault is listed.
        ImportError: The driver has no pandas, or an old one.
    """
    sources = planned_sources(frame)
    problems = [*_wrong_columns(frame, key, result), *_unsuitable(processor, options, sources)]
    problems += _deserialized(frame, key, processor)
    dumps = spark_dumps()
    if dumps is not None:
        problems += unpicklable(processor.handler.parts, dumps)
    if problems:
        raise OptionsError(problems, of="the arguments of process_by_key")
    letters_of(processor, options)  # wrong options are told now, not in tasks
    schema = type(frame.schema)(list(frame.schema.fields))
    schema = schema.add("status", "string").add("attempts", "integer").add("error", "string")
    if result is not None:
        schema = schema.add("result", RESULT_TYPES[result][0])
    work = Work(processor, key, result, None if options is None else dict(options))
    opened = open_source(sources)
    if opened is not None and dumps is not None:
        if (why := why_not_in_reader(opened, frame, work)) is None:
            added = type(schema)([each for each in schema if each.name not in frame.columns])
            return processing_source(frame, opened, dumps(work), added)
        _log.warning(
            "process_by_key: %s, so the handlers run behind the reader, and rows wait for up to "
            "64 KiB of them, or for the end of the micro-batch (realTime=%s)",
            why,
            opened.options[REAL_TIME],
        )

    def process(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from work.rows(batches)
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


def _unsuitable(
    processor: Handling, options: Mapping[str, str] | None, sources: Iterable[PlannedSource]
) -> Iterator[str]:
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
    if isinstance(policy, DeadLetter) and any(each.reads(policy.topic) for each in sources):
        yield reads_own_letters(policy)
    if processor.not_before.is_bounded_otherwise:
        yield (
            "max_delay has no effect in Spark; leave it out: a header not-before means nothing "
            "there, as a micro-batch would have to wait for its record"
        )
    if processor.on_outcome is not None:
        yield (
            "on_outcome is not called in Spark; leave it out: each outcome is a row of the frame "
            "that process_by_key returns"
        )
