"""When leases are over of members that live and commit nothing more of them."""

from collections.abc import Mapping

from kshare.core.offsets import Bounds
from kshare.core.progress import TopicPartition

__all__ = ["LeaseClock"]


class LeaseClock:
    """Since when nothing more of each lease was committed: it is given up, though its member lives.

    The last lease is one ahead, which waits for its turn: it does not count, unless it is the only
    one. A look costs what the leases of its partition do: there is one at each step.

    Args:
        timeout: Seconds after which a lease is over.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: dict[TopicPartition, dict[tuple[str, int], tuple[Bounds, float]]] = {}

    def is_over(
        self, partition: TopicPartition, author: str, leased: Mapping[int, Bounds], now: float
    ) -> bool:
        """Return True if some lease of a partition has had its time.

        Args:
            partition: The partition.
            author: Name of the claim that has the leases.
            leased: What each lease has and is not processed, by their numbers, ascending.
            now: The time.
        """
        known, kept = self._since.pop(partition, {}), {}
        for number in list(leased)[: max(len(leased) - 1, 1)]:
            key, bounds = (author, number), leased[number]
            before, since = known.get(key, (bounds, now))
            kept[key] = bounds, since if before == bounds else now
        if kept:
            self._since[partition] = kept
        return any(now - since >= self._timeout for _, since in kept.values())

    def forget(self, partition: TopicPartition) -> None:
        """A partition is leased no more, or by another claim."""
        self._since.pop(partition, None)

    def next_time(self) -> float:
        """When the next lease is over, if nothing happens; infinity if never."""
        times = (since for kept in self._since.values() for _, since in kept.values())
        return min(times, default=float("inf")) + self._timeout
