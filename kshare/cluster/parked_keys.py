"""Parked keys: whose records wait, by decree of an operator.

Law: who reads the list sees it as it was at some moment of the last seconds, or as last known if it
cannot be read. A query that has never seen it does not start without it, unless it is not
authorized to; a query that has never fails over it. A key stays parked until it is unparked: the
topic is compacted, so age does not matter.
Cost: one record a key; a running query asks for the topic's end every 2 s, and reads what is new.

The list is a topic of one partition. A record's key is ``{"key": hex, "topic": name}`` as JSON, its
value ``{"by": who, "when": time, "why": text}``, or nothing (a tombstone): the key goes on.
"""

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kshare.cluster.client_log import client_log
from kshare.cluster.cluster import Cluster
from kshare.core.progress import TopicPartition
from kshare.errors import (
    AuthenticationError,
    AuthorizationError,
    FetchTimeoutError,
    KafkaError,
    UnknownTopicError,
)
from kshare.options import KafkaConfig, Subscribe
from kshare.security.librdkafka import librdkafka_config
from kshare.wire.protocol.retry import Backoff

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

__all__ = ["PARKED_TOPIC", "ParkWatch", "ParkedInfo", "ParkedKey", "ParkedKeys"]

_log = logging.getLogger(__name__)

PARKED_TOPIC: Final = "__kshare_parked_keys"
"""Where the list is kept."""

EVERY_SECONDS: Final = 2.0
"""How old the list may be that a running query goes by."""

_WATCH_SECONDS = 5.0  # a trigger waits no longer
_POLL_SECONDS = 0.1
_AUTHORIZATION = {29, 30, 31}
_EXISTS = 36
_TOPIC_CONFIG = {"cleanup.policy": "compact", "retention.ms": "-1"}

ParkedKey: TypeAlias = tuple[str, bytes]
"""A topic, and a key in it."""


@dataclass(frozen=True, slots=True)
class ParkedInfo:
    """What is told of a parked key.

    Attributes:
        since: when it was parked: ISO 8601, in UTC.
        by: who parked it; may be empty.
        why: a text for people; may be empty.
    """

    since: str
    by: str = ""
    why: str = ""


