"""A table in a compacted topic, of JSON objects of texts: read, and changed by operators.

Guarantees: equal keys have equal bytes, or compaction would keep both. A record that cannot be read
is passed over, with a warning.
"""

import json
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, TypeVar

from kshare.cluster.compacted_topic import CompactedTopic

__all__ = ["TopicTable", "json_bytes", "texts"]

_log = logging.getLogger(__name__)

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class TopicTable(Generic[KeyT, ValueT]):
    """The rows of a compacted topic.

    Every method raises a :class:`~kshare.errors.KafkaError` if the cluster does not answer within
    ``default.api.timeout.ms``, or refuses.

    Args:
        topic: The topic.
        decode_key: Reads a key; raises ``ValueError``.
        decode_value: Reads a value; raises ``ValueError``.
        what: What a record is, for warnings: ``"a parked key"``.
        loss: What follows if the topic deletes old records, for warnings.
    """

    def __init__(
        self,
        topic: CompactedTopic,
        decode_key: Callable[[bytes | None], KeyT],
        decode_value: Callable[[bytes], ValueT],
        *,
        what: str,
        loss: str,
    ) -> None:
        self._topic = topic
        self._decode_key = decode_key
        self._decode_value = decode_value
        self._what = what
        self._loss = loss
        self._rows: dict[KeyT, ValueT] = {}

    def read(self) -> Mapping[KeyT, ValueT]:
        """All rows, in any order."""
        changes = self._topic.read()
        if changes.restarted:
            self._rows = {}
        for row in changes.rows:
            try:
                key = self._decode_key(row.key)
                value = None if row.value is None else self._decode_value(row.value)
            except (ValueError, RecursionError) as fault:
                _log.warning(
                    "%s, offset %d, is no record of %s: %s",
                    self._topic.name,
                    row.offset,
                    self._what,
                    fault,
                )
                continue
            self._rows.pop(key, None)
            if value is not None:
                self._rows[key] = value
        return self._rows

    def put(self, rows: Collection[tuple[bytes, bytes]]) -> None:
        """Write rows; makes the topic if need be."""
        if self._topic.exists:
            self._check_topic()
        else:
            self._topic.create()
        self._topic.write(rows)

    def delete(self, keys: Collection[bytes]) -> None:
        """Delete rows."""
        self._topic.write([(key, None) for key in keys])

    def shorten_timeout(self, seconds: float) -> None:
        """From now on, let no read wait for an answer longer than this."""
        self._topic.shorten_timeout(seconds)

    def close(self) -> None:
        """Close the connections."""
        self._topic.close()

    def _check_topic(self) -> None:
        """Warn of a topic that someone has made in another way."""
        policy = self._topic.policy()
        if policy is not None and policy.deletes_last_values:
            _log.warning(
                "%s: topic %s deletes old records. Set its cleanup.policy to compact.",
                self._loss,
                self._topic.name,
            )


def json_bytes(value: Any) -> bytes:
    """A value as JSON; the same bytes for equal ones."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def texts(data: bytes | None, *names: str) -> list[str]:
    """The texts in a JSON object by their names.

    Raises:
        ValueError: they are not there.
    """
    decoded = json.loads(data or b"")
    values = [decoded.get(name) if isinstance(decoded, dict) else None for name in names]
    if any(not isinstance(value, str) for value in values):
        raise ValueError(f"wanted a JSON object with the texts {', '.join(names)}")
    return [str(value) for value in values]
