"""Exactly once: tasks prepare transactions, the driver decides a batch and ends them.

Guarantees: a reader with ``read_committed`` sees the rows of a batch once, those of the attempts
that were decided, no matter who runs the batch again and who dies on the way. docs/exactly-once.md
argues it. Where that cannot be kept, an error names what is missing. Nothing is committed but what
the ledger names, and nothing that it names is aborted while it can be committed.

A task writes in a transaction of its own and leaves it open. The driver writes down which
transactions make the batch, which is the decision, and then commits them. The leader is ended
first, alone: if it is gone, nothing of its batch is visible::

    open --- write the ledger ---> decided --- commit the leader ---> commit the others: ended
      |                               |
      +--- an error: abort            +--- it is gone ---> abort the others: retracted
                                      +--- nobody knows it any more ---> an error: ended

Cost: three requests for each transaction, several at a time, and a few to the ledger for each
batch. Spark has one process commit batch after batch, so a batch leaves its clients to the next
one; after an error they are closed. Tasks do without this module: the protocol's classes and the
admin client take 0.3 s to import.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NoReturn

from kshare.core.listing import join_names
from kshare.errors import KafkaError, KshareError
from kshare.options.frozen import digest_of
from kshare.options.sink import TRANSACTION_TIMEOUT_MS, SinkOptions
from kshare.process_local import ProcessLocal
from kshare.query.produce.coordinator import Coordinators
from kshare.query.produce.decided import commit_decided, transactions_of
from kshare.query.produce.ledger import Ledger
from kshare.query.produce.ledger_state import Entry, State, check_repetition, is_written, next_state
from kshare.query.produce.model import Attempt, Prepared, Transaction, id_prefix

__all__ = ["Batch", "KeptClients", "abort_batch", "commit_batch", "kept_clients"]

_log = logging.getLogger(__name__)
_TIME_SHARE: Final = 0.9
"""Of transaction.timeout.ms: a batch that took longer is not decided."""

_KEPT_SECONDS: Final = 60.0
"""Clients that no batch has used for so long are made anew, as brokers may have forgotten them."""

_NAMED_MAX: Final = 20
_said: Final = set[str]()
"""Warnings of this process; there are as many as runs of queries."""


def commit_batch(messages: Sequence[Prepared], batch: int, options: SinkOptions) -> None:
    """Decide a batch and commit its transactions, on the driver.

    After an error, call :func:`abort_batch` with the same messages.

    Args:
        messages: Those of the attempts that count, one for each task.
        batch: Number of the batch.
        options: The sink's options.

    Raises:
        KafkaError: The batch is not written (it may be run again), or it is decided and its
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


@dataclass(frozen=True, slots=True)
class _Clients:
    """The clients that commit the batches of one run of a query."""

    ledger: Ledger
    coordinators: Coordinators

    def close(self) -> None:
        self.ledger.close()
        self.coordinators.close()


class KeptClients:
    """Those of the last batch that this process has committed."""

    def __init__(self) -> None:
        self._clients: _Clients | None = None
        self._made_for: tuple[str, str, bytes] | None = None
        self._until = 0.0

    @contextmanager
    def taken(self, attempt: Attempt, options: SinkOptions) -> Iterator[_Clients]:
        """Those of a query's run: the kept ones, or new ones; after an error they are closed."""
        wanted = (attempt.query, attempt.run, digest_of(options))
        clients, self._clients = self._clients, None  # nobody else has them now
        if clients is not None and (wanted != self._made_for or time.monotonic() > self._until):
            clients.close()
            clients = None
        clients = clients or _made(attempt.query, options)
        try:
            yield clients
        except BaseException:
            clients.close()
            raise
        self._clients, self._made_for = clients, wanted
        self._until = time.monotonic() + _KEPT_SECONDS

    @property
    def empty(self) -> bool:
        """True if the next batch makes new ones."""
        return self._clients is None

    def drop(self) -> None:
        """Close them."""
        clients, self._clients = self._clients, None
        if clients is not None:
            clients.close()


kept_clients: Final = ProcessLocal(KeptClients, keeps_copy=True)
"""Those of this process."""


@contextmanager
def _opened(messages: Sequence[Prepared], batch: int, options: SinkOptions) -> "Iterator[Batch]":
    """A batch of at least one task, with the ledger and the coordinators that it needs."""
    with kept_clients().taken(messages[0].attempt, options) as own:
        yield Batch(messages, batch, options, own.ledger, own.coordinators)


