"""The topics that a subscription by pattern means: looked for again and again, beside the consumer.

::

    subscribe --> a thread lists the topics --> others than before: the member joins again with them
                        ^                             |
                        +---- metadata.max.age.ms ----+   5 s while there are none
"""

import logging
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing
from typing import Any, Final, NamedTuple

from kshare.cluster.cluster import Cluster
from kshare.cluster.topics import is_internal
from kshare.errors import KafkaError
from kshare.options import KafkaConfig
from kshare.options.kinds import topic_fault
from kshare.options.pattern import java_pattern

__all__ = ["SubscribedTopics", "TopicPatterns"]

_log = logging.getLogger("kshare.group")

_SOON_SECONDS: Final = 5.0


class SubscribedTopics(NamedTuple):
    """What is subscribed.

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
        with closing(Cluster(self._kafka)) as cluster:
            while not closed.is_set():
                seconds = _SOON_SECONDS
                try:
                    found = topics.among(cluster.topics())
                except KafkaError as error:
                    _log.warning("cannot look which topics match a subscription: %s", error)
                else:
                    if found:
                        seconds = self._kafka.metadata_max_age_seconds
                    with self._lock:
                        if found and found != known and not closed.is_set():
                            self._on_topics(found)
                    known = found or known
                closed.wait(seconds)


def _name(topic: object) -> str:
    wrong = topic_fault(topic) if isinstance(topic, str) else ("is not a text",)
    if wrong is not None or not isinstance(topic, str):
        raise ValueError(f"not a topic: {topic!r}: {'; '.join(wrong or ())}")
    return topic


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return java_pattern(text)
    except ValueError as error:
        raise ValueError(f"{text!r} {error}") from None
