"""When leases are over of members that live and commit nothing more of them."""

from collections.abc import Mapping

from kshare.core.offsets import Bounds
from kshare.core.progress import TopicPartition

__all__ = ["LeaseClock"]


class LeaseClock:
    """Since when nothing more of each lease was committed: it is given up, though its member lives.

    The last lease is one ahead, which waits for its turn: it does not count, unless it is the only
    one.

    Args:
        timeout: Seconds after which a lease is over.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: dict[tuple[TopicPartition, str, int], tuple[Bounds, float]] = {}

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
        known = {key: each for key, each in self._since.items() if key[0] == partition}
        for key in known:
            del self._since[key]
        for number in list(leased)[: max(len(leased) - 1, 1)]:
            key, bounds = (partition, author, number), leased[number]
            before, since = known.get(key, (bounds, now))
            self._since[key] = bounds, since if before == bounds else now
        return any(
            now - since >= self._timeout
            for key, (_, since) in self._since.items()
            if key[0] == partition
        )

    def forget(self, partition: TopicPartition) -> None:
        """A partition is leased no more, or by another claim."""
        self._since = {key: each for key, each in self._since.items() if key[0] != partition}

    def next_time(self) -> float:
        """When the next lease is over, if nothing happens; infinity if never."""
        return min((since for _, since in self._since.values()), default=float("inf")) + (
            self._timeout
        )
