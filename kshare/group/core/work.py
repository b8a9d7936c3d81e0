"""What a session is asked to commit."""

from collections.abc import Mapping
from dataclasses import dataclass

from kshare.core.progress import Progress, TopicPartition

__all__ = ["Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be committed.

    Attributes:
        processed: What is processed of each partition.
        since: The start of each: what belongs to an older one counts no more.
    """

    processed: Mapping[TopicPartition, Progress]
    since: Mapping[TopicPartition, Progress]
