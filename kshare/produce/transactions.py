"""Exactly once: tasks prepare transactions, the driver decides a batch and ends them.

Law: a reader with ``read_committed`` sees the rows of a batch once: those of the attempts that were
decided, whoever runs the batch again and whoever dies on the way; docs/exactly-once.md argues it.
Where that cannot be kept, an error names what is missing. Cost: a producer a task and batch; some
requests a transaction, and a few to the ledger, a batch.

A task writes in a transaction of its own and leaves it open. The driver writes down which
transactions make the batch, which is the decision, and then commits them, one as the leader first.
"""

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from confluent_kafka import KafkaException

from kshare.errors import KafkaError
from kshare.options.sink import SinkOptions
from kshare.produce.config import transactional_config
from kshare.produce.sender import Sender, first_topic

if TYPE_CHECKING:
    from kshare.produce.decision import Batch

__all__ = [
    "Attempt",
    "Prepared",
    "Transaction",
    "abort_batch",
    "commit_batch",
    "id_prefix",
    "prepare_rows",
    "transactional_id",
]

_ABORT_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_STATISTICS_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction of a task, with what it takes to end it.

    Attributes:
        id: the transactional id.
        topic, partition: a place that it has written to.
        rows: how many rows it holds.
    """

    id: str
    producer_id: int
    epoch: int
    topic: str
    partition: int
    rows: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at one task of a batch.

    Attributes:
        query: the query's id, which its checkpoint keeps.
        run: the id of this start of the query.
        batch: its number.
        task: the number of the task in the batch.
        number: 0 for the first attempt.
        began: when the batch began, in seconds since 1970, by the driver's clock.
        speculative: whether Spark may run a task twice at a time.
    """

    query: str
    run: str
    batch: int
    task: int
    number: int
    began: float
    speculative: bool = False

    @property
    def transactional_id(self) -> str:
        """The name of its transaction.

        No two attempts of a batch share one, nor do two runs of a query. Every other batch uses
        the same names again: a broker keeps each name for days.
        """
        return transactional_id(self.query, self.run, self.batch, self.task, self.number)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a task tells the driver: all its rows are on the brokers, in a transaction.

    ``transaction`` is None if there were no rows.
    """

    attempt: Attempt
    transaction: Transaction | None


def id_prefix(*parts: str) -> str:
    """What transactional ids of a query, or of a run of it, begin with."""
    return "-".join(("kshare", *parts, ""))


def transactional_id(query: str, run: str, batch: int, task: int, attempt: int) -> str:
    """The name of an attempt's transaction; see :class:`Attempt`."""
    return f"{id_prefix(query, run)}{task}-{attempt}-{batch % 2}"


def prepare_rows(
    batches: Iterable[pa.RecordBatch], options: SinkOptions, attempt: Attempt
) -> Prepared:
    """Write batches into a transaction, and leave it open.

    Raises:
        KafkaError: a row was not delivered, or another attempt has shut this one out. The
            transaction is aborted.
    """
    full = (batch for batch in batches if batch.num_rows)
    first = next(full, None)
    if first is None:
        return Prepared(attempt, None)
    statistics = _Statistics()
    config = transactional_config(options, attempt.transactional_id)
    sender = Sender({**config, "stats_cb": statistics}, options.kafka)
    try:
        sender.begin_transaction(first_topic(options, first), options.kafka.api_timeout_ms / 1000)
        sender.send(first, options.topic)
        for batch in full:
            sender.send(batch, options.topic)
        sender.flush()
        transaction = statistics.transaction(sender, attempt.transactional_id)
    except BaseException:
        sender.discard()
        with suppress(KafkaException):
            sender.producer.abort_transaction(_ABORT_SECONDS)
        raise
    # The producer is let go, not closed: close() would end the transaction.
    return Prepared(attempt, transaction)


def commit_batch(messages: Sequence[Prepared], batch: int, options: SinkOptions) -> None:
    """Decide a batch and commit its transactions, on the driver.

    After an error :func:`abort_batch` is to be called with the same messages.

    Args:
        messages: of the attempts that count, one a task.
        batch: its number.
        options: the sink's.

    Raises:
        KafkaError: the batch is not written (it may be run again), or it is decided and its
            transactions are not all ended (running it again ends them). The text says which; and
            it names the rows that are lost, if a decided transaction was gone.
    """
    if not messages:
        return
    with _batch_of(messages, batch, options) as found:
        found.commit()


def abort_batch(messages: Iterable[Prepared | None], batch: int, options: SinkOptions) -> None:
    """Abort the transactions of a batch that failed, unless it was decided: those are committed.

    What is not reached times out.
    """
    own = [message for message in messages if message is not None and message.transaction]
    if not own:
        return
    with _batch_of(own, batch, options) as found:
        found.abort()


@contextmanager
def _batch_of(messages: Sequence[Prepared], batch: int, options: SinkOptions) -> Iterator["Batch"]:
    """A batch of at least one task, with what it takes to decide about it."""
    # Tasks do without the protocol's classes, which take long to import.
    from kshare.produce.coordinator import Coordinators  # noqa: PLC0415
    from kshare.produce.decision import Batch  # noqa: PLC0415
    from kshare.produce.ledger import Ledger  # noqa: PLC0415

    coordinators = Coordinators(options.kafka)
    try:
        with Ledger(options, messages[0].attempt.query) as ledger:
            yield Batch(messages, batch, options, ledger, coordinators)
    finally:
        coordinators.close()


class _Statistics:
    """What librdkafka tells of a producer now and then: its id, its epoch, what it has sent."""

    def __init__(self) -> None:
        self._told: deque[str] = deque(maxlen=1)

    def __call__(self, told: str) -> None:
        self._told.append(told)

    def transaction(self, sender: Sender, transactional_id: str) -> Transaction:
        """The producer's transaction, as it is now that all rows are delivered."""
        self._told.clear()
        deadline = time.monotonic() + _STATISTICS_SECONDS
        while time.monotonic() < deadline:
            sender.producer.poll(_POLL_SECONDS)
            sender.raise_faults()
            if not self._told:
                continue
            told: dict[str, Any] = json.loads(self._told.pop())
            eos = told["eos"]
            for topic, about in told["topics"].items():
                for partition in about["partitions"].values():
                    if partition["partition"] >= 0 and partition["txmsgs"] > 0:
                        return Transaction(
                            transactional_id,
                            int(eos["producer_id"]),
                            int(eos["producer_epoch"]),
                            topic,
                            int(partition["partition"]),
                            sender.rows,
                        )
        raise KafkaError(f"the client does not tell the producer id of {transactional_id}")
