"""Ending other processes' transactions: the few requests that a driver sends to coordinators.

Law: an answer says what became of that very transaction (its producer id and epoch), or it is an
error; nothing here begins one. Cost: two round trips a transaction, several at a time; connections
are kept while an object lives.

A transaction is ended by whoever knows its id, producer id and epoch: the coordinator does not ask
who sends the request. So tasks leave theirs open, and the driver ends them.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from kafka.errors import for_code
from kafka.protocol.admin import ListTransactionsRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)

from kshare.errors import AuthenticationError, AuthorizationError, KafkaError
from kshare.options import KafkaConfig
from kshare.produce.transactions import Transaction
from kshare.wire.protocol.connection import Connection

__all__ = ["Coordinators"]

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 4
_TRANSACTION: Final = 1  # a kind of coordinator
_NOT_NOW: Final = {
    3,  # UNKNOWN_TOPIC_OR_PARTITION: metadata of a broker that has just started
    7,  # REQUEST_TIMED_OUT
    14,  # COORDINATOR_LOAD_IN_PROGRESS
    15,  # COORDINATOR_NOT_AVAILABLE
    16,  # NOT_COORDINATOR
    19,  # NOT_ENOUGH_REPLICAS
    20,  # NOT_ENOUGH_REPLICAS_AFTER_APPEND
}
_CONCURRENT: Final = 51
_GONE: Final = {
    47,  # INVALID_PRODUCER_EPOCH
    48,  # INVALID_TXN_STATE: it was ended the other way
    49,  # INVALID_PRODUCER_ID_MAPPING: the id has expired
    59,  # UNKNOWN_PRODUCER_ID
    90,  # PRODUCER_FENCED
}
_DENIED: Final = {29, 31, 53}

_Answer = TypeVar("_Answer")
Address = tuple[str, int]


class _NotNowError(OSError):
    """A coordinator's answer that may be another one soon."""


