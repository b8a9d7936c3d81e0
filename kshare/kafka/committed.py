"""Committed offsets, and what becomes of a commit."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError

__all__ = ["CommittedOffset", "CommittedOffsets", "Outcome"]


class CommittedOffset(NamedTuple):
    """A committed offset, as the coordinator stores it.

    Attributes:
        offset: The offset.
        metadata: What the committer says of it.
        leader_epoch: Leader epoch of the record before it; None if it is not known.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


CommittedOffsets: TypeAlias = Mapping[TopicPartition, CommittedOffset]

Outcome: TypeAlias = dict[TopicPartition, KafkaError | None]
"""The error of each partition; None if its offset is stored. What was not asked for is left out."""
