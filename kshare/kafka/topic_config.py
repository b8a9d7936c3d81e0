"""The part of a topic's configuration that says how long its records stay."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["TopicConfig"]

_SEGMENT_BYTES, _BATCH_BYTES = 1 << 30, (1 << 20) + 12  # Kafka's defaults


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The part of a topic's configuration that says what becomes of its records.

    Attributes:
        compacted: Whether records vanish when a later one has the same key.
        retention_ms: Age at which records are deleted; None if age does not matter.
        log_append_time: Whether brokers stamp records on arrival; if not, producers do.
        retention_bytes: Size down to which a partition's oldest segments are deleted; None if size
            does not matter.
        segment_bytes: Maximum size of a segment.
        batch_bytes: Maximum size of a batch of records.
        compaction_lag_ms: Age below which no record vanishes.
    """

    compacted: bool
    retention_ms: int | None
    log_append_time: bool = False
    retention_bytes: int | None = None
    segment_bytes: int = _SEGMENT_BYTES
    batch_bytes: int = _BATCH_BYTES
    compaction_lag_ms: int = 0

    @property
    def deletes_last_values(self) -> bool:
        """True if the last record of a key may vanish: the topic is no table."""
        return not self.compacted or (self.retention_ms, self.retention_bytes) != (None, None)

    @classmethod
    def of(cls, values: Mapping[str, str | None]) -> "TopicConfig":
        """Read the values of a topic's configuration, as DescribeConfigs names them."""
        cleanup = values.get("cleanup.policy") or "delete"
        deletes = "delete" in cleanup

        def limit(name: str) -> int | None:
            value = int(values.get(name) or -1)
            return value if deletes and value >= 0 else None

        return cls(
            compacted="compact" in cleanup,
            retention_ms=limit("retention.ms"),
            log_append_time=values.get("message.timestamp.type") == "LogAppendTime",
            retention_bytes=limit("retention.bytes"),
            segment_bytes=int(values.get("segment.bytes") or _SEGMENT_BYTES),
            batch_bytes=int(values.get("max.message.bytes") or _BATCH_BYTES),
            compaction_lag_ms=int(values.get("min.compaction.lag.ms") or 0),
        )
