"""Exactly once: tasks prepare transactions, the driver decides a batch and ends them.

Guarantees: a reader with ``read_committed`` sees the rows of a batch once, those of the attempts
that were decided, no matter who runs the batch again and who dies on the way. docs/exactly-once.md
argues it. Where that cannot be kept, an error names what is missing.

A task writes in a transaction of its own and leaves it open. The driver writes down which
transactions make the batch, which is the decision, and then commits them, one as the leader first.

Cost: some requests for each transaction, and a few to the ledger for each batch. Tasks do without
this module: the protocol's classes and the admin client take 0.3 s to import.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from kshare.options.sink import SinkOptions
from kshare.produce.coordinator import Coordinators
from kshare.produce.decision import Batch
from kshare.produce.ledger import Ledger
from kshare.produce.model import Prepared

__all__ = ["abort_batch", "commit_batch"]


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
def _opened(messages: Sequence[Prepared], batch: int, options: SinkOptions) -> Iterator[Batch]:
    """A batch of at least one task, with the ledger and the coordinators that it needs."""
    coordinators = Coordinators(options.kafka)
    try:
        with Ledger(options, messages[0].attempt.query) as ledger:
            yield Batch(messages, batch, options, ledger, coordinators)
    finally:
        coordinators.close()
