"""The ledger: which batch of a query was decided last, and by which transactions.

Guarantees: a query has one state, replaced as a whole; a replacement counts only if no one else has
opened the ledger for that query since (Kafka fences the older producer). So a batch is decided
once, no matter how many try. ``decode(encode(state)) == state``.

The topic ``__kshare_sink_ledger`` is made on first use: compacted, the key is the query's id.

Cost: some requests for each batch; a read of the ledger's partition, which compaction keeps at
about 1 MiB.
"""

import json
import zlib
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import KafkaException, Producer

from kshare.cluster.client import Client, kafka_error
from kshare.cluster.compacted_topic import CompactedTopic
from kshare.cluster.topics import LEDGER_TOPIC, TopicSpec
from kshare.errors import CheckpointVersionError, KafkaError, UnknownTopicError
from kshare.options.sink import SinkOptions
from kshare.produce.config import commit_transaction, transactional_config, with_late_repetitions
from kshare.produce.sender import connect

__all__ = [
    "Entry",
    "Ledger",
    "State",
    "check_repetition",
    "decode",
    "encode",
    "is_written",
    "next_state",
]

_SPEC: Final = TopicSpec(
    LEDGER_TOPIC,
    16,
    {
        "compression.type": "producer",
        "max.message.bytes": str(8 << 20),
        "segment.bytes": str(1 << 20),
        "segment.ms": "3600000",
    },
    wishes={"min.cleanable.dirty.ratio": "0.05"},
)

_TIMEOUT_MS: Final = 30_000
_CLEAN_UP_SECONDS: Final = 15.0
"""A coordinator looks for transactions that have timed out every 10 s
(``transaction.abort.timed.out.transaction.cleanup.interval.ms``), and then ends them."""

VERSION: Final = 1
RUNS_MAX: Final = 50
"""Number of remembered runs of a query; an older one learns that it is not the last."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One transaction of a decided batch: task, attempt, producer, and number of rows."""

    task: int
    attempt: int
    producer_id: int
    epoch: int
    rows: int


@dataclass(frozen=True, slots=True)
class State:
    """The ledger's state of a query.

    Attributes:
        batch: Number of the last batch that was decided.
        run: Id of the run that decided it: a start of the query.
        runs: Ids of the last runs, in the order of their first decisions; ``run`` is the last one.
        entries: The transactions that hold the batch; the first is the leader.
        ended: Whether all of them have been ended.
        topic: The topic of all rows; empty if each row names its own.
    """

    batch: int
    run: str
    runs: tuple[str, ...]
    entries: tuple[Entry, ...] = ()
    ended: bool = False
    topic: str = ""

    @property
    def rows(self) -> int:
        """Number of rows of the batch."""
        return sum(entry.rows for entry in self.entries)

    def end(self) -> "State":
        """The same when all transactions are committed."""
        return replace(self, ended=True)

    def retract(self) -> "State":
        """The state when nothing of the batch was committed, nor will be."""
        return replace(self, batch=self.batch - 1, entries=(), ended=True)


def next_state(
    state: State | None, run: str, batch: int, entries: tuple[Entry, ...], topic: str = ""
) -> State:
    """The state after the decision for a batch, not ended yet."""
    runs = () if state is None else state.runs
    known = runs if run in runs else (*runs, run)
    return State(batch, run, known[-RUNS_MAX:], entries, topic=topic)


def is_written(state: State | None, run: str, batch: int) -> bool:
    """True if a batch was decided before; rows of a repetition do not count.

    Raises:
        KafkaError: Another run has begun since, or the batch lies before the last one.
    """
    if state is None:
        return False
    if run in state.runs[:-1]:
        raise KafkaError(
            f"exactlyOnce: batch {batch} is not written: the query was started again on the same "
            f"checkpoint (run {state.run} has written batch {state.batch}), and this is an older "
            "run: stop one of the two"
        )
    if batch < state.batch:
        raise KafkaError(
            f"exactlyOnce: batch {batch} was written before, and {state.batch} was the last one: "
            "the checkpoint was put back to an older state. Restore the newer one, or begin with a "
            "new checkpoint if rows are to be written again"
        )
    return batch == state.batch


def check_repetition(state: State, rows: int, topic: str) -> None:
    """Refuse the rows of a batch that was written before, if they cannot be the same ones.

    A batch that Spark runs again has the offsets of the first time, so it has as many rows. One
    that is planned anew, from a checkpoint that was set back or copied, has the same number and
    other rows, which nobody would write.

    Args:
        state: The ledger's state; its batch is the repeated one.
        rows: Number of rows of the repetition.
        topic: The topic of all of them; empty if each row names its own.

    Raises:
        KafkaError: The number of rows differs, or the topic.
    """
    if not (rows and state.entries):  # nothing to lose, or a decision that was withdrawn
        return
    if rows != state.rows:
        what = f"with {state.rows:,} rows, and now has {rows:,}"
    elif topic and state.topic and topic != state.topic:
        what = f"to topic {state.topic}, and is now to be written to {topic}"
    else:
        return
    raise KafkaError(
        f"exactlyOnce: batch {state.batch} was written before {what}. The rows of now are not "
        "written: the checkpoint was put back to an older state, or it is a copy of another "
        "query's. Restore the newer one; or give this one an id of its own (docs/exactly-once.md "
        "says how), if its rows are to be written whatever was written before. If the checkpoint "
        "is the right one, and the query was changed or its rows differ from run to run: start it "
        f"as it was, or with dropRepeatedBatch={state.batch}, which drops the rows of now"
    )


