"""Warnings of what stands still: starts that take long, and key hashes that nobody claims."""

from collections.abc import Collection
from typing import Final

from kshare.core.hashing import HashRange
from kshare.core.progress import TopicPartition
from kshare.group.core.ownerships import Ownerships
from kshare.group.protocol.owner import Phase
from kshare.group.protocol.takeover import session_of

__all__ = ["Watchdog"]

_PATIENCE_SECONDS: Final = 10.0
_SAID: Final = float("inf")


class Watchdog:
    """Says once what has stood still for 10 seconds.

    Args:
        group: Id of the group.
        ownerships: What the session owns; it gets the warnings.
    """

    def __init__(self, group: str, ownerships: Ownerships) -> None:
        self._group = group
        self._ownerships = ownerships
        self._starting: dict[TopicPartition, float] = {}
        self._unclaimed: dict[TopicPartition, tuple[float, tuple[HashRange, ...]]] = {}

    def warn_of_starts(self, now: float, trouble: str) -> None:
        """Warn of partitions whose delivery has not begun for a while.

        Args:
            now: The time.
            trouble: What went wrong last; empty if nothing did.
        """
        starting = {
            partition: each
            for partition, each in self._ownerships.by_partition.items()
            if each.start is None and each.owner.phase not in {Phase.RUNNING, Phase.FENCED}
        }
        self._starting = {tp: self._starting.get(tp, now) for tp in starting}
        for partition, since in self._starting.items():
            if now - since < _PATIENCE_SECONDS:
                continue
            self._starting[partition] = _SAID
            why = starting[partition].owner.phase.value + (f" ({trouble})" if trouble else "")
            self._ownerships.warnings.append(
                f"group {self._group}, {partition}: no record is delivered yet, {now - since:g} s "
                f"after it was assigned: {why}"
            )

    def warn_of_unclaimed(self, now: float, living: Collection[str]) -> None:
        """Warn of key hashes that no living member has claimed for a while.

        Args:
            now: The time.
            living: Ids of members that have given a sign of life lately.
        """
        for partition, each in self._ownerships.by_partition.items():
            if each.start is None:
                self._unclaimed.pop(partition, None)
                continue
            free = self._ownerships.log.of(partition).unclaimed_by(
                lambda member: session_of(member) in living
            )
            since, seen = self._unclaimed.get(partition, (now, ()))
            if free != seen:
                self._unclaimed[partition] = (now, free)
            elif free and now - since >= _PATIENCE_SECONDS:
                self._unclaimed[partition] = (_SAID, free)
                self._ownerships.warnings.append(
                    f"group {self._group}, {partition}: no living member has claimed key hashes "
                    f"{', '.join(map(str, free))}: their records wait, and the stable offset does "
                    "not pass them"
                )
