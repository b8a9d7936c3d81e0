"""A decided batch is ended: its leader is committed first, the others only if that was there.

Guarantees: if the leader is gone, nothing of its batch is visible, whoever ends it. To end it twice
does no harm, so a task may do it that knows the decision from the ledger: it writes nothing there.

A run that dies behind its decision leaves transactions that time out. The driver of the next one
ends them when it commits, but that is behind all tasks of the repetition. So a task ends them
before it reads a row::

    task 0 of a run, once a process: the ledger --> decided, not ended --> commit the leader
                                                                               --> and the others
    the driver, when all tasks are done: finds them committed, and writes down that all have ended

Cost: of the first task 0 of a process and run, a client and a read of the ledger's partition: 0.03
s.
"""

import logging
from contextlib import closing
from dataclasses import replace
from typing import Final

from kshare.errors import UnknownTopicError
from kshare.kafka.topics import LEDGER_TOPIC
from kshare.options.frozen import digest_of
from kshare.options.sink import SinkOptions
from kshare.query.produce.coordinator import Coordinators
from kshare.query.produce.ledger import LedgerRecord
from kshare.query.produce.ledger_state import State
from kshare.query.produce.model import Attempt, Transaction, id_prefix, transactional_id

__all__ = ["commit_decided", "end_decided", "transactions_of"]

_log = logging.getLogger(__name__)
_ended: Final = set[tuple[str, str, bytes]]()
"""Queries, runs and options that this process has looked for; there are as many as runs."""


def end_decided(attempt: Attempt, options: SinkOptions) -> None:
    """End what an earlier run of the query has decided and not ended, once in a process and run.

    Nothing is written into the ledger, and nothing is judged: that is the driver's.

    Raises:
        KafkaError: The ledger cannot be read, or a coordinator did not answer in time: the batch
            is not to run again before that is known.
    """
    run = attempt.query, attempt.run, digest_of(options)
    if run in _ended:
        return
    state = _decided(attempt.query, options)
    with closing(Coordinators(options.kafka)) as coordinators:
        found = commit_decided(state, attempt.query, coordinators)
    if state is not None and found:
        _log.warning(
            "exactlyOnce: run %s of query %s decided batch %d and did not end it: of its %d "
            "transactions, %d are committed now",
            state.run,
            attempt.query,
            state.batch,
            len(state.entries),
            found.count(True),
        )
    _ended.add(run)


def _decided(query: str, options: SinkOptions) -> State | None:
    """The query's state; None if there is none, or no ledger, which the driver makes."""
    kafka = replace(options.kafka, offset_attempts=1)  # Spark tries the task again
    try:
        with LedgerRecord(kafka, query, options.ledger_topic or LEDGER_TOPIC) as record:
            return record.read()
    except UnknownTopicError:
        return None


def commit_decided(
    state: State | None, query: str, coordinators: Coordinators
) -> list[bool | None]:
    """Commit the transactions of a batch, unless they have ended.

    Returns:
        What became of each, in the order of the entries, as
        :meth:`~kshare.query.produce.coordinator.Coordinators.end` says it: of the leader alone if
        it was not there, of none if there was nothing to do.
    """
    if state is None or state.ended:
        return []
    leader, *others = transactions_of(state, query)
    found = coordinators.end(leader, commit=True)
    return [found, *coordinators.each(_committed, others)] if found else [found]


def transactions_of(state: State, query: str) -> list[Transaction]:
    """The transactions of a decided batch; the first is the leader."""
    begin = id_prefix(state.prefix, query, state.run)
    return [
        Transaction(
            transactional_id(begin, state.batch, entry.task, entry.attempt),
            entry.producer_id,
            entry.epoch,
            topic="",
            partition=-1,
            rows=entry.rows,
        )
        for entry in state.entries
    ]


def _committed(coordinators: Coordinators, transaction: Transaction) -> bool | None:
    return coordinators.end(transaction, commit=True)