def encode(state: State) -> bytes:
    """A state as the ledger's JSON."""
    rows = [[e.task, e.attempt, e.producer_id, e.epoch, e.rows] for e in state.entries]
    fields: dict[str, Any] = {
        "v": VERSION,
        "batch": state.batch,
        "run": state.run,
        "runs": state.runs,
        "ended": state.ended,
        "transactions": rows,
    }
    if state.topic:
        fields["topic"] = state.topic  # which earlier versions pass over
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(value: bytes) -> State:
    """The state that :func:`encode` wrote.

    Raises:
        CheckpointVersionError: A later kshare wrote it.
        KafkaError: The bytes are no state.
    """
    try:
        fields: dict[str, Any] = json.loads(value)
        version = fields["v"]
        if version == VERSION:
            return State(
                batch=int(fields["batch"]),
                run=str(fields["run"]),
                runs=tuple(map(str, fields["runs"])),
                entries=tuple(Entry(*map(int, row)) for row in fields["transactions"]),
                ended=bool(fields["ended"]),
                topic=str(fields.get("topic", "")),
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
        # Of a decision that was begun: a driver that dies in it holds up other queries for so long.
        given = int(options.producer.get("transaction.timeout.ms", _TIMEOUT_MS))
        self._timeout_ms = min(given, _TIMEOUT_MS)
        self._topic = CompactedTopic(
            options.kafka,
            _SPEC,
            read_committed=True,
            choose=lambda count: (zlib.crc32(self._key) % count,),
            group="kshare-sink-ledger",
            seconds_min=self._timeout_ms / 1000 + _CLEAN_UP_SECONDS,
        )
        self._partition = self._found_or_made()
        self._producer: Producer | None = None
        self._is_producer_fit = False  # whether it may begin a transaction
        self._state: State | None = None

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

        What others are deciding in the same partition is waited for.
        """
        changes = self._topic.read()
        if changes.restarted:
            self._state = None
        for row in changes.rows:
            if row.key == self._key:
                self._state = decode(row.value or b"")
        return self._state

    def take_over(self) -> None:
        """Shut out all others that have this query's ledger open; they cannot write any more."""
        client = Client(Producer, self._options.kafka, self._producer_config)
        try:
            self._producer = client.handle
            connect(self._producer, LEDGER_TOPIC, self._seconds)
            self._producer.init_transactions(self._seconds)
        except KafkaException as error:
            raise kafka_error(
                error, "open the ledger of exactlyOnce", topic=LEDGER_TOPIC
            ) from error
        self._is_producer_fit = True

    def write(self, state: State) -> None:
        """Replace the query's state.

        Raises:
            KafkaError: Fenced by another driver, or not known to be written: read it again.
        """
        if self._producer is None:
            raise RuntimeError("write() before take_over()")
        if not self._is_producer_fit:
            self._take_over_again()
        self._is_producer_fit = False
        try:
            self._producer.begin_transaction()
            self._producer.produce(LEDGER_TOPIC, encode(state), self._key, self._partition)
            self._is_producer_fit = commit_transaction(self._producer, self._seconds)
        except KafkaException as error:
            raise kafka_error(
                error,
                "write the ledger of exactlyOnce",
                topic=LEDGER_TOPIC,
                partition=self._partition,
            ) from error
        self._state = state

    def close(self) -> None:
        """Close the clients."""
        self._topic.close()
        self._producer = None

    def _take_over_again(self) -> None:
        """Get another epoch, as an earlier request to commit may still arrive.

        Another driver may have decided something in between, and is shut out only now.
        """
        known = self._state
        self.take_over()
        if self.read() != known:
            raise KafkaError(
                "cannot write the ledger of exactlyOnce: another driver of the query has written "
                "it meanwhile",
                topic=LEDGER_TOPIC,
                partition=self._partition,
            )

    def _producer_config(self) -> dict[str, Any]:
        config = with_late_repetitions(
            transactional_config(self._options, f"kshare-ledger-{self._key.decode()}")
        )
        del config["statistics.interval.ms"]
        timeout = self._timeout_ms
        return config | {
            "linger.ms": 0,
            "message.timeout.ms": timeout,
            "socket.timeout.ms": min(config.get("socket.timeout.ms", timeout), timeout),
            "transaction.timeout.ms": timeout,
        }

    def _found_or_made(self) -> int:
        """The partition where the query's state is; the topic is made if it does not exist."""
        try:
            (partition,) = self._topic.partitions()
        except UnknownTopicError:
            self._topic.create()
            (partition,) = self._topic.partitions()
        return partition.partition
