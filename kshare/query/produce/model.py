"""Messages between tasks and driver of an exactly-once sink: attempts and transactions."""

from dataclasses import dataclass

from kshare.options.sink import ID_PREFIX

__all__ = ["Attempt", "Prepared", "Transaction", "id_prefix", "transactional_id"]


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction of a task, with what it takes to end it.

    Attributes:
        id: Transactional id.
        producer_id: Producer id that the broker gave.
        epoch: Producer epoch.
        topic: Topic of a partition that was written to.
        partition: Number of that partition.
        rows: Number of rows.
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
        query: Id of the query, which its checkpoint keeps.
        run: Id of this start of the query.
        batch: Number of the batch.
        task: Number of the task in the batch.
        number: Number of the attempt, from 0.
        began: When the batch began, in seconds since 1970, by the driver's clock.
        speculative: Whether Spark may run a task twice at a time.
        prefix: How the ids of its query's transactions begin.
    """

    query: str
    run: str
    batch: int
    task: int
    number: int
    began: float
    speculative: bool = False
    prefix: str = ID_PREFIX

    @property
    def transactional_id(self) -> str:
        """The name of its transaction.

        No two attempts of a batch share one, nor do two runs of a query. Every other batch uses
        the same names again: a broker keeps each name for days.
        """
        begin = id_prefix(self.prefix, self.query, self.run)
        return transactional_id(begin, self.batch, self.task, self.number)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A task's message to the driver: all its rows are on the brokers, in a transaction.

    Attributes:
        attempt: The attempt that wrote them.
        transaction: The transaction, which is still open; None if there were no rows.
    """

    attempt: Attempt
    transaction: Transaction | None


def id_prefix(prefix: str, *parts: str) -> str:
    """How the transactional ids of a query begin, or those of one of its runs.

    Args:
        prefix: That of the sink.
        parts: The query, or the query and the run.
    """
    return "-".join((prefix, *parts, ""))


def transactional_id(begin: str, batch: int, task: int, attempt: int) -> str:
    """The name of an attempt's transaction; see :class:`Attempt`.

    Args:
        begin: The :func:`id_prefix` of its query and run.
        batch: Number of the batch.
        task: Number of the task in the batch.
        attempt: Number of the attempt.
    """
    return f"{begin}{task}-{attempt}-{batch % 2}"
