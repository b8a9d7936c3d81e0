"""A task's part of exactly once: its rows in a transaction, which it leaves open.

The driver writes down which transactions make the batch, and then ends them:
:mod:`kshare.query.produce.driver`.

Cost: a producer for each task and batch, and a thread that serves it while rows are waited for.
"""

import json
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import KafkaException

from kshare.errors import KafkaError
from kshare.kafka.lacking import check_transactions
from kshare.kafka.listening import START_SECONDS, check_listening
from kshare.kafka.protocol.apis import Feature
from kshare.options.sink import SinkOptions
from kshare.query.produce.config import transactional_config
from kshare.query.produce.model import Attempt, Prepared, Transaction
from kshare.query.produce.sender import Sender, encoded_columns, first_topic
from kshare.query.produce.served_sender import ServedSender

__all__ = ["check_exactly_once", "prepare_rows"]

_WITHOUT: Final = "exactlyOnce: leave it out; then each row is written at least once"
_OPTIONS: Final = "the options of writeStream.format('kshare')"
_ABORT_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_STATISTICS_SECONDS: Final = 30.0


def check_exactly_once(options: SinkOptions) -> None:
    """Refuse ``exactlyOnce`` where brokers have no transactions.

    Nothing is refused if no broker answers.

    Raises:
        OptionsError: They have none.
        AuthenticationError: A broker refused the login.
        KafkaError: A broker refused the connection for good.
    """
    check_transactions(options.kafka, _WITHOUT, feature=Feature.EXACTLY_ONCE, of=_OPTIONS)


def prepare_rows(
    batches: Iterable[pa.RecordBatch], options: SinkOptions, attempt: Attempt
) -> Prepared:
    """Write batches into a transaction, and leave it open.

    Before a row is read, task 0 ends what an earlier run has decided: it may be about to time out.

    Raises:
        OptionsError: The first batch, and brokers have no transactions: nothing was read.
        KafkaError: A row was not delivered, or another attempt has shut this one out. The
            transaction is aborted.
    """
    if attempt.batch == 0:
        check_listening(options.kafka, START_SECONDS)
        # The driver has asked before, but perhaps no broker answered it.
        check_exactly_once(options)
    if not attempt.task:
        # The driver does, too, but when all tasks are done. Others do without the ledger: 20 ms.
        from kshare.query.produce.decided import end_decided  # noqa: PLC0415

        end_decided(attempt, options)
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
        with ServedSender(sender) as served:
            for batch in chain((first,), filled):
                served.send(encoded_columns(batch, options), options.topic)
        sender.flush()
        transaction = statistics.transaction(sender, attempt.transactional_id)
    except BaseException:
        sender.discard()
        with suppress(KafkaException):
            sender.producer.abort_transaction(_ABORT_SECONDS)
        raise
    # The producer is let go, not closed: close() would end the transaction.
    return Prepared(attempt, transaction)


class _Statistics:
    """Statistics of a producer, as librdkafka reports them: its id, its epoch, what it has sent."""

    def __init__(self) -> None:
        self._latest: deque[str] = deque(maxlen=1)

    def __call__(self, report: str) -> None:
        self._latest.append(report)

    def transaction(self, sender: Sender, transactional_id: str) -> Transaction:
        """The producer's transaction, as it is now that all rows are delivered."""
        self._latest.clear()
        deadline = time.monotonic() + _STATISTICS_SECONDS
        while time.monotonic() < deadline:
            sender.poll(_POLL_SECONDS)
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
