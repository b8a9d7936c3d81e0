"""Exactly once: tasks prepare transactions, the driver decides a batch and ends them.

Law: a reader with ``read_committed`` sees the rows of a batch once: those of the attempts that were
decided, whoever runs the batch again and whoever dies on the way; docs/exactly-once.md argues it.
Where that cannot be kept, an error names what is missing. Cost: a producer a task and batch; some
requests a transaction, and a few to the ledger, a batch.

A task writes in a transaction of its own and leaves it open. The driver writes down which
transactions make the batch, which is the decision, and then commits them, one as the leader first.
"""

import json
import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import KafkaException

from kshare.errors import KafkaError, KshareError
from kshare.options.sink import SinkOptions
from kshare.produce.config import TRANSACTION_TIMEOUT_MS, transactional_config
from kshare.produce.coordinator import Coordinators, Transaction
from kshare.produce.ledger import Entry, Ledger, State, Verdict, decide, judge
from kshare.produce.sender import Sender, first_topic

__all__ = ["Attempt", "Prepared", "abort_batch", "commit_batch", "prepare_rows"]

_log = logging.getLogger(__name__)

_ABORT_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_STATISTICS_SECONDS: Final = 30.0
_TIME_SHARE: Final = 0.9
"""Of transaction.timeout.ms: a batch that took longer is not decided."""
_NAMED_MAX: Final = 20


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
        return _transactional_id(self.query, self.run, self.batch, self.task, self.number)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a task tells the driver: all its rows are on the brokers, in a transaction.

    ``transaction`` is None if there were no rows.
    """

    attempt: Attempt
    transaction: Transaction | None


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
    coordinators = Coordinators(options.kafka)
    try:
        with Ledger(options, messages[0].attempt.query) as ledger:
            _Batch(messages, batch, options, ledger, coordinators).commit()
    finally:
        coordinators.close()


def abort_batch(messages: Iterable[Prepared | None], batch: int, options: SinkOptions) -> None:
    """Abort the transactions of a batch that failed, unless it was decided: those are committed.

    What is not reached times out.
    """
    own = [message for message in messages if message is not None and message.transaction]
    if not own:
        return
    coordinators = Coordinators(options.kafka)
    try:
        with Ledger(options, own[0].attempt.query) as ledger:
            _Batch(own, batch, options, ledger, coordinators).abort()
    finally:
        coordinators.close()


class _Batch:
    """A batch on the driver, with its query's ledger."""

    def __init__(
        self,
        messages: Sequence[Prepared],
        batch: int,
        options: SinkOptions,
        ledger: Ledger,
        coordinators: Coordinators,
    ) -> None:
        attempts = [message.attempt for message in messages]
        of = {(attempt.query, attempt.run, attempt.batch) for attempt in attempts}
        self._query, self._run, _ = (attempts[0].query, attempts[0].run, batch)
        if of != {(self._query, self._run, batch)}:
            raise KafkaError(f"exactlyOnce: tasks of other batches report to batch {batch}: {of}")
        self._attempts = attempts
        self._number = batch
        self._ledger = ledger
        self._coordinators = coordinators
        self._timeout_seconds = (
            int(options.producer.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)) / 1000
        )
        self._own = {
            message.attempt: message.transaction
            for message in sorted(messages, key=lambda message: message.attempt.task)
            if message.transaction is not None
        }

    def commit(self) -> None:
        """Decide, and end; see :func:`commit_batch`."""
        state = self._ledger.read()
        judge(state, self._run, self._number)  # an older run shuts nobody out
        if not self._own and (state is None or state.ended):
            return  # no rows, and nothing left to do
        self._ledger.take_over()
        state = self._settled(self._ledger.read())
        if judge(state, self._run, self._number) is Verdict.WRITTEN:
            _log.info("batch %d of query %s was written before", self._number, self._query)
            self._drop()
            return
        if self._own:
            self._check()
            decided = decide(state, self._run, self._number, self._entries())
            self._ledger.write(decided)
            # From here on nothing may abort: whoever runs the batch again commits it.
            if self._settled(decided) != decided.end():
                raise KafkaError(
                    f"exactlyOnce: batch {self._number} is not written: its first transaction was "
                    "ended before it could be committed. Running the batch again writes it"
                )
        self._sweep(state)

    def abort(self) -> None:
        """Abort what was not decided."""
        state = self._ledger.read()
        if state is None or self._run not in state.runs[:-1]:
            self._ledger.take_over()  # what was about to be decided is decided now, or never
            state = self._ledger.read()
        if state is not None and (state.run, state.batch) == (self._run, self._number):
            self._settled(state)
        else:
            self._drop()

    def _entries(self) -> tuple[Entry, ...]:
        return tuple(
            Entry(attempt.task, attempt.number, found.producer_id, found.epoch, found.rows)
            for attempt, found in self._own.items()
        )

    def _check(self) -> None:
        """Refuse the batch unless all its transactions are open, and will be for a while."""
        took = time.time() - min(attempt.began for attempt in self._own)
        if took > _TIME_SHARE * self._timeout_seconds:
            raise KafkaError(
                f"exactlyOnce: batch {self._number} is not written: it took {took:.0f} s, and its "
                f"transactions end after {self._timeout_seconds:g} s "
                "(kafka.transaction.timeout.ms). Make batches smaller (maxOffsetsPerTrigger), or "
                "raise it; brokers allow transaction.max.timeout.ms"
            )
        open_ = self._coordinators.each(_is_open, list(self._own.values()))
        ended = [attempt for attempt, is_open in zip(self._own, open_, strict=True) if not is_open]
        if ended:
            raise KafkaError(
                f"exactlyOnce: batch {self._number} is not written: the transactions of tasks "
                f"{_names(attempt.task for attempt in ended)} were ended by others (a second run "
                "of the query, or a time-out). Running the batch again writes it"
            )

    def _settled(self, state: State | None) -> State | None:
        """End what was decided: commit it, or take the decision back if nothing can be committed.

        The leader is always ended first. So if it is gone, nothing of the batch was committed.
        """
        if state is None or state.ended:
            return state
        leader, *others = [
            Transaction(
                _transactional_id(self._query, state.run, state.batch, entry.task, entry.attempt),
                entry.producer_id,
                entry.epoch,
                topic="",
                partition=-1,
                rows=entry.rows,
            )
            for entry in state.entries
        ]
        if not self._coordinators.end(leader, commit=True):
            _log.warning("batch %d: %s is gone, nothing is written", state.batch, leader.id)
            retracted = state.retract()
            self._ledger.write(retracted)
            self._coordinators.each(_aborted, others)
            return retracted
        done = self._coordinators.each(_committed, others)
        lost = [entry for entry, ok in zip(state.entries[1:], done, strict=True) if not ok]
        if not lost:
            self._ledger.write(state.end())
            return state.end()
        text = (
            f"exactlyOnce: of batch {state.batch}, {sum(entry.rows for entry in lost):,} rows are "
            f"lost, those of tasks {_names(entry.task for entry in lost)} of run {state.run}: it "
            "was decided and partly committed when its driver ended, and the rest timed out before "
            "the query was started again (kafka.transaction.timeout.ms). The next start goes on "
            "without them"
        )
        _log.error(text)  # before it is written down: a driver that dies here leaves it to the next
        self._ledger.write(state.end())
        raise KafkaError(text)

    def _drop(self) -> None:
        """Abort own transactions; what is not reached times out."""
        try:
            self._coordinators.each(_aborted, list(self._own.values()))
        except KshareError as error:
            _log.warning("transactions of batch %d are left to time out: %s", self._number, error)

    def _sweep(self, before: State | None) -> None:
        """Abort what attempts left open that do not count, so that no reader waits for them."""
        newcomer = before is None or self._run not in before.runs
        if not newcomer and not any(a.number or a.speculative for a in self._attempts):
            return
        prefix = _prefix(self._query) if newcomer else _prefix(self._query, self._run)
        try:
            own = {transaction.id for transaction in self._own.values()}
            for name in self._coordinators.open_ids(prefix):
                if name not in own:
                    self._coordinators.fence(name)
        except KshareError as error:
            _log.warning("open transactions %s... are left to time out: %s", prefix, error)


def _is_open(coordinators: Coordinators, transaction: Transaction) -> bool:
    return coordinators.is_open(transaction)


def _committed(coordinators: Coordinators, transaction: Transaction) -> bool:
    return coordinators.end(transaction, commit=True)


def _aborted(coordinators: Coordinators, transaction: Transaction) -> bool:
    return coordinators.end(transaction, commit=False)


def _prefix(*parts: str) -> str:
    return "-".join(("kshare", *parts, ""))


def _transactional_id(query: str, run: str, batch: int, task: int, attempt: int) -> str:
    return f"{_prefix(query, run)}{task}-{attempt}-{batch % 2}"


def _names(tasks: Iterable[int]) -> str:
    numbers = [str(task) for task in tasks]
    more = len(numbers) - _NAMED_MAX
    return ", ".join(numbers[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


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
