"""Messages between tasks and driver of an exactly-once sink: attempts and transactions."""

from dataclasses import dataclass

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
    """A task's message to the driver: all its rows are on the brokers, in a transaction.

    Attributes:
        attempt: The attempt that wrote them.
        transaction: The transaction, which is still open; None if there were no rows.
    """

    attempt: Attempt
    transaction: Transaction | None


def id_prefix(*parts: str) -> str:
    """Prefix of the transactional ids of a query, or of one of its runs."""
    return "-".join(("kshare", *parts, ""))


def transactional_id(query: str, run: str, batch: int, task: int, attempt: int) -> str:
    """The name of an attempt's transaction; see :class:`Attempt`."""
    return f"{id_prefix(query, run)}{task}-{attempt}-{batch % 2}"
