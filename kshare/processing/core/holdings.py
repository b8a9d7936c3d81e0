"""What a scheduler holds: records by number and size, lanes by what they wait for."""

from collections import deque
from collections.abc import Hashable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count

from kshare.processing.core.lane import Lane, State
from kshare.processing.core.record import Record

__all__ = ["Figures", "Holdings", "Phase"]


class Phase(IntEnum):
    """Which records are still handled."""

    OPEN = 0  # all
    DRAINING = 1  # those that need not wait for another attempt
    CLOSING = 2  # those that a handler has now


@dataclass(frozen=True, slots=True)
class Figures:
    """What a scheduler holds.

    Attributes:
        records: Number of records that have no outcome.
        size: Their size in bytes.
        lanes: Number of lanes.
        calls: Number of handler calls that are under way.
        waiting: Number of lanes whose first record waits for its time.
        ending: Number of lanes whose first record waits for its dead letter, or to be parked.
        oldest: When the record that has failed first of those that wait did so, in seconds since
            1970; None if none has failed.
    """

    records: int
    size: int
    lanes: int
    calls: int
    waiting: int
    ending: int
    oldest: float | None


@dataclass(slots=True)
class Holdings:
    """The records that a scheduler holds, and their lanes by what they wait for.

    Attributes:
        lanes: The lanes by what their records share.
        records: Number of records.
        size: Their size in bytes.
        ready: Lanes that may begin, in order.
        waiting: Heap of lanes that wait for a time; an entry with another time than its lane is
            outdated.
    """

    lanes: dict[Hashable, Lane] = field(default_factory=dict)
    records: int = 0
    size: int = 0
    ready: deque[Lane] = field(default_factory=deque)
    waiting: list[tuple[float, int, Lane]] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)

    def figures(self, calls: int) -> Figures:
        """Figures of what is held now, from any thread. Linear in the lanes.

        Args:
            calls: Number of handler calls that are under way.
        """
        lanes = list(self.lanes.values())
        since = [first.since for first in self.firsts() if first.since is not None]
        return Figures(
            self.records,
            self.size,
            len(lanes),
            calls,
            sum(lane.state is State.WAITING for lane in lanes),
            sum(lane.state is State.ENDING for lane in lanes),
            min(since, default=None),
        )

    def firsts(self) -> list[Record]:
        """The first record of each lane, from any thread."""
        firsts = map(_first, list(self.lanes.values()))
        return [first for first in firsts if first is not None]

    def less(self, records: Iterable[Record]) -> None:
        """Some records are held no more."""
        for record in records:
            self.records -= 1
            self.size -= record.size

    def wait(self, lane: Lane, due: float) -> None:
        """A lane waits for a time."""
        lane.state, lane.due = State.WAITING, due
        heappush(self.waiting, (due, next(self._numbers), lane))

    def drop_outdated(self) -> None:
        """Have a lane that waits first in the heap."""
        heap = self.waiting
        while heap and (heap[0][2].state is not State.WAITING or heap[0][0] != heap[0][2].due):
            heappop(heap)

    def drop(self, lane: Lane, records: AbstractSet[Record]) -> None:
        """Hold some records of a lane no more."""
        first = lane.records[0]
        lane.records = deque(record for record in lane.records if record not in records)
        lane.size -= sum(record.size for record in records)
        self.less(records)
        if not lane.records or lane.records[0] is not first:
            lane.error, lane.is_exhausted, lane.undelivered, lane.singly = None, False, 0, 0

    def remove(self, lane: Lane) -> None:
        """Hold a lane no more, nor its records."""
        self.less(lane.records)
        lane.records.clear()
        if lane.state is State.READY:
            self.ready.remove(lane)
        lane.state = State.RUNNING  # no answer and no tick finds it any more
        self.lanes.pop(lane.key, None)


def _first(lane: Lane) -> Record | None:
    try:
        return lane.records[0]
    except IndexError:  # another thread asks, or it is about to go
        return None