class Coordinators:
    """The transaction coordinators of a cluster. For one thread, but for :meth:`each`.

    Every method asks again, up to ``default.api.timeout.ms``, while that may help.

    Raises:
        AuthenticationError, AuthorizationError: at once.
        KafkaError: no answer in time; what becomes of the transaction is not known then.
    """

    def __init__(self, kafka: KafkaConfig) -> None:
        self._kafka = kafka
        self._connections: dict[Address, Connection] = {}

    def is_open(self, transaction: Transaction) -> bool:
        """Whether a transaction goes on: it is asked to take a partition in that it has."""

        def ask() -> int:
            connection = self._coordinator(transaction.id)
            request = AddPartitionsToTxnRequest(
                version=connection.version(AddPartitionsToTxnRequest, 0, 3),
                v3_and_below_transactional_id=transaction.id,
                v3_and_below_producer_id=transaction.producer_id,
                v3_and_below_producer_epoch=transaction.epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                        name=transaction.topic, partitions=[transaction.partition]
                    )
                ],
            )
            (topic,) = connection.call(request).results_by_topic_v3_and_below
            (partition,) = topic.results_by_partition
            return int(partition.partition_error_code)

        # CONCURRENT_TRANSACTIONS: it is being ended.
        return self._settled(ask, f"look at transaction {transaction.id}", {_CONCURRENT})

    def end(self, transaction: Transaction, *, commit: bool) -> bool:
        """Commit or abort a transaction; once more does no harm.

        Returns:
            False: it is not there any more, so it was ended the other way (or timed out).
        """

        def ask() -> int:
            connection = self._coordinator(transaction.id)
            # From version 5 on a broker would answer with another epoch: not ours to take.
            request = EndTxnRequest(
                version=connection.version(EndTxnRequest, 0, 3),
                transactional_id=transaction.id,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.epoch,
                committed=commit,
            )
            return int(connection.call(request).error_code)

        what = f"{'commit' if commit else 'abort'} transaction {transaction.id}"
        return self._settled(ask, what, again={_CONCURRENT})

    def fence(self, transactional_id: str) -> None:
        """Abort whatever transaction an id has, and shut out its producer."""

        def ask() -> int:
            connection = self._coordinator(transactional_id)
            request = InitProducerIdRequest(
                version=connection.version(InitProducerIdRequest, 0, 4),
                transactional_id=transactional_id,
                transaction_timeout_ms=60_000,
            )
            return int(connection.call(request).error_code)

        # CONCURRENT_TRANSACTIONS: the abort has begun, which is all that is wanted.
        self._settled(ask, f"fence transactional id {transactional_id}", {_CONCURRENT})

    def open_ids(self, prefix: str) -> list[str]:
        """The transactional ids with this prefix whose transaction is open now.

        Empty with brokers before Kafka 3.0, which cannot tell.
        """
        return self._patiently(lambda: self._open_ids(prefix), "list transactions")

    def each(
        self, action: Callable[["Coordinators", Transaction], bool], of: Sequence[Transaction]
    ) -> list[bool]:
        """Do something to many transactions, several at a time; answers are in order."""
        if len(of) <= _AT_ONCE:
            return [action(self, transaction) for transaction in of]
        parts = [of[lane::_AT_ONCE] for lane in range(_AT_ONCE)]

        def work(part: Sequence[Transaction]) -> list[bool]:
            own = Coordinators(self._kafka)
            try:
                return [action(own, transaction) for transaction in part]
            finally:
                own.close()

        answers: list[bool] = [False] * len(of)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for lane, found in enumerate(pool.map(work, parts)):
                answers[lane::_AT_ONCE] = found
        return answers

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # -- requests ---------------------------------------------------------------------------

    def _settled(
        self, ask: Callable[[], int], what: str, done: Iterable[int] = (), again: Iterable[int] = ()
    ) -> bool:
        """Ask until the answer lasts: whether the transaction was there."""

        def step() -> bool:
            code = ask()
            if code == 0 or code in done:
                return True
            if code in _GONE:
                return False
            _raise(code, what, {*_NOT_NOW, *again})
            return False

        return self._patiently(step, what)

    def _patiently(self, step: Callable[[], _Answer], what: str) -> _Answer:
        deadline = time.monotonic() + self._kafka.api_timeout_ms / 1000
        pause = self._kafka.retry_backoff_ms / 1000
        while True:
            try:
                return step()
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise KafkaError(
                        f"cannot {what} within {self._kafka.api_timeout_ms / 1000:g} s "
                        f"(kafka.default.api.timeout.ms): {error or type(error).__name__}"
                    ) from error
                _log.info("asking again after: %s", error)
                if not isinstance(error, _NotNowError):
                    self.close()
            time.sleep(pause)
            pause = min(2 * pause, self._kafka.retry_backoff_max_ms / 1000)

    def _coordinator(self, transactional_id: str) -> Connection:
        connection = self._any()
        version = connection.version(FindCoordinatorRequest, 1, 3)
        response = connection.call(
            FindCoordinatorRequest(version=version, key=transactional_id, key_type=_TRANSACTION)
        )
        if response.error_code:
            what = f"find the coordinator of transactional id {transactional_id}"
            _raise(response.error_code, what, _NOT_NOW)
        return self._connection((response.host, response.port))

    def _open_ids(self, prefix: str) -> list[str]:
        first = self._any()
        version = first.version(MetadataRequest, 4, 9)
        brokers = first.call(
            MetadataRequest(version=version, topics=[], allow_auto_topic_creation=False)
        ).brokers
        found: list[str] = []
        for broker in brokers:
            connection = self._connection((broker.host, broker.port))
            try:
                version = connection.version(ListTransactionsRequest, 0, 0)
            except KafkaError:
                return []
            response = connection.call(
                ListTransactionsRequest(
                    version=version, state_filters=["Ongoing"], producer_id_filters=[]
                )
            )
            if response.error_code:
                _raise(response.error_code, "list transactions", _NOT_NOW)
            states: list[Any] = response.transaction_states
            found += [state.transactional_id for state in states]
        return [name for name in found if name.startswith(prefix)]

    def _any(self) -> Connection:
        """A connection to whichever broker answers."""
        for connection in self._connections.values():
            if connection.idle:
                return connection
        faults = []
        for address in self._kafka.bootstrap_servers:
            try:
                return self._connection(address)
            except OSError as error:
                faults.append(f"{address[0]}:{address[1]}: {error or type(error).__name__}")
        raise ConnectionError("no bootstrap server answered: " + "; ".join(faults))

    def _connection(self, address: Address) -> Connection:
        kept = self._connections.get(address)
        if kept is not None and kept.idle:
            return kept
        if kept is not None:
            kept.close()
        made = self._connections[address] = Connection(*address, self._kafka)
        return made


def _raise(code: int, what: str, again: Iterable[int]) -> None:
    name = for_code(code).__name__
    if code in again:
        raise _NotNowError(f"cannot {what} now: {name}")
    if code in _DENIED:
        raise AuthorizationError(
            f"not authorized to {what}: grant the principal Write and Describe on the "
            f"transactional ids that begin with kshare- ({name})"
        )
    if code in {33, 34, 58}:
        raise AuthenticationError(f"cannot {what}: {name}")
    raise KafkaError(f"cannot {what}: {name}")