def _made(query: str, options: SinkOptions) -> _Clients:
    coordinators = Coordinators(options.kafka)
    try:
        return _Clients(Ledger(options, query), coordinators)
    except BaseException:
        coordinators.close()
        raise


class Batch:
    """A batch on the driver, with its query's ledger.

    Args:
        messages: Those of the batch's tasks; at least one.
        batch: Number of the batch.
        options: The sink's options.
        ledger: The query's ledger.
        coordinators: What ends transactions.

    Raises:
        KafkaError: A message is one of another batch.
    """

    def __init__(
        self,
        messages: Sequence[Prepared],
        batch: int,
        options: SinkOptions,
        ledger: Ledger,
        coordinators: Coordinators,
    ) -> None:
        attempts = [message.attempt for message in messages]
        batches = {(attempt.query, attempt.run, attempt.batch) for attempt in attempts}
        self._query, self._run = attempts[0].query, attempts[0].run
        if batches != {(self._query, self._run, batch)}:
            raise KafkaError(
                f"exactlyOnce: tasks of other batches report to batch {batch}: {batches}"
            )
        self._attempts = attempts
        self._number = batch
        self._topic = options.topic or ""
        self._prefix = options.id_prefix
        self._may_drop = options.drop_repeated_batch == batch
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
        """Decide, and end; see :func:`~kshare.query.produce.driver.commit_batch`."""
        state = self._ledger.read()
        is_written(state, self._run, self._number)  # raises: an older run shuts no one out
        if not self._own and (state is None or state.ended):
            return  # no rows, and nothing left to do
        is_held = self._ledger.holds(state)
        if not is_held:
            self._ledger.take_over()
            state = self._finished(self._ledger.read())
        if is_written(state, self._run, self._number):
            self._drop_repetition(state)
            return
        if self._own:
            self._check()
            if state is None and self._number:
                _log.warning(
                    "exactlyOnce: the ledger %s knows nothing of query %s before batch %d. That is "
                    "right if its first rows are of this batch, or if it had no exactlyOnce "
                    "before. If its state is in another ledger (ledgerTopic), rows may be written "
                    "twice",
                    self._ledger.topic,
                    self._query,
                    self._number,
                )
            decided = next_state(
                state, self._run, self._number, self._entries(), self._topic, self._prefix
            )
            self._decide(decided, state if is_held else None)
            # From here on nothing may abort: the next to run the batch commits it.
            if self._finished(decided) != decided.end():
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
            self._finished(state)
        else:
            self._drop()

    def _decide(self, decided: State, held: State | None) -> None:
        """Write the decision.

        Args:
            decided: It.
            held: The state that a kept ledger wrote before; None if it was opened for this batch.
        """
        if held is not None:
            if self._ledger.write(decided):
                return
            self._ledger.take_over()  # as it would be without a kept one
            if self._ledger.read() != held:
                raise self._taken()
        self._write(decided)

    def _write(self, state: State) -> None:
        if not self._ledger.write(state):
            raise self._taken()

    def _taken(self) -> KafkaError:
        return KafkaError(
            "cannot write the ledger of exactlyOnce: another driver of the query has opened it "
            "since",
            topic=self._ledger.topic,
        )

    def _entries(self) -> tuple[Entry, ...]:
        return tuple(
            Entry(attempt.task, attempt.number, own.producer_id, own.epoch, own.rows)
            for attempt, own in self._own.items()
        )

    def _check(self) -> None:
        """Refuse the batch unless all its transactions are open, and stay open for a while."""
        took = time.time() - min(attempt.began for attempt in self._own)
        if took > _TIME_SHARE * self._timeout_seconds:
            raise KafkaError(
                f"exactlyOnce: batch {self._number} is not written: it took {took:.0f} s, and its "
                f"transactions end after {self._timeout_seconds:g} s "
                "(kafka.transaction.timeout.ms). Make batches smaller (maxOffsetsPerTrigger, or a "
                "shorter realTime), or raise it; brokers allow transaction.max.timeout.ms"
            )
        open_ = self._coordinators.each(_is_open, list(self._own.values()))
        ended = [attempt for attempt, is_open in zip(self._own, open_, strict=True) if not is_open]
        if ended:
            tasks = join_names((attempt.task for attempt in ended), _NAMED_MAX)
            raise KafkaError(
                f"exactlyOnce: batch {self._number} is not written: the transactions of tasks "
                f"{tasks} were ended by others (a second run of the query, or a time-out). "
                "Running the batch again writes it"
            )

    def _finished(self, state: State | None) -> State | None:
        """End what was decided: commit it, or take the decision back if nothing can be committed.

        If its leader is gone, nothing of the batch was committed. A task may have ended it already.
        """
        if state is None or state.ended:
            return state
        found, *done = commit_decided(state, self._query, self._coordinators)
        if found is None:  # it may be committed: its rows shall not be written twice
            self._give_up(state, state.entries, is_known=False)
        if not found:
            leader, *others = transactions_of(state, self._query)
            _log.warning("batch %d: %s is gone, nothing is written", state.batch, leader.id)
            retracted = state.retract()
            self._write(retracted)
            self._coordinators.each(_aborted, others)
            return retracted
        lost = [entry for entry, ok in zip(state.entries[1:], done, strict=True) if not ok]
        if lost:
            self._give_up(state, lost, is_known=None not in done)
        self._write(state.end())
        return state.end()

    def _give_up(self, state: State, entries: Sequence[Entry], *, is_known: bool) -> NoReturn:
        """Go on without the rows of some transactions from the next start on, with an error now.

        Args:
            state: The decided batch.
            entries: The transactions.
            is_known: Whether it is known that they were not committed.
        """
        rows = sum(entry.rows for entry in entries)
        tasks = join_names((entry.task for entry in entries), _NAMED_MAX)
        of_batch = f"exactlyOnce: of batch {state.batch}, {rows:,} rows"
        of_tasks = f"those of tasks {tasks} of run {state.run}"
        text = (
            f"{of_batch} are lost, {of_tasks}: it was decided and partly committed when its driver "
            "ended, and the rest timed out before the next run came to them "
            "(kafka.transaction.timeout.ms). The next start goes on without them"
            if is_known
            else f"{of_batch} may be lost, {of_tasks}: it was decided when its driver ended, and "
            "Kafka has forgotten since whether their transactions were committed "
            "(transactional.id.expiration.ms). Look for them in the topic. The next start goes on "
            "and does not write them again"
        )
        _log.error(text)  # before it is written down: a driver that dies here leaves it to the next
        self._write(state.end())
        raise KafkaError(text)

    def _drop_repetition(self, state: State | None) -> None:
        """Leave out rows that are there already.

        Raises:
            KafkaError: They cannot be the same rows.
        """
        assert state is not None
        rows = sum(own.rows for own in self._own.values())
        if not self._may_drop:
            check_repetition(state, rows, self._topic)
        _log.warning(
            "exactlyOnce: batch %d of query %s runs again, and was written before by run %s with "
            "%s rows: the %s rows of now are dropped. That is right after a driver that ended "
            "between Kafka's commit and Spark's; if the checkpoint was put back to an older state, "
            "or copied, they may be other rows",
            self._number,
            self._query,
            state.run,
            f"{state.rows:,}" if state.entries else "an unknown number of",
            f"{rows:,}",
        )
        self._drop()

    def _drop(self) -> None:
        """Abort own transactions; those that cannot be reached time out."""
        try:
            self._coordinators.each(_aborted, list(self._own.values()))
        except KshareError as error:
            _log.warning("transactions of batch %d are left to time out: %s", self._number, error)

    def _sweep(self, before: State | None) -> None:
        """Abort what attempts left open that do not count, so that no reader waits for them."""
        newcomer = before is None or self._run not in before.runs
        if not newcomer and not any(a.number or a.speculative for a in self._attempts):
            return
        parts = (self._query,) if newcomer else (self._query, self._run)
        prefix = id_prefix(self._prefix, *parts)
        try:
            own = {transaction.id for transaction in self._own.values()}
            for name in self._coordinators.open_ids(prefix):
                if name not in own:
                    self._coordinators.fence(name)
        except KshareError as error:
            text = f"open transactions {prefix}... are left to time out: {error}"
            # A broker that cannot list them says so at each batch.
            _log.log(logging.DEBUG if text in _said else logging.WARNING, "%s", text)
            _said.add(text)


def _is_open(coordinators: Coordinators, transaction: Transaction) -> bool:
    return coordinators.is_open(transaction)


def _aborted(coordinators: Coordinators, transaction: Transaction) -> bool | None:
    return coordinators.end(transaction, commit=False)
