"""Transactions of a consumer: outputs and what they were made of, all or nothing.

::

    begin --> consume, produce --> wait: purgatory --> facts --> commit
                    |                   |                |         |
                    +------- abort <----+----------------+---------+--> records come again

Guarantees: facts are written last, so that other readers of the log wait for an open transaction no
longer than its commit takes. After an abort, or an answer that was lost, delivery goes on from what
the log says once the transaction is decided. What is next, and when it gives up, is decided in
:mod:`kshare.group.core.transaction_state`: this module asks brokers, waits, and tells it what
happened.

A signal handler, or another thread, may close the consumer amid a transaction. The beginning and
the commit are calls, and hold a lock: the consumer closes after them. They wait for other members
and for the log no more then, but for what is asked of brokers: a fence, a new producer, the commit
itself. Between them, the transaction is aborted.

Cost: one producer for each consumer; a new one after an abort, and after a commit that may have
been asked for twice (:mod:`kshare.query.produce.config`). A commit of a new producer waits until
the log was read once, 0.5 s at most.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import RLock
from typing import Any, Final

from kshare.errors import (
    ConsumerClosedError,
    KshareError,
)
from kshare.group.config.table import ConsumerConfig
from kshare.group.consumer.call_state import CallState
from kshare.group.consumer.processed import Processed
from kshare.group.consumer.transaction_producer import Headers, TransactionProducer, closed
from kshare.group.core.transaction_state import TransactionAction, TransactionState
from kshare.group.core.work import CommitRequest
from kshare.group.metrics import Latency
from kshare.group.session.fencing import fence_ids
from kshare.group.session.transaction_log import TransactionLog

__all__ = ["Transaction", "Transactions"]

_log = logging.getLogger("kshare.group")

_FLUSH_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.02


class Transaction:
    """A transaction that is open: what :meth:`.KeySharedConsumer.transaction` gives."""

    def __init__(
        self, produce: Callable[..., None], flush: Callable[["Transaction"], None]
    ) -> None:
        self._produce = partial(produce, self)
        self._flush = partial(flush, self)

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: Headers | None = None,
    ) -> None:
        """Write a record in the transaction.

        Args:
            topic: Its topic.
            value: Its value; None for a tombstone.
            key: Its key; without a partition, it chooses the one that Java's producer would.
            partition: Its partition; -1 to choose by key.
            timestamp: Milliseconds since 1970; 0 for now.
            headers: Names and values.

        Records are sent in the background: an error of an earlier one comes with a later call, or
        with the end of the transaction. In any case the transaction is aborted.

        Raises:
            TransactionAbortedError: Another process has taken over the transactional id, the
                transaction has timed out, or brokers do not answer: begin the next one.
            UnknownTopicError: The topic or the partition does not exist.
            AuthorizationError: The principal may not write to the topic.
            RecordRefusedError: The record is too large, or not as the topic wants it. The text
                names topic, partition and size.
            RuntimeError: The transaction is over.
        """
        self._produce(topic, value, key, partition, timestamp, headers)

    def flush(self) -> None:
        """Wait until the brokers have what was written in the transaction.

        Raises:
            TransactionAbortedError: They have it not in time: begin the next one.
            KafkaError: As of :meth:`produce`, for any record before.
            RuntimeError: The transaction is over.
        """
        self._flush()


class Transactions:
    """The transactions of a consumer, one after the other. For one thread at a time.

    Args:
        config: The consumer's configuration.
        log: The group's log.
        processed: What is processed of what was handed out.
        state: Tells whether the consumer is closed, and puts the end of a call before its own.

    Attributes:
        current: The open transaction; None if there is none.
        latency: How long commits take, with what they wait for.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        log: TransactionLog,
        processed: Processed,
        state: CallState,
    ) -> None:
        assert config.transactional_id is not None
        self.current: Transaction | None = None
        self.latency = Latency()
        self._config = config
        self._log = log
        self._processed = processed
        self._calls = state
        self._lock = RLock()
        self._producer = TransactionProducer(config, config.transactional_id)
        self._state = TransactionState(config.transaction_timeout_ms / 1000)

    @property
    def is_open(self) -> bool:
        """True if there is one that is neither committed nor aborted."""
        return self._state.is_open

    @property
    def may_take(self) -> bool:
        """True if what is handed out now belongs to the open one: not while it commits."""
        return self._state.may_take

    @property
    def aborts(self) -> int:
        """Number of transactions that were aborted."""
        return self._state.aborts

    @contextmanager
    def run(self) -> Iterator[Transaction]:
        """One transaction; see :meth:`.KeySharedConsumer.transaction`."""
        transaction = Transaction(self._produce, self._flush)
        try:
            with self._call():
                self._open(transaction)
            yield transaction
            with self._call():
                self._check_current(transaction)
                self._commit()
                self.current = None
        except BaseException:
            try:
                self._give_up(transaction)
            except BaseException:  # an interrupt, maybe before it had begun
                self._give_up(transaction)
                raise
            raise

    def _give_up(self, transaction: Transaction) -> None:
        with self._call():
            if self.current is transaction:  # another thread's is its own
                self.abort()

    @contextmanager
    def _call(self) -> Iterator[None]:
        with self._calls.call(), self._lock:
            yield

    def _open(self, transaction: Transaction) -> None:
        if self.is_open:
            raise RuntimeError("a transaction is open: end it before the next one begins")
        if self._calls.is_closed:
            raise ConsumerClosedError
        self.resolve()
        mark = self._processed.begin_transaction()
        self.current = transaction  # first: an interrupt amid the next lines leaves none open
        self._state.begin(mark, self._log.own_fences)
        if self._state.epoch is None:
            self._producer.drop()

    def abort(self) -> None:
        """Abort the open transaction, if there is one: its records come again."""
        was_open = self.is_open
        self._state.abort()  # first: an interrupt amid all this leaves it in doubt
        self.current = None
        if not was_open:
            return
        if self._state.recovery is TransactionAction.FENCE and self._producer.abort():
            self._state.decided()
        with suppress(KshareError):  # the next transaction tries again
            self.resolve()
        self._processed.follow_abort()

    def resolve(self) -> None:
        """Have an earlier transaction decided whose end is not known, and go back to the log.

        Raises:
            KafkaError: The coordinator did not answer in time.
        """
        while (action := self._state.recovery) is not TransactionAction.NOTHING:
            if action is TransactionAction.FENCE:
                fence_ids(self._config.kafka, [self._producer.transactional_id])
                self._state.decided()
            else:
                self._log.rewind()
                self._state.rewound()

    def close(self) -> None:
        """Abort what is open, and let the stable offsets follow from what is committed."""
        with self._lock:
            try:
                self.abort()
            finally:
                self._keep_claims_in_doubt()
            self._producer.drop()
            self._log.flush(_FLUSH_SECONDS)

    def _keep_claims_in_doubt(self) -> None:
        if self._state.keeps_claims:
            _log.warning(
                "group %s: it is not known whether the last transaction of %s is committed: "
                "claims stay in the log, and who takes over fences it",
                self._config.group,
                self._producer.transactional_id,
            )
            self._log.keep_claims()

    # -- the open transaction ----------------------------------------------------------------

    def _check_open(self) -> None:
        if self._calls.is_closed:
            raise closed()

    def _check_current(self, transaction: Transaction) -> None:
        self._check_open()
        if self.current is not transaction:
            raise RuntimeError("the transaction is over: begin the next one")

    def _produce(self, transaction: Transaction, topic: str, *arguments: Any) -> None:
        self._check_current(transaction)
        if not self._state.is_begun:
            with self._call():
                self._check_current(transaction)
                if not self._state.is_begun:  # another thread may have begun
                    self._begin(topic)
        self._producer.produce(topic, *arguments)

    def _flush(self, transaction: Transaction) -> None:
        with self._call():
            self._check_current(transaction)
            if self._state.is_begun:
                self._producer.flush(self._state.gives_up - time.monotonic())

    def _begin(self, topic: str) -> None:
        """Have a producer, and begin: the broker counts the time from the first record."""
        if self._state.epoch is None:
            # What a partition's start still has to fence may be this very id.
            until = time.monotonic() + 2 * self._config.claim_timeout_ms / 1000
            while not self._log.is_settled() and time.monotonic() < until:
                self._check_open()
                time.sleep(_LOOK_SECONDS)
        epoch = self._producer.begin(topic, self._log)
        self._state.begun(time.monotonic(), epoch)

    def _commit(self) -> None:
        mark, work = self._processed.end_transaction()
        if has_news := self._log.has_news(work):  # what is known already is not committed by it
            self._processed.check_gap(partial(self._log.first_gap, work))
        has_news = has_news or self._state.is_begun
        self._state.ask_commit(mark, work.starts, time.monotonic(), has_news=has_news)
        if not self._state.is_settled:
            with self.latency.measured():
                self._commit_work(work)

    def _commit_work(self, work: CommitRequest) -> None:
        state = self._state
        if state.is_begun:  # while it waits for others anyway
            self._producer.drain(state.gives_up, self._check_open)
        purgatory = self._config.purgatory
        while True:
            action = self._log.next_action(state, work, purgatory, is_closed=self._calls.is_closed)
            if action is TransactionAction.WRITE:
                break
            if action is TransactionAction.BEGIN:
                self._begin(self._log.partition.topic)
        topic, number = self._log.partition
        for key, value in self._log.records():
            self._producer.produce(topic, value, key, number, 0, None)
        may_go_on = self._producer.commit(state.gives_up - time.monotonic())
        state.committed(may_go_on=may_go_on)
        self._log.committed(work)
        self._processed.releases.forget(work, lambda: work.starts)
