"""What a scheduler holds: records by number and size, lanes by what they wait for."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count

from kshare.processing.core.lane import Lane, State
from kshare.processing.core.record import Record

__all__ = ["Figures", "Held", "Phase", "Queues"]


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
class Held:
    """How many records are held, and their size in bytes."""

    records: int = 0
    size: int = 0

    def less(self, records: Iterable[Record]) -> None:
        """Some are held no more."""
        for record in records:
            self.records -= 1
            self.size -= record.size


@dataclass(slots=True)
class Queues:
    """Lanes by what they wait for. A heap's entry whose time is not its lane's is outdated."""

    ready: deque[Lane] = field(default_factory=deque)
    waiting: list[tuple[float, int, Lane]] = field(default_factory=list)
    numbers: "count[int]" = field(default_factory=count)

    def wait(self, lane: Lane, due: float) -> None:
        """A lane waits for a time."""
        lane.state, lane.due = State.WAITING, due
        heappush(self.waiting, (due, next(self.numbers), lane))

    def drop_outdated(self) -> None:
        """Have a lane that waits first in the heap."""
        heap = self.waiting
        while heap and (heap[0][2].state is not State.WAITING or heap[0][0] != heap[0][2].due):
            heappop(heap)
