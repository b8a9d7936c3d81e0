"""The ledger: which batch of a query was decided last, and by which transactions.

Law: for a query there is one state, replaced as a whole; a replacement counts only if nobody has
opened the ledger for that query since (Kafka fences the older producer). So a batch is decided
once, whoever tries. Cost: some requests a batch; a read of the ledger's partition, which
compaction keeps at about 1 MiB.

The topic ``__kshare_sink_ledger`` is made on first use: compacted, the key is the query's id.
"""

import json
import time
import zlib
from dataclasses import dataclass, replace
from enum import Enum
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from kshare.cluster.client_log import client_log
from kshare.cluster.cluster import Cluster
from kshare.core.progress import TopicPartition
from kshare.errors import CheckpointVersionError, KafkaError, UnknownTopicError
from kshare.options import Subscribe
from kshare.options.sink import SinkOptions
from kshare.produce.config import transactional_config
from kshare.produce.sender import connect, mapped
from kshare.security.librdkafka import librdkafka_config

__all__ = [
    "LEDGER_TOPIC",
    "Entry",
    "Ledger",
    "State",
    "Verdict",
    "decide",
    "decode",
    "encode",
    "judge",
]


LEDGER_TOPIC: Final = "__kshare_sink_ledger"
VERSION: Final = 1
RUNS_MAX: Final = 50
"""How many runs of a query are remembered, to tell an older one that it is not the last."""

_PARTITIONS: Final = 16
# Of a decision that was begun: what it holds up is how others in its partition are read.
_TIMEOUT_MS: Final = 60_000
_CONFIG: Final = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "max.message.bytes": str(8 << 20),
    "min.cleanable.dirty.ratio": "0.05",
    "segment.bytes": str(1 << 20),
    "segment.ms": "3600000",
}
_POLL_SECONDS: Final = 0.05
_END: Final = RdKafkaError._PARTITION_EOF  # noqa: SLF001
_EXISTS: Final = RdKafkaError.TOPIC_ALREADY_EXISTS
_NO_SUCH_REQUEST: Final = RdKafkaError._UNSUPPORTED_FEATURE  # noqa: SLF001


@dataclass(frozen=True, slots=True)
class Entry:
    """One transaction of a decided batch: task, attempt, producer, and how many rows it holds."""

    task: int
    attempt: int
    producer_id: int
    epoch: int
    rows: int


@dataclass(frozen=True, slots=True)
class State:
    """What the ledger says of a query.

    Attributes:
        batch: the last one that was decided.
        run: of the query's starts, the one that decided it.
        runs: the last starts, in the order of their first decisions; ``run`` is the last one.
        entries: the transactions that hold the batch; the first is the leader.
        ended: whether all of them have been ended.
    """

    batch: int
    run: str
    runs: tuple[str, ...]
    entries: tuple[Entry, ...] = ()
    ended: bool = False

    def end(self) -> "State":
        """The same when all transactions are committed."""
        return replace(self, ended=True)

    def retract(self) -> "State":
        """The state when nothing of the batch was committed, nor will be."""
        return replace(self, batch=self.batch - 1, entries=(), ended=True)


class Verdict(Enum):
    """What to do with a batch."""

    DECIDE = "it is new"
    WRITTEN = "it was decided before: rows of a repetition do not count"


def decide(state: State | None, run: str, batch: int, entries: tuple[Entry, ...]) -> State:
    """The state after the decision for a batch, not ended yet."""
    runs = () if state is None else state.runs
    known = runs if run in runs else (*runs, run)
    return State(batch, run, known[-RUNS_MAX:], entries)


def judge(state: State | None, run: str, batch: int) -> Verdict:
    """What a run may do with a batch.

    Raises:
        KafkaError: another run has begun since, or the batch lies before the last one.
    """
    if state is None:
        return Verdict.DECIDE
    if run in state.runs[:-1]:
        raise KafkaError(
            f"exactlyOnce: batch {batch} is not written: the query was started again on the same "
            f"checkpoint (run {state.run} has written batch {state.batch}), and this is an older "
            "run: stop one of the two"
        )
    if batch > state.batch:
        return Verdict.DECIDE
    if batch == state.batch:
        return Verdict.WRITTEN
    raise KafkaError(
        f"exactlyOnce: batch {batch} was written before, and {state.batch} was the last one: the "
        "checkpoint was put back to an older state. Restore the newer one, or begin with a new "
        "checkpoint if rows are to be written again"
    )


def encode(state: State) -> bytes:
    """A state as the ledger's JSON."""
    rows = [[e.task, e.attempt, e.producer_id, e.epoch, e.rows] for e in state.entries]
    told = {
        "v": VERSION,
        "batch": state.batch,
        "run": state.run,
        "runs": state.runs,
        "ended": state.ended,
        "transactions": rows,
    }
    return json.dumps(told, separators=(",", ":")).encode()


