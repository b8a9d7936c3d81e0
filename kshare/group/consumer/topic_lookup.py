"""Looks up topics and partitions that a user names: whether they exist, and their offsets.

::

    subscribe by pattern --> a thread lists the topics --> others: the member joins again with them
                                 ^                             |
                                 +---- metadata.max.age.ms ----+   5 s while there are none

Guarantees: brokers that do not answer within 2 s keep nobody from assigning partitions that exist.
"""

import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from typing import Any, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from kshare.core.progress import TopicPartition
from kshare.core.showing import shown
from kshare.core.waits import Wait
from kshare.errors import KafkaError, UnknownTopicError
from kshare.kafka.cluster import Cluster
from kshare.kafka.protocol.wait_log import WaitLog
from kshare.kafka.topics import is_internal
from kshare.options import KafkaConfig, Subscribe
from kshare.options.kinds import topic_fault
from kshare.options.pattern import java_pattern

__all__ = ["SubscribedTopics", "TopicPatterns", "check_existence", "log_offsets"]

_log = logging.getLogger("kshare.group")
_SOON_SECONDS: Final = 5.0
_NO_TOPIC: Final = Wait(
    "no topic matches the subscription, so nothing is read",
    "there is one that the principal may describe",
)
_PATIENCE_SECONDS: Final = 2.0


class SubscribedTopics(NamedTuple):
    """The topics of a subscription, by name and by pattern.

    Attributes:
        names: Topics by name, ascending.
        patterns: Regular expressions that topics' names are searched for.
    """

    names: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...] = ()

    @classmethod
    def of(cls, topics: Iterable[Any] | re.Pattern[str]) -> "SubscribedTopics":
        """Parse a subscription; a text is one topic, or with ``^`` in front a pattern.

        Raises:
            ValueError: There is nothing, or something is wrong.
        """
        listed = [topics] if isinstance(topics, str | re.Pattern) else list(topics)
        if not listed:
            raise ValueError("no topics to subscribe to; unsubscribe() ends a subscription")
        names, patterns = set[str](), []
        for each in listed:
            if isinstance(each, re.Pattern) and isinstance(each.pattern, str):
                patterns.append(each)
            elif isinstance(each, str) and each.startswith("^"):
                patterns.append(_compiled(each))
            else:
                names.add(_name(each))
        return cls(tuple(sorted(names)), tuple(patterns))

    def among(self, existing: Iterable[str]) -> tuple[str, ...]:
        """The topics that it means; Kafka's and kshare's own match no pattern."""
        matched = {
            name
            for name in existing
            if not is_internal(name) and any(pattern.search(name) for pattern in self.patterns)
        }
        return tuple(sorted(matched.union(self.names)))


class TopicPatterns:
    """Follows the topics that patterns match. From any thread.

    Args:
        kafka: How to reach the cluster.
        on_topics: Called with the topics when they are others than before; never with none.
        lock: Held while that is called: the one that it takes, so that none waits for the other. A
            signal handler may have interrupted who holds it, so it is one for that thread.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        on_topics: Callable[[tuple[str, ...]], None],
        lock: AbstractContextManager[Any],
    ) -> None:
        self._kafka = kafka
        self._on_topics = on_topics
        self._lock = lock
        self._closed = threading.Event()  # of the subscription that is followed

    def follow(self, topics: SubscribedTopics) -> None:
        """Follow these patterns, and no others."""
        with self._lock:
            self._closed.set()
            self._closed = threading.Event()
            work = (topics, self._closed)
            threading.Thread(target=self._run, args=work, name="kshare topics", daemon=True).start()

    def stop(self) -> None:
        """Follow nothing any more; once this returns, nothing is called."""
        with self._lock:
            self._closed.set()

    def _run(self, topics: SubscribedTopics, closed: threading.Event) -> None:
        known: tuple[str, ...] = ()
        said, waits = "", WaitLog(_log)
        with closing(Cluster(self._kafka)) as cluster:
            while not closed.is_set():
                seconds = _SOON_SECONDS
                try:
                    found = topics.among(cluster.topics())
                    with self._lock:
                        if found and found != known and not closed.is_set():
                            self._on_topics(found)
                    waits.look({} if found else {"": _NO_TOPIC})
                    if found:
                        known, seconds = found, self._kafka.metadata_max_age_seconds
                except KafkaError as error:
                    _log.warning("cannot look which topics match a subscription: %s", error)
                except Exception as error:  # without this thread, no topic would ever be found
                    if repr(error) != said:
                        said = repr(error)
                        _log.exception("cannot look which topics match a subscription")
                closed.wait(seconds)


def _name(topic: object) -> str:
    wrong = topic_fault(topic) if isinstance(topic, str) else ("is not a text",)
    if wrong is not None or not isinstance(topic, str):
        raise ValueError(f"not a topic: {shown(topic)}: {'; '.join(wrong or ())}")
    return topic


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return java_pattern(text)
    except ValueError as error:
        raise ValueError(f"{shown(text)} {error}") from None


def check_existence(kafka: KafkaConfig, partitions: AbstractSet[TopicPartition]) -> None:
    """Refuse partitions that do not exist.

    Raises:
        UnknownTopicError: A topic does not exist, or has fewer partitions.
    """
    if not partitions:
        return
    topics = tuple(sorted({tp.topic for tp in partitions}))
    with closing(Cluster(replace(kafka, offset_attempts=1))) as cluster:
        cluster.shorten_timeout(_PATIENCE_SECONDS)
        try:
            existing = {*cluster.partitions(Subscribe(topics))}
        except UnknownTopicError:
            raise
        except KafkaError as error:  # the session says it, should it last
            _log.info("cannot see whether %s exist: %s", ", ".join(topics), error)
            return
    missing = min(partitions - existing, default=None)
    if missing is not None:
        topic = missing.topic
        count = sum(each.topic == topic for each in existing)  # for the text alone
        raise UnknownTopicError(
            f"{missing} does not exist: topic {topic} has partitions 0 to {count - 1}",
            topic=topic,
            partition=missing.partition,
        )


def log_offsets(
    kafka: KafkaConfig, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Offsets, with those of the log in place of ``OFFSET_BEGINNING`` and ``OFFSET_END``.

    Raises:
        KafkaError: The cluster did not answer, or refused.
    """
    first = [tp for tp, offset in offsets.items() if offset == OFFSET_BEGINNING]
    last = [tp for tp, offset in offsets.items() if offset == OFFSET_END]
    if not first and not last:
        return dict(offsets)
    with closing(Cluster(kafka)) as cluster:
        return {**offsets, **cluster.earliest(first), **cluster.latest(last)}
