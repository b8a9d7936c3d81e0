"""Speeds of ranges, from one look to the next.

The offsets of a range's hashes that are pending now are compared with those of the same hashes a
while ago, up to the same offset. So it does not matter that ranges are cut anew, nor that records
arrive meanwhile.

Cost: linear in the gaps for each range; the progress of at most ``_LOOKS_MAX`` looks is kept.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from kshare.cli.live.snapshot import RangeLine, Snapshot
from kshare.core.progress import Progress, TopicPartition
from kshare.monitor.report import lag

__all__ = ["WINDOW_SECONDS", "SpeedMeter"]

WINDOW_SECONDS: Final = 60.0
"""Speeds are means over so long: a query's progress moves by whole batches."""

_LOOKS_MAX: Final = 32

_Done: TypeAlias = Mapping[tuple[int, TopicPartition], Progress]


class SpeedMeter:
    """Adds speeds to snapshots, which it is given in order."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, _Done]] = deque()

    def measured(self, snapshot: Snapshot, seconds: float) -> Snapshot:
        """The snapshot with the speeds of its ranges.

        A range whose partition went back, as after a reset, is measured anew.

        Args:
            snapshot: The newest look.
            seconds: When it was taken, by a clock that never goes back.
        """
        done = {(each.source, each.topic_partition): each.done for each in snapshot.partitions}
        self._forget(seconds, done)
        ranges = [replace(each, speed=self._speed(each, done, seconds)) for each in snapshot.ranges]
        # With short intervals, not every look is kept.
        if not self._seen or seconds - self._seen[-1][0] >= WINDOW_SECONDS / _LOOKS_MAX:
            self._seen.append((seconds, done))
        return replace(snapshot, ranges=tuple(ranges))

    def _forget(self, seconds: float, done: _Done) -> None:
        """Drop what is too old, but one look; and all from before a partition went back."""
        while len(self._seen) > 1 and self._seen[1][0] <= seconds - WINDOW_SECONDS:
            self._seen.popleft()
        if self._seen and _went_back(self._seen[-1][1], done):
            self._seen.clear()

    def _speed(self, range_: RangeLine, done: _Done, seconds: float) -> float | None:
        where = (range_.source, range_.partition)
        now = done.get(where)
        before = next(((at, seen[where]) for at, seen in self._seen if where in seen), None)
        if now is None or before is None or seconds <= before[0]:
            return None
        at, then = before
        end = max(now.front, then.front)
        processed = lag(then, end, range_.hashes) - lag(now, end, range_.hashes)
        return max(processed, 0) / (seconds - at)


def _went_back(before: _Done, now: _Done) -> bool:
    common: Iterable[tuple[int, TopicPartition]] = before.keys() & now.keys()
    return any(now[each].stable < before[each].stable for each in common)
