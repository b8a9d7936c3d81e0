"""The batches of ``consume_batch`` with typed columns.

::

    raw batch --reader schema, once--> decoded --> typed batch; rows that are set aside
                     |                    |
                     +-- the registry <---+ an id that is new

Guarantees: a call waits for the registry no longer than for records, and follows its group
meanwhile; the answer is there for a later call. A bad record is an error only when it is the next
one: what comes before it is returned first. A dead letter is written before the rows around it are
returned. Cost: that of :class:`~kshare.formats.typed_columns.RowTyper`; other consumers import
nothing of this.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Any, Final, TypeVar

import pyarrow as pa

from kshare.core.progress import TopicPartition
from kshare.errors import BadRecordError, OptionsError
from kshare.formats.registry import SchemaRegistry
from kshare.formats.schema_files import LastAnswers, RegisteredSchema, SchemaNumber
from kshare.formats.schemas import ReaderSchemas, found_schemas
from kshare.formats.typed_columns import BadRow, RowTyper
from kshare.group.config.consumer_config import CONFIGURATION
from kshare.group.config.table import ConsumerConfig
from kshare.options import DEFAULT_COLUMNS
from kshare.options.row_names import dotted
from kshare.options.typed_rows import InlineSchema, TypedRows

__all__ = ["AskedAside", "StillAskedError", "TypedBatch", "TypedBatches", "first_bad_row"]

_LOOK_SECONDS: Final = 0.1
_Answer = TypeVar("_Answer")

Patience = Callable[[], float]
"""For how many seconds the call may still wait; 0 or less: not at all."""


class StillAskedError(Exception):
    """The registry has not answered yet, and the call may wait no longer: a later one may."""


class AskedAside:
    """Asks in threads of its own what may take long. Who waits may give up, and come again.

    Threads are daemons: a registry that is down does not hold up the end of the process.
    """

    def __init__(self) -> None:
        self._asked: dict[Hashable, Future[Any]] = {}
        self._one_at_a_time = threading.Lock()

    def answer(self, what: Hashable, ask: Callable[[], _Answer], patience: Patience) -> _Answer:
        """The answer to a question.

        Args:
            what: The question; the same one that is not answered yet is not asked again.
            ask: Asks it.
            patience: How long to wait.

        Raises:
            StillAskedError: There is no answer yet.
        """
        future = self._asked.get(what)
        if future is None:
            future = self._asked[what] = Future()
            threading.Thread(
                target=self._run, args=(future, ask), name="kshare registry", daemon=True
            ).start()
        while not future.done():
            seconds = patience()
            if seconds <= 0:
                raise StillAskedError
            wait([future], min(seconds, _LOOK_SECONDS))
        del self._asked[what]
        answer: _Answer = future.result()
        return answer

    def _run(self, future: "Future[_Answer]", ask: Callable[[], _Answer]) -> None:
        try:
            with self._one_at_a_time:
                future.set_result(ask())
        except BaseException as error:
            future.set_exception(error)


class _PatientRegistry:
    """A registry that is asked aside: :class:`~kshare.formats.writers.Schemas`.

    Attributes:
        patience: Of the call that is under way.
    """

    def __init__(self, registry: SchemaRegistry, asked: AskedAside) -> None:
        self.patience: Patience = lambda: 0.0
        self._registry = registry
        self._asked = asked

    def by_id(self, number: SchemaNumber, kind: str = "AVRO") -> RegisteredSchema:
        """The schema with an id, or a GUID; ``kind`` is what is wanted."""
        ask = partial(self._registry.by_id, number, kind)
        return self._asked.answer((number, kind), ask, self.patience)


@dataclass(frozen=True, slots=True)
class TypedBatch:
    """A raw batch, typed.

    Attributes:
        partition: The partition.
        batch: The rows, maybe none; with the metadata of the raw batch.
        aside: The rows of the raw batch that are dead letters now, or left out as they are of
            records of other names; None if there are none.
    """

    partition: TopicPartition
    batch: pa.RecordBatch
    aside: pa.RecordBatch | None = None


class TypedBatches:
    """Types raw batches. For the thread that polls.

    Args:
        config: The consumer's configuration, with typed rows.

    Raises:
        OptionsError: A schema that is given inline cannot be read.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        assert config.typed_rows is not None
        self._rows: TypedRows = config.typed_rows
        self._kafka = config.kafka
        self._names: Sequence[str] = config.columns or DEFAULT_COLUMNS
        self._token = token_hex(8)  # what is learned of ids is this consumer's
        self._asked = AskedAside()
        self._letters: _Letters | None = None
        self._left_out: list[int] = []
        self._registry: SchemaRegistry | None = None
        self._patient: _PatientRegistry | None = None
        if self._rows.registry is not None:
            self._registry = SchemaRegistry(
                self._rows.registry, self._kafka, last=LastAnswers(self._rows.registry)
            )
            self._patient = _PatientRegistry(self._registry, self._asked)
        self._typer: RowTyper | None = None
        if all(isinstance(each.schema, InlineSchema | None) for each in self._rows.formats):
            self._typer = self._made(self._found())  # nothing is contacted: faults are said at once

    def typed(
        self, raw: pa.RecordBatch, partition: TopicPartition, patience: Patience
    ) -> TypedBatch:
        """Type the rows of a batch.

        Args:
            raw: The rows, as bytes.
            partition: Their partition.
            patience: How long the registry may be waited for.

        Raises:
            BadRecordError: A record cannot be decoded, with ``bad.records=fail``.
            KafkaError: A dead letter cannot be written.
            OptionsError: A reader schema cannot be read.
            SchemaRegistryError: The registry does not say a schema.
            StillAskedError: It has not said it yet.
        """
        if self._patient is not None:
            self._patient.patience = patience
        self._left_out.clear()
        if self._letters is not None:
            self._letters.rows.clear()
        try:
            if self._typer is None:
                found = self._asked.answer("reader schemas", self._found, patience)
                self._typer = self._made(found)
            batch = self._typer.typed(raw, (partition.topic, partition.partition))
        except OptionsError as error:
            problems = [dotted(problem) for problem in error.problems]
            raise OptionsError(problems, of=CONFIGURATION) from None
        rows = [*self._left_out, *(self._letters.rows if self._letters is not None else ())]
        aside = raw.take(pa.array(sorted(rows), pa.int64())) if rows else None
        return TypedBatch(partition, batch.replace_schema_metadata(raw.schema.metadata), aside)

    def _found(self) -> ReaderSchemas:
        try:
            return found_schemas(self._rows, self._kafka, self._token, self._registry)
        except OptionsError as error:
            problems = [dotted(problem) for problem in error.problems]
            raise OptionsError(problems, of=CONFIGURATION) from None

    def _made(self, schemas: ReaderSchemas) -> RowTyper:
        topic = self._rows.bad_records.topic
        if topic is not None:
            self._letters = _Letters(self._open_letters(topic))
        return RowTyper(
            schemas,
            self._kafka,
            self._names,
            set_aside=self._letters,
            registry=self._patient,
            spelled=dotted,
            on_left_out=self._left_out.extend,
        )

    def _open_letters(self, topic: str) -> Any:
        # Brings librdkafka's producer, which others do without.
        from kshare.dead_letters.bad_records import BadRecordLetters  # noqa: PLC0415

        return BadRecordLetters(self._kafka, topic)

    def close(self) -> None:
        """Write no more dead letters."""
        if self._letters is not None:
            self._letters.close()


class _Letters:
    """Writes bad rows as dead letters, and notes which rows those were.

    In a thread of its own: the one that polls may run an event loop, as in a notebook.

    Args:
        write: Writes them.

    Attributes:
        rows: The rows of the batch that is being typed.
    """

    def __init__(self, write: Any) -> None:
        self.rows: list[int] = []
        self._write = write
        self._thread = ThreadPoolExecutor(1, "kshare dead letters")

    def __call__(self, raw: pa.RecordBatch, bad: Sequence[BadRow]) -> None:
        self._thread.submit(self._write, raw, bad).result()
        self.rows += [each.row for each in bad]

    def close(self) -> None:
        self._thread.submit(self._write.close)
        self._thread.shutdown()


def first_bad_row(raw: pa.RecordBatch, error: BadRecordError) -> int:
    """The row that an error of :meth:`TypedBatches.typed` names."""
    offsets: list[int] = raw.column("offset").to_pylist()
    assert error.offset is not None
    return offsets.index(error.offset)
