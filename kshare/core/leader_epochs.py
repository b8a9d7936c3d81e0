"""The leader epochs of a partition's records, as far as it has been read."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

__all__ = ["NO_EPOCHS", "LeaderEpochs"]

_SPANS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class LeaderEpochs:
    """The leader epochs of a partition's records, as far as it has been read.

    Attributes:
        spans: Stretches of offsets that were read, ``(start, end, leader epoch)``, ascending. Two
            neighbours that touch have different epochs. The oldest go when there are too many.
    """

    spans: tuple[tuple[int, int, int], ...] = ()

    def read(self, start: int, end: int, epochs: Sequence[tuple[int, int]]) -> "LeaderEpochs":
        """Offsets have been read; what was known of them before counts no more.

        Args:
            start: The offset that was asked for.
            end: The offset after the last one that was read.
            epochs: First offsets, ascending, each with the leader epoch of the records up to the
                next one. The first may lie before ``start``, or behind it: then there is no record
                between the two.
        """
        if not epochs or start >= end:
            return self
        firsts = [*(max(first, start) for first, _ in epochs), end]
        read = [
            (first, last, epoch)
            for (first, last), (_, epoch) in zip(pairwise(firsts), epochs, strict=True)
            if first < last
        ]
        before = [(lo, min(hi, start), epoch) for lo, hi, epoch in self.spans if lo < start]
        if before and before[-1][1] == start:
            before[-1] = (before[-1][0], firsts[0], before[-1][2])
        after = [(max(lo, end), hi, epoch) for lo, hi, epoch in self.spans if hi > end]
        return LeaderEpochs(_joined([*before, *read, *after])[-_SPANS_MAX:])

    def before(self, offset: int) -> int | None:
        """Leader epoch of the last record before an offset; None if it is not known.

        It is what Kafka's consumers commit beside the offset.
        """
        for start, end, epoch in reversed(self.spans):
            if start < offset:
                return epoch if offset <= end and epoch >= 0 else None
        return None


NO_EPOCHS: Final = LeaderEpochs()


def _joined(spans: list[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    joined: list[tuple[int, int, int]] = []
    for start, end, epoch in spans:
        if joined and joined[-1][1:] == (start, epoch):
            joined[-1] = joined[-1][0], end, epoch
        else:
            joined.append((start, end, epoch))
    return tuple(joined)
