"""Requests to commit what was processed since delivery of partitions has started."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.group.delivery_start import DeliveryStart

__all__ = ["CommitRequest", "LateWork", "ProcessedWork"]

ProcessedWork = Progress | Sequence[Rectangle]
"""What has been processed of a partition: the rectangles may overlap, and repeat what is known."""


@dataclass(frozen=True, slots=True)
class LateWork:
    """What was handed out of a partition from a start that has ended.

    Without key order it counts. With it, it is asked for so that the session refuses it.

    Attributes:
        partition: The partition.
        start: The start.
        processed: What of it is processed.
    """

    partition: TopicPartition
    start: DeliveryStart
    processed: Progress


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A request to a session: the processed records to commit.

    Attributes:
        processed: What is processed of each partition.
        starts: The start of each: what belongs to an older one counts no more, but for claims that
            replace each other.
        late: What was processed since its start has ended.
    """

    processed: Mapping[TopicPartition, Progress]
    starts: Mapping[TopicPartition, DeliveryStart]
    late: tuple[LateWork, ...] = ()

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that something is to be committed of."""
        return frozenset([*self.processed, *(each.partition for each in self.late)])

    def joined(self, later: "CommitRequest") -> "CommitRequest | None":
        """Both as one; None if a partition counts from other starts."""
        before, starts = self.processed, self.starts
        both = before.keys() & later.processed.keys()
        # Lists: as a generator is closed, it would swallow what a signal handler raises.
        if [tp for tp in both if starts[tp] != later.starts[tp]]:
            return None
        joined = {tp: later.processed[tp].union(before[tp]) for tp in both}  # either may be older
        return CommitRequest(
            {**before, **later.processed, **joined},
            {**starts, **later.starts},
            tuple(_joined([*self.late, *later.late])),
        )


def _joined(late: Sequence[LateWork]) -> list[LateWork]:
    """The same with one for all of a start."""
    joined = list[LateWork]()
    for each in late:
        for at, known in enumerate(joined):
            if known.start == each.start:
                joined[at] = replace(each, processed=known.processed.union(each.processed))
                break
        else:
            joined.append(each)
    return joined
