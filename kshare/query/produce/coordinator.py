"""Ending other processes' transactions: the few requests that a driver sends to coordinators.

Guarantees: an answer says what became of that very transaction (its producer id and epoch), or it
is an error; nothing here begins a transaction.

A transaction is ended by anyone who knows its id, producer id and epoch: the coordinator does not
ask who sends the request. So tasks leave theirs open, and the driver ends them.

Cost: two round trips for each transaction, several at a time; connections are kept while an object
lives.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from kshare.errors import AuthenticationError, KafkaError
from kshare.kafka.coordinator import TRANSACTION, NotNowError, check, find_on, retried
from kshare.kafka.protocol import error_codes
from kshare.kafka.protocol.broker_pool import process_memory, search_brokers
from kshare.kafka.protocol.connection import Connection
from kshare.kafka.protocol.error_codes import ErrorCode, Kind
from kshare.kafka.protocol.messages import Address
from kshare.kafka_python import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    MetadataRequest,
)
from kshare.options import KafkaConfig
from kshare.query.produce.model import Transaction

__all__ = ["Coordinators"]

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 4
_GONE: Final = {Kind.FENCED, Kind.TRANSACTION_ENDED}
# The id has expired: Kafka forgets it transactional.id.expiration.ms after its last transaction.
_UNKNOWN: Final = {ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.UNKNOWN_PRODUCER_ID}
_FENCE_TIMEOUTS_MS: Final = (60_000, 10_000, 1_000)
"""Of a transaction that is never begun: the first one that transaction.max.timeout.ms allows."""
# The coordinator is ending the transaction.
_BEING_ENDED: Final = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})

_Answer = TypeVar("_Answer")


class Coordinators:
    """The transaction coordinators of a cluster. For one thread, but for :meth:`each`.

    Every method asks again, up to ``default.api.timeout.ms``, while that may help.

    Args:
        kafka: How to reach the cluster.
        ids: Which transactional ids these are, for errors.

    Raises:
        AuthenticationError, AuthorizationError: At once.
        KafkaError: No answer in time; what becomes of the transaction is not known then.
    """

    def __init__(
        self, kafka: KafkaConfig, *, ids: str = "transactional ids that begin with kshare-"
    ) -> None:
        self._kafka = kafka
        self._ids = ids
        self._grant = f"grant the principal Write and Describe on the {ids}"
        self._connections: dict[Address, Connection] = {}

    def is_open(self, transaction: Transaction) -> bool:
        """True if a transaction is open: it is asked to take in a partition that it has."""

        def ask() -> int:
            connection = self._coordinator(transaction.id)
            request = AddPartitionsToTxnRequest(
                version=connection.version(AddPartitionsToTxnRequest),
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

        what = f"look at transaction {transaction.id}"
        return bool(self._found(ask, what, success=_BEING_ENDED))

    def end(self, transaction: Transaction, *, commit: bool) -> bool | None:
        """Commit or abort a transaction; doing so again does no harm.

        Returns:
            Whether it was there; if not, it was ended the other way, or timed out. None if Kafka
            knows nothing of it any more: then it may have been ended either way.
        """

        def ask() -> int:
            connection = self._coordinator(transaction.id)
            request = EndTxnRequest(
                version=connection.version(EndTxnRequest),
                transactional_id=transaction.id,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.epoch,
                committed=commit,
            )
            return int(connection.call(request).error_code)

        what = f"{'commit' if commit else 'abort'} transaction {transaction.id}"
        return self._found(ask, what)

    def fence(
        self,
        transactional_id: str,
        *,
        until_ended: bool = False,
        producer: tuple[int, int] = (-1, -1),
    ) -> None:
        """Abort the transaction that an id may have, and shut out its producer.

        Args:
            transactional_id: The id.
            until_ended: Whether to wait until the transaction is ended, in all its partitions.
            producer: Id and epoch of the producer: a later one of that id is left alone. The
                default is any.
        """

        def ask() -> int:
            connection = self._coordinator(transactional_id)
            code = int(ErrorCode.NONE)
            for timeout_ms in _FENCE_TIMEOUTS_MS:
                request = InitProducerIdRequest(
                    version=connection.version(InitProducerIdRequest),
                    transactional_id=transactional_id,
                    transaction_timeout_ms=timeout_ms,
                    producer_id=producer[0],
                    producer_epoch=producer[1],
                )
                code = int(connection.call(request).error_code)
                if code != ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                    break
            return code

        what = f"fence transactional id {transactional_id}"
        # An abort that has begun is mostly all that is wanted.
        if not self._found(ask, what, success=() if until_ended else _BEING_ENDED) and until_ended:
            raise KafkaError(f"cannot {what}: another producer of it came in between")

    def open_ids(self, prefix: str) -> list[str]:
        """The transactional ids with this prefix whose transaction is open now.

        Raises:
            KafkaError: Brokers refused, or cannot tell, as those before Kafka 3.0.
        """
        names = self._retried(self._open_ids, "list transactions")
        return [name for name in names if name.startswith(prefix)]

    def ids_of(self, producer_id: int) -> list[str]:
        """The transactional id of a producer's open transaction; empty if there is none.

        Ids that the principal may not describe are left out.

        Raises:
            KafkaError: As of :meth:`open_ids`.
        """
        return self._retried(lambda: self._open_ids([producer_id]), "list transactions")

    def each(
        self,
        action: Callable[["Coordinators", Transaction], _Answer],
        transactions: Sequence[Transaction],
    ) -> list[_Answer]:
        """Do something to many transactions, several at a time; answers are in order."""
        if len(transactions) <= _AT_ONCE:
            return [action(self, transaction) for transaction in transactions]
        lanes = [transactions[lane::_AT_ONCE] for lane in range(_AT_ONCE)]

        def work(lane: Sequence[Transaction]) -> list[_Answer]:
            own = Coordinators(self._kafka, ids=self._ids)
            try:
                return [action(own, transaction) for transaction in lane]
            finally:
                own.close()

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            by_lane = list(pool.map(work, lanes))
        return [by_lane[at % _AT_ONCE][at // _AT_ONCE] for at in range(len(transactions))]

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # -- requests ---------------------------------------------------------------------------

    def _found(
        self, ask: Callable[[], int], what: str, *, success: Collection[int] = ()
    ) -> bool | None:
        """Ask until the answer is final: whether the transaction was there; None if it is unknown.

        Args:
            ask: Sends the request, and returns the error code.
            what: What is done, for errors.
            success: Codes that mean success to this request.
        """

        def step() -> bool | None:
            code = ask()
            if code in _UNKNOWN:
                return None
            if error_codes.kind(code) in _GONE:
                return False
            if code not in success:
                check(code, what, grant=self._grant)
            return True

        return self._retried(step, what)

    def _retried(self, step: Callable[[], _Answer], what: str) -> _Answer:
        def tried() -> _Answer:
            try:
                return step()
            except NotNowError:
                raise
            except OSError:
                self.close()
                raise

        return retried(self._kafka, what, tried)

    def _coordinator(self, transactional_id: str) -> Connection:
        what = f"find the coordinator of transactional id {transactional_id}"
        address = find_on(self._any(), transactional_id, TRANSACTION, what, grant=self._grant)
        return self._connection(address)

    def _open_ids(self, producer_ids: Sequence[int] = ()) -> list[str]:
        first = self._any()
        version = first.version(MetadataRequest)
        brokers = first.call(
            MetadataRequest(version=version, topics=[], allow_auto_topic_creation=False)
        ).brokers
        process_memory().see(self._kafka, [(broker.host, broker.port) for broker in brokers])
        ids: list[str] = []
        for broker in brokers:
            connection = self._connection((broker.host, broker.port))
            version = connection.version(ListTransactionsRequest)
            response = connection.call(
                ListTransactionsRequest(
                    version=version,
                    state_filters=["Ongoing"],
                    producer_id_filters=list(producer_ids),
                )
            )
            check(response.error_code, "list transactions", grant=self._grant)
            states: list[Any] = response.transaction_states
            ids += [state.transactional_id for state in states]
        return ids

    def _any(self) -> Connection:
        """A connection to any broker."""
        for connection in self._connections.values():
            if connection.idle:
                return connection
        search = search_brokers(self._kafka)
        for address in search:
            try:
                return self._connection(address)
            except (AuthenticationError, OSError) as error:
                search.failed(address, error)
        raise ConnectionError(f"no broker answered: {search}")

    def _connection(self, address: Address) -> Connection:
        kept = self._connections.get(address)
        if kept is not None and kept.idle:
            return kept
        if kept is not None:
            kept.close()
        made = self._connections[address] = Connection(*address, self._kafka)
        return made