def decode(told: bytes) -> State:
    """The state that :func:`encode` wrote.

    Raises:
        CheckpointVersionError: a later kshare wrote it.
        KafkaError: it is none.
    """
    try:
        found: dict[str, Any] = json.loads(told)
        version = found["v"]
        if version == VERSION:
            return State(
                batch=int(found["batch"]),
                run=str(found["run"]),
                runs=tuple(map(str, found["runs"])),
                entries=tuple(Entry(*map(int, row)) for row in found["transactions"]),
                ended=bool(found["ended"]),
            )
    except (KeyError, TypeError, ValueError) as error:
        raise KafkaError(
            f"topic {LEDGER_TOPIC} holds a record that is no state of a sink: {error}",
            topic=LEDGER_TOPIC,
        ) from error
    raise CheckpointVersionError(
        f"topic {LEDGER_TOPIC} holds a state of version {version!r}, this kshare reads "
        f"{VERSION}: use the kshare that wrote it, or a later one",
        version=version,
    )


class Ledger:
    """The ledger of one query, to be closed by whoever opens it.

    Raises:
        KafkaError: Kafka did not answer in time, or refused.
    """

    def __init__(self, options: SinkOptions, query: str) -> None:
        self._options = options
        self._key = query.encode()
        self._seconds = options.kafka.api_timeout_ms / 1000
        self._cluster = Cluster(replace(options.kafka, read_committed=False))
        self._place = TopicPartition(LEDGER_TOPIC, self._partition())
        self._producer: Producer | None = None
        self._state: State | None = None
        self._consumer = Consumer(
            {
                **librdkafka_config(options.kafka),
                "group.id": "kshare-sink-ledger",  # never joined
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
                "log_level": 3,
            },
            logger=client_log,
        )
        self._position = 0
        self._assigned = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def read(self) -> State | None:
        """The query's state; None if it never decided a batch.

        What is being decided by others in the same partition is waited for.
        """
        earliest = self._cluster.earliest([self._place])[self._place]
        end = self._cluster.latest([self._place])[self._place]
        self._position = max(self._position, earliest)
        if not self._assigned and self._position < end:
            self._consumer.assign([RdTopicPartition(*self._place, self._position)])
            self._assigned = True
        deadline = time.monotonic() + self._seconds
        while self._position < end:
            self._take()
            if time.monotonic() > deadline:
                raise KafkaError(
                    f"cannot read {LEDGER_TOPIC}, partition {self._place.partition}, from offset "
                    f"{self._position} to {end} within {self._seconds:g} s "
                    "(kafka.default.api.timeout.ms)",
                    topic=LEDGER_TOPIC,
                    partition=self._place.partition,
                    offset=self._position,
                )
        return self._state

    def take_over(self) -> None:
        """Shut out all others that have this query's ledger open; they cannot write any more."""
        config = transactional_config(self._options, f"kshare-ledger-{self._key.decode()}")
        del config["statistics.interval.ms"]
        config |= {
            "linger.ms": 0,
            "message.timeout.ms": _TIMEOUT_MS,
            "socket.timeout.ms": min(config.get("socket.timeout.ms", _TIMEOUT_MS), _TIMEOUT_MS),
            "transaction.timeout.ms": _TIMEOUT_MS,
        }
        self._producer = Producer(config, logger=client_log)
        try:
            connect(self._producer, LEDGER_TOPIC, self._seconds)
            self._producer.init_transactions(self._seconds)
        except KafkaException as error:
            raise mapped(error.args[0], "open the ledger of exactlyOnce", LEDGER_TOPIC) from error

    def write(self, state: State) -> None:
        """Replace the query's state.

        Raises:
            KafkaError: fenced by another driver, or not known to be written: read it again.
        """
        if self._producer is None:
            raise RuntimeError("write() before take_over()")
        topic, partition = self._place
        try:
            self._producer.begin_transaction()
            self._producer.produce(topic, encode(state), self._key, partition)
            self._producer.commit_transaction(self._seconds)
        except KafkaException as error:
            raise mapped(error.args[0], "write the ledger of exactlyOnce", *self._place) from error
        self._state = state

    def close(self) -> None:
        """Let go of the clients."""
        self._consumer.close()
        self._cluster.close()
        self._producer = None

    # -- reading ----------------------------------------------------------------------------

    def _take(self) -> None:
        for message in self._consumer.consume(1000, _POLL_SECONDS):
            error = message.error()
            if error is None:
                self._position = (message.offset() or 0) + 1
                if message.key() == self._key:
                    self._state = decode(message.value() or b"")
            elif error.code() == _END:
                # Beyond the last record there are marks of transactions, which are not handed out.
                self._position = max(self._position, message.offset() or 0)
            elif error.code() >= 0 and not error.retriable():
                raise mapped(error, "read the ledger of exactlyOnce", *self._place)

    def _partition(self) -> int:
        """Where the query's state is; the topic is made if it is not there."""
        try:
            found = self._cluster.partitions(Subscribe((LEDGER_TOPIC,)))
        except UnknownTopicError:
            self._create()
            found = self._cluster.partitions(Subscribe((LEDGER_TOPIC,)))
        return zlib.crc32(self._key) % len(found)

    def _create(self) -> None:
        config = {**librdkafka_config(self._options.kafka), "log_level": 3}
        admin = AdminClient(config, logger=client_log)
        new = NewTopic(LEDGER_TOPIC, _PARTITIONS, -1, config=_CONFIG)
        try:
            admin.create_topics([new], request_timeout=self._seconds)[LEDGER_TOPIC].result()
        except KafkaException as error:
            if error.args[0].code() not in {_EXISTS, _NO_SUCH_REQUEST}:
                raise mapped(error.args[0], f"create topic {LEDGER_TOPIC}", LEDGER_TOPIC) from error
