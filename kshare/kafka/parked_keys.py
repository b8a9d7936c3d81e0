"""Parked keys: the keys whose records wait until an operator lets them go on.

A key stays parked until it is unparked: the list is a compacted topic of one partition, so age does
not matter. A record's key is ``{"key": hex, "topic": name}`` as JSON. Its value is
``{"by": who, "when": time, "why": text}``; a tombstone lets the key go on.

Cost: one record a key; a running query asks for the topic's end every 2 s, and reads what is new
(:mod:`kshare.kafka.topic_table`).
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, TypeAlias

from kshare.core.listing import ParkedCount
from kshare.errors import KafkaError
from kshare.kafka.protocol.retry import Clock
from kshare.kafka.topic_table import (
    EVERY_SECONDS,
    TableTexts,
    TopicTable,
    TopicWatch,
    json_bytes,
    texts_of,
)
from kshare.kafka.topics import PARKED_TOPIC, TopicSpec
from kshare.options import KafkaConfig

__all__ = [
    "EVERY_SECONDS",
    "PARKED_TOPIC",
    "ParkWatch",
    "ParkedInfo",
    "ParkedKey",
    "ParkedKeys",
]

_log = logging.getLogger(__name__)

_BRIEF_SECONDS: Final = 3.0

ParkedKey: TypeAlias = tuple[str, bytes]
"""A topic, and a key in it."""


@dataclass(frozen=True, slots=True)
class ParkedInfo:
    """A parked key, with the metadata of its entry.

    Attributes:
        since: When it was parked: ISO 8601, in UTC.
        by: Who parked it; may be empty.
        why: Text for people; may be empty.
    """

    since: str
    by: str = ""
    why: str = ""


class ParkedKeys(TopicTable[ParkedKey, ParkedInfo]):
    """The parked keys of a cluster: read and changed.

    Every method raises a :class:`~kshare.errors.KafkaError` if the cluster does not answer within
    ``default.api.timeout.ms``, or refuses.
    """

    spec = TopicSpec(PARKED_TOPIC, 1, {"retention.ms": "-1"})
    reader = "kshare-parked-keys"
    texts = TableTexts(
        record="a parked key",
        loss="keys will not stay parked",
        unauthorized="not authorized to read which keys are parked, going on without them: if keys "
        f"are parked, grant this query's principal the right Read on topic {PARKED_TOPIC}",
        refused=f"the list of parked keys (topic {PARKED_TOPIC}) cannot be read, and the query "
        "does not start without it, as it would read parked keys",
        stale=f"cannot read which keys are parked (topic {PARKED_TOPIC}), going on with the "
        "{count} that were parked when last seen",
        repair="'kshare parked --drop-damaged' deletes what cannot be read",
    )

    @staticmethod
    def decode_key(data: bytes | None) -> ParkedKey:  # noqa: D102
        topic, key = texts_of(data, "topic", "key")
        return topic, bytes.fromhex(key)

    @staticmethod
    def decode_value(data: bytes) -> ParkedInfo:  # noqa: D102
        return ParkedInfo(*texts_of(data, "when", "by", "why"))

    def parked(self) -> dict[ParkedKey, ParkedInfo]:
        """All parked keys, by topic and key, ascending."""
        return dict(sorted(self.read().items()))

    def known(self, on_warning: Callable[[str], object]) -> dict[ParkedKey, ParkedInfo]:
        """As :meth:`parked`; none, with a warning, if they cannot be read, as by who may not.

        For those who show what they see: the rest is true without. They wait no longer than that
        again.
        """
        try:
            return self.parked()
        except KafkaError as error:
            self.shorten_timeout(_BRIEF_SECONDS)
            on_warning(f"parked keys are not known: {error}")
            return {}

    def park(self, topic: str, keys: Collection[bytes], *, why: str = "", by: str = "") -> None:
        """Park keys of a topic; for keys that are parked nothing changes."""
        self.park_all({(topic, key): why for key in keys}, by=by)

    def park_all(self, keys: Mapping[ParkedKey, str], *, by: str = "") -> None:
        """Park keys, each with the reason why, as :meth:`park`."""
        parked = self.read()
        when = self.stamp()
        new = [
            (_encode_key(*key), json_bytes({"by": by, "when": when, "why": why}))
            for key, why in keys.items()
            if key not in parked
        ]
        if new:
            self.put(new)

    def unpark(self, topic: str, keys: Collection[bytes]) -> None:
        """Let keys of a topic go on; for keys that are not parked nothing changes."""
        parked = self.read()
        gone = [key for key in dict.fromkeys(keys) if (topic, key) in parked]
        if gone:
            self.delete([_encode_key(topic, key) for key in gone])


class ParkWatch:
    """The parked keys as a running query goes by them.

    Args:
        kafka: How to reach the cluster.
        look_seconds: Maximum time that a look may take once the query runs.
        clock: Source of time.
        every_seconds: Age from which on the list is read again.
        said: As of :class:`.TopicTable`.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        *,
        look_seconds: float = 5.0,
        clock: Clock = time,
        every_seconds: float = EVERY_SECONDS,
        said: set[str] | None = None,
    ) -> None:
        self._watch = TopicWatch(
            partial(ParkedKeys, said=said),
            kafka,
            look_seconds=look_seconds,
            clock=clock,
            every_seconds=every_seconds,
        )
        self._known: Mapping[ParkedKey, ParkedInfo] = {}

    def current(self, topics: Collection[str]) -> list[ParkedKey]:
        """The parked keys of some topics, as they were at most 2 s ago or are last known.

        Raises:
            KafkaError: The list has never been read, and cannot be within
                ``default.api.timeout.ms``. The next call tries again.
        """
        return [key for key in self.everywhere() if key[0] in topics]

    def everywhere(self) -> frozenset[ParkedKey]:
        """The parked keys of all topics, as :meth:`current`.

        Raises:
            KafkaError: As of :meth:`current`.
        """
        rows = self._watch.current()
        parked, known = frozenset(rows), frozenset(self._known)
        for what, keys in (("parked", parked - known), ("unparked", known - parked)):
            for topic, key in sorted(keys):
                _log.info("%s: key %r of topic %s", what, key, topic)
        self._known = dict(rows)  # the watch goes on with its own
        return parked

    def counts(self) -> dict[str, ParkedCount]:
        """The parked keys of each topic that has some, as of the last look."""
        by_topic: dict[str, list[float | None]] = {}
        for (topic, _), info in self._known.items():
            by_topic.setdefault(topic, []).append(_seconds(info.since))
        return {
            topic: ParkedCount(
                len(times), min((at for at in times if at is not None), default=None)
            )
            for topic, times in sorted(by_topic.items())
        }

    def close(self) -> None:
        """Close the connections."""
        self._watch.close()


def _seconds(since: str) -> float | None:
    """A time of :class:`ParkedInfo`, in seconds since 1970; None if it is not one."""
    try:
        return datetime.fromisoformat(since).timestamp()
    except ValueError:
        return None


def _encode_key(topic: str, key: bytes) -> bytes:
    """The key of a record: the same bytes for the same key, or compaction would keep both."""
    return json_bytes({"key": key.hex(), "topic": topic})
