"""How Spark's kafka source reads the offsets of a checkpoint."""

from collections.abc import Mapping
from typing import Any

from kshare.core.progress import TopicPartition

__all__ = ["as_spark_reads"]


def as_spark_reads(offsets: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """What Spark's kafka source takes from an offset dict: of one number twice, the last."""
    return {
        TopicPartition(topic, int(name)): offset
        for topic, entries in offsets.items()
        for name, offset in entries.items()
    }
