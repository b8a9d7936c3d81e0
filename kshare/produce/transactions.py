"""Exactly once: tasks prepare transactions, the driver decides a batch and ends them.

Guarantees: a reader with ``read_committed`` sees the rows of a batch once, those of the attempts
that were decided, no matter who runs the batch again and who dies on the way. docs/exactly-once.md
argues it. Where that cannot be kept, an error names what is missing.

A task writes in a transaction of its own and leaves it open. The driver writes down which
transactions make the batch, which is the decision, and then commits them, one as the leader first.

Cost: a producer for each task and batch; some requests for each transaction, and a few to the
ledger for each batch.
"""

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from confluent_kafka import KafkaException

from kshare.errors import KafkaError
from kshare.options.sink import SinkOptions
from kshare.produce.config import transactional_config
from kshare.produce.model import Attempt, Prepared, Transaction
from kshare.produce.sender import Sender, first_topic

if TYPE_CHECKING:
    from kshare.produce.decision import Batch

__all__ = ["abort_batch", "commit_batch", "prepare_rows"]

_ABORT_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_STATISTICS_SECONDS: Final = 30.0


def prepare_rows(
    batches: Iterable[pa.RecordBatch], options: SinkOptions, attempt: Attempt
) -> Prepared:
    """Write batches into a transaction, and leave it open.

    Raises:
        KafkaError: a row was not delivered, or another attempt has shut this one out. The
            transaction is aborted.
    """
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return Prepared(attempt, None)
    statistics = _Statistics()

    def config() -> dict[str, Any]:
        settings = transactional_config(options, attempt.transactional_id)
        return {**settings, "stats_cb": statistics}

    sender = Sender(config, options.kafka)
    try:
        sender.begin_transaction(first_topic(options, first), options.kafka.api_timeout_ms / 1000)
        sender.send(first, options.topic)
        for batch in filled:
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

    After an error, call :func:`abort_batch` with the same messages.

    Args:
        messages: Those of the attempts that count, one for each task.
        batch: Number of the batch.
        options: The sink's options.

    Raises:
        KafkaError: the batch is not written (it may be run again), or it is decided and its
            transactions are not all ended (running it again ends them). The text says which; and
            it names the rows that are lost, if a decided transaction was gone.
    """
    if not messages:
        return
    with _opened(messages, batch, options) as decided:
        decided.commit()


def abort_batch(messages: Iterable[Prepared | None], batch: int, options: SinkOptions) -> None:
    """Abort the transactions of a batch that failed, unless it was decided: those are committed.

    Transactions that cannot be reached time out.
    """
    own = [message for message in messages if message is not None and message.transaction]
    if not own:
        return
    with _opened(own, batch, options) as failed:
        failed.abort()


@contextmanager
def _opened(messages: Sequence[Prepared], batch: int, options: SinkOptions) -> Iterator["Batch"]:
    """A batch of at least one task, with the ledger and the coordinators that it needs."""
    # Tasks do without the protocol's classes and the admin client, which take 0.3 s to import.
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
    """What librdkafka reports of a producer now and then: its id, its epoch, what it has sent."""

    def __init__(self) -> None:
        self._latest: deque[str] = deque(maxlen=1)

    def __call__(self, report: str) -> None:
        self._latest.append(report)

    def transaction(self, sender: Sender, transactional_id: str) -> Transaction:
        """The producer's transaction, as it is now that all rows are delivered."""
        self._latest.clear()
        deadline = time.monotonic() + _STATISTICS_SECONDS
        while time.monotonic() < deadline:
            sender.producer.poll(_POLL_SECONDS)
            sender.raise_faults()
            if not self._latest:
                continue
            report: dict[str, Any] = json.loads(self._latest.pop())
            eos = report["eos"]
            for topic, of_topic in report["topics"].items():
                for partition in of_topic["partitions"].values():
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