class ParkedKeys:
    """The list of a cluster: read and changed.

    Every method raises a :class:`~kshare.errors.KafkaError` if the cluster does not answer within
    ``default.api.timeout.ms``, or refuses.
    """

    def __init__(
        self, kafka: KafkaConfig, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._kafka = kafka
        self._now = now
        self._table = _Table(kafka)

    def parked(self) -> dict[ParkedKey, ParkedInfo]:
        """All parked keys, by topic and key, ascending."""
        return dict(sorted(self._table.read().items()))

    def park(self, topic: str, keys: Collection[bytes], *, why: str = "", by: str = "") -> None:
        """Park keys of a topic; for those that are parked nothing changes."""
        parked = self.parked()
        new = [key for key in dict.fromkeys(keys) if (topic, key) not in parked]
        if not new:
            return
        self._make_topic()
        when = self._now().astimezone(UTC).isoformat(timespec="seconds")
        value = _json({"by": by, "when": when, "why": why})
        self._write([(_encode_place(topic, key), value) for key in new])

    def unpark(self, topic: str, keys: Collection[bytes]) -> None:
        """Let keys of a topic go on; for those that are not parked nothing changes."""
        parked = self.parked()
        gone = [key for key in dict.fromkeys(keys) if (topic, key) in parked]
        if gone:
            self._write([(_encode_place(topic, key), None) for key in gone])

    def close(self) -> None:
        """Let go of the cluster."""
        self._table.close()

    def _make_topic(self) -> None:
        """Make the topic, unless it is there."""
        from confluent_kafka import KafkaException  # noqa: PLC0415
        from confluent_kafka.admin import (  # type: ignore[attr-defined]  # noqa: PLC0415
            AdminClient,
            NewTopic,
        )

        if self._table.exists:
            self._check_topic()
            return
        admin = AdminClient(librdkafka_config(self._kafka), logger=client_log)
        new = NewTopic(PARKED_TOPIC, 1, config=_TOPIC_CONFIG)
        seconds = self._kafka.api_timeout_ms / 1000
        try:
            admin.create_topics([new], operation_timeout=seconds)[PARKED_TOPIC].result(seconds)
        except KafkaException as error:
            if error.args[0].code() != _EXISTS:  # somebody was faster
                raise _mapped(error.args[0], f"create topic {PARKED_TOPIC}") from error
        except TimeoutError as error:
            raise _mapped(error, f"create topic {PARKED_TOPIC}") from error

    def _check_topic(self) -> None:
        """Warn of a topic that somebody has made in another way."""
        with closing(Cluster(self._kafka)) as cluster:
            policy = cluster.policies([PARKED_TOPIC]).get(PARKED_TOPIC)
        if policy is not None and (not policy.compacted or policy.retention_ms is not None):
            _log.warning(
                "keys will not stay parked: topic %s deletes old records. Set its cleanup.policy "
                "to compact.",
                PARKED_TOPIC,
            )

    def _write(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write records, and return when the brokers have them."""
        from confluent_kafka import Producer  # noqa: PLC0415

        config = {
            **librdkafka_config(self._kafka),
            "acks": "all",
            "linger.ms": 0,
            "message.timeout.ms": self._kafka.api_timeout_ms,
        }
        config.pop("client.rack", None)  # a consumer's
        producer = Producer(config, logger=client_log)
        refused: list[Any] = []

        def told(error: Any, _: object) -> None:
            if error is not None:
                refused.append(error)

        for key, value in records:
            producer.produce(PARKED_TOPIC, value, key, on_delivery=told)
        left = producer.flush(self._kafka.api_timeout_ms / 1000 + 1)
        if refused or left:
            raise _mapped(refused[0] if refused else TimeoutError(), f"write to {PARKED_TOPIC}")


class ParkWatch:
    """The list as a running query goes by it.

    Args:
        kafka: how to reach the cluster.
        clock: seconds.
    """

    def __init__(self, kafka: KafkaConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kafka = kafka
        self._table = _Table(replace(kafka, offset_attempts=1))
        self._clock = clock
        self._next: float | None = None
        self._started = False
        self._known: frozenset[ParkedKey] = frozenset()
        self._warned = False

    def current(self, topics: Collection[str]) -> list[ParkedKey]:
        """The parked keys of some topics, as they were at most 2 s ago or are last known.

        Raises:
            KafkaError: the list has never been read, and cannot be within
                ``default.api.timeout.ms``. Then the next call tries again.
        """
        now = self._clock()
        if self._next is None or now >= self._next:
            if self._started:
                self._look()
            else:
                self._start()
            # Counted from the end: reading may have taken a while.
            self._next = self._clock() + EVERY_SECONDS
        return [place for place in self._known if place[0] in topics]

    def close(self) -> None:
        """Let go of the cluster."""
        self._table.close()

    def _start(self) -> None:
        """Look for the first time: there is nothing that is last known to go on with."""
        try:
            self._know(self._patiently_read())
        except AuthorizationError as error:
            # Most often nobody parks keys there, and nobody thought of a right to that topic.
            _log.warning(
                "not authorized to read which keys are parked, going on without them: if keys "
                "are parked, grant this query's principal the right Read on topic %s: %s",
                PARKED_TOPIC,
                error,
            )
            self._warned = True
        # In between two batches nobody waits for a list that cannot be read.
        self._table.hurry(_WATCH_SECONDS)
        self._started = True

    def _patiently_read(self) -> frozenset[ParkedKey]:
        """Read the list, and again after a fault, in ``default.api.timeout.ms``."""
        deadline = time.monotonic() + self._kafka.api_timeout_ms / 1000
        backoff = Backoff(self._kafka.retry_backoff_ms, self._kafka.retry_backoff_max_ms)
        while True:
            pause = backoff.pause()
            try:
                return frozenset(self._table.read())
            except AuthorizationError:
                raise
            except (KafkaError, OSError) as error:
                if isinstance(error, AuthenticationError) or time.monotonic() + pause >= deadline:
                    raise KafkaError(
                        f"the list of parked keys (topic {PARKED_TOPIC}) cannot be read, and the "
                        f"query does not start without it, as it would read parked keys: {error}",
                        topic=PARKED_TOPIC,
                    ) from error
                _log.info("reading the list of parked keys again after: %s", error)
            time.sleep(pause)

    def _look(self) -> None:
        try:
            found = frozenset(self._table.read())
        except (KafkaError, OSError) as error:
            _log.log(
                logging.DEBUG if self._warned else logging.WARNING,
                "cannot read which keys are parked (topic %s), going on with the %d that were "
                "parked when last seen: %s",
                PARKED_TOPIC,
                len(self._known),
                error,
            )
            self._warned = True
            return
        self._know(found)

    def _know(self, found: frozenset[ParkedKey]) -> None:
        self._warned = False
        for what, places in (("parked", found - self._known), ("unparked", self._known - found)):
            for topic, key in sorted(places):
                _log.info("%s: key %r of topic %s", what, key, topic)
        self._known = found


class _PatientCluster(Cluster):
    """A cluster that may be waited for less from some moment on."""

    def hurry(self, seconds: float) -> None:
        """Wait no longer than this for an answer."""
        self._seconds = min(self._seconds, seconds)


class _Table:
    """The topic as a table, read on from where it was read to."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self._kafka = kafka
        self._seconds = kafka.api_timeout_ms / 1000
        self._cluster = _PatientCluster(kafka)
        self._consumer: Consumer | None = None
        self._partitions: tuple[TopicPartition, ...] = ()
        self._next: dict[TopicPartition, int] = {}
        self._rows: dict[ParkedKey, ParkedInfo] = {}

    @property
    def exists(self) -> bool:
        """Whether the topic was there when it was last read."""
        return bool(self._partitions)

    def hurry(self, seconds: float) -> None:
        """Wait no longer than this for an answer."""
        self._seconds = min(self._seconds, seconds)
        self._cluster.hurry(seconds)

    def read(self) -> Mapping[ParkedKey, ParkedInfo]:
        """The table as it is now. After an error nothing has changed.

        Raises:
            KafkaError: the cluster did not answer, or refused.
        """
        try:
            if not self._partitions:
                self._partitions = self._listed()
            try:
                self._catch_up()
            except UnknownTopicError as error:
                # Deleted; or a leader that starts has not heard of it yet.
                self._partitions = self._listed()
                raise KafkaError(str(error), topic=PARKED_TOPIC) from error
        except UnknownTopicError:
            self._forget()
        return self._rows

    def close(self) -> None:
        """Let go of the cluster; a later call opens it again."""
        self._cluster.close()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _listed(self) -> tuple[TopicPartition, ...]:
        return self._cluster.partitions(Subscribe((PARKED_TOPIC,)))

    def _catch_up(self) -> None:
        """Read what is new."""
        ends = self._cluster.latest(self._partitions)
        if any(ends.get(place, 0) < at for place, at in self._next.items()):
            self._forget()  # the topic was made anew
            self._partitions = tuple(ends)
        pending = [place for place in ends if self._next.get(place, 0) < ends[place]]
        if pending:
            self._read_on(self._cluster.earliest(pending), ends)

    def _forget(self) -> None:
        self._partitions, self._next, self._rows = (), {}, {}

    def _read_on(
        self, first: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> None:
        """Read partitions up to their ends."""
        from confluent_kafka import TopicPartition as RdTopicPartition  # noqa: PLC0415

        rows, nexts = dict(self._rows), dict(self._next)
        nexts.update((place, max(at, nexts.get(place, 0))) for place, at in first.items())
        consumer = self._open()
        consumer.assign([RdTopicPartition(*place, nexts[place]) for place in first])
        deadline = time.monotonic() + self._seconds
        try:
            while any(nexts[place] < ends[place] for place in first):
                message = consumer.poll(_POLL_SECONDS)
                # An error of no topic is one of the group, which is never joined: no matter.
                if message is not None and message.topic() is not None:
                    place = TopicPartition(str(message.topic()), int(message.partition() or 0))
                    nexts[place] = _taken(message, rows, nexts.get(place, 0), ends.get(place, 0))
                elif time.monotonic() > deadline:
                    raise FetchTimeoutError(
                        f"cannot read {PARKED_TOPIC} within {self._seconds:g} s "
                        "(kafka.default.api.timeout.ms)",
                        topic=PARKED_TOPIC,
                    )
        finally:
            consumer.unassign()
        self._rows, self._next = rows, nexts

    def _open(self) -> "Consumer":
        if self._consumer is None:
            from confluent_kafka import Consumer  # noqa: PLC0415

            config = {
                **librdkafka_config(self._kafka),
                "group.id": self._kafka.group_id or "kshare-parked-keys",  # never joined
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,  # the end is known: nobody waits for more
            }
            self._consumer = Consumer(config, logger=client_log)
        return self._consumer


def _taken(message: "Message", rows: dict[ParkedKey, ParkedInfo], at: int, end: int) -> int:
    """Take a message into the table; the offset to go on at."""
    from confluent_kafka import KafkaError as RdKafkaError  # noqa: PLC0415

    error = message.error()
    if error is not None:
        # Compaction leaves gaps, also before the end.
        if error.code() == RdKafkaError._PARTITION_EOF:  # noqa: SLF001
            return max(at, end)
        raise _mapped(error, f"read {PARKED_TOPIC}")
    offset, key, value = message.offset(), message.key(), message.value()
    assert offset is not None
    try:
        place = _decode_place(key)
        info = None if value is None else _decode_info(value)
    except (ValueError, RecursionError) as fault:
        _log.warning("%s, offset %d, is no record of a parked key: %s", PARKED_TOPIC, offset, fault)
    else:
        rows.pop(place, None)
        if info is not None:
            rows[place] = info
    return offset + 1


def _json(value: Mapping[str, str]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _encode_place(topic: str, key: bytes) -> bytes:
    """The key of a record: the same bytes for the same key, or compaction would keep both."""
    return _json({"key": key.hex(), "topic": topic})


def _texts(data: str | bytes | None, *names: str) -> list[str]:
    """The texts in a JSON object by their names.

    Raises:
        ValueError: they are not there.
    """
    found = json.loads(data or b"")
    values = [found.get(name) if isinstance(found, dict) else None for name in names]
    if any(not isinstance(value, str) for value in values):
        raise ValueError(f"wanted a JSON object with the texts {', '.join(names)}")
    return [str(value) for value in values]


def _decode_place(data: str | bytes | None) -> ParkedKey:
    topic, key = _texts(data, "topic", "key")
    return topic, bytes.fromhex(key)


def _decode_info(data: str | bytes) -> ParkedInfo:
    return ParkedInfo(*_texts(data, "when", "by", "why"))


def _mapped(error: Any, what: str) -> KafkaError:
    """An error of librdkafka as one of ours."""
    text = error.str() if hasattr(error, "str") else str(error) or "timed out"
    if hasattr(error, "code") and error.code() in _AUTHORIZATION:
        return AuthorizationError(f"not authorized to {what}: {text}", topic=PARKED_TOPIC)
    return KafkaError(f"cannot {what}: {text}", topic=PARKED_TOPIC)
