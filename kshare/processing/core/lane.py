"""Lanes, whose records are processed one after another, and calls: a scheduler holds them."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count, islice
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from kshare.dead_letters.record import Record

__all__ = [
    "NONE_REVOKED",
    "NO_TROUBLE",
    "Call",
    "Figures",
    "HeldLanes",
    "Lane",
    "Phase",
    "State",
    "Trouble",
]


class State(IntEnum):
    """What the first record of a lane waits for."""

    READY = 0  # a free slot
    RUNNING = 1  # its handler
    WAITING = 2  # its time
    ENDING = 3  # its dead letter, or the list of parked keys


class Trouble(NamedTuple):
    """Failures of the first records of a lane.

    Attributes:
        error: Why the first one failed the last time; None if it did not.
        is_exhausted: Whether all attempts of the first one have failed.
        failed_endings: How often its dead letter could not be written, or its key not be parked.
        singly: How many of the next records go one by one, as a batch with them has failed.
    """

    error: BaseException | None = None
    is_exhausted: bool = False
    failed_endings: int = 0
    singly: int = 0


NO_TROUBLE: Final = Trouble()
NONE_REVOKED: Final[Mapping[Record, bool]] = MappingProxyType({})
"""Of a lane of which others got nothing."""


class Lane:
    """Records that are processed one after another, in offset order.

    Attributes:
        key: What they share.
        records: Those that have no outcome yet; the first ones are under way.
        state: What the first one waits for.
        running: How many of them a handler has now.
        due: While it waits: until when.
        trouble: What went wrong with the first ones.
        size: Size of its records in bytes.
        given_back: The first of its records that was given back; None if none was. No later ones
            come before it comes again.
        revoked: Those that are under way, and that others got meanwhile; True if failed attempts
            are kept for these. One that comes back to this process comes as another record.
    """

    __slots__ = (
        "due",
        "given_back",
        "key",
        "records",
        "revoked",
        "running",
        "size",
        "state",
        "trouble",
    )

    def __init__(self, key: Hashable, record: Record) -> None:
        self.key = key
        self.records = deque((record,))
        self.state = State.READY
        self.running = 0
        self.due = 0.0
        self.trouble = NO_TROUBLE
        self.size = record.size
        self.given_back: Record | None = None
        self.revoked = NONE_REVOKED


class Call:
    """Records that a handler is given at once: of one lane, or some of each of several.

    Attributes:
        lanes: The lanes, each once.
        records: The records, lane after lane; each lane's :attr:`Lane.running` says how many.
        started: When it began.
        is_over: Whether its answer counts no more.
        is_cancelled: Whether it took too long: whatever it answers, it has failed.
        handle: The driver's: what cancels it.
    """

    __slots__ = ("handle", "is_cancelled", "is_over", "lanes", "records", "started")

    def __init__(self, lanes: list[Lane], records: list[Record], started: float) -> None:
        self.lanes = lanes
        self.records = records
        self.started = started
        self.is_over = False
        self.is_cancelled = False
        self.handle: Any = None


class Phase(IntEnum):
    """Which records are still handled."""

    OPEN = 0  # all
    DRAINING = 1  # those that need not wait for another attempt
    CLOSING = 2  # those that a handler has now


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts of the records, lanes and calls that a scheduler holds.

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
class HeldLanes:
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

    def set_ready(self, lane: Lane) -> None:
        """A lane may begin."""
        lane.state = State.READY
        self.ready.append(lane)

    def batch(self, records_max: int, now: float, *, mixes_lanes: bool) -> Call:
        """Begin with records of the lanes that are ready, as many as go into one call.

        Args:
            records_max: Maximum number of records.
            now: The time: what is due later is not taken, unless it is the first of a lane.
            mixes_lanes: Whether they may be of several lanes.
        """
        ready, call = self.ready, Call([], [], now)
        while ready and len(call.records) < records_max:
            lane = ready[0]
            singly = lane.trouble.singly
            if singly and call.lanes:
                break
            ready.popleft()
            size = 1 if singly else records_max - len(call.records)
            records: list[Record] = []
            for record in islice(lane.records, size):
                if record.due > now and records:
                    break
                records.append(record)
            lane.state, lane.running = State.RUNNING, len(records)
            call.lanes.append(lane)
            call.records += records
            if singly or not mixes_lanes:
                break
        return call

    def wait(self, lane: Lane, due: float) -> None:
        """A lane waits for a time."""
        lane.state, lane.due = State.WAITING, due
        heappush(self.waiting, (due, next(self._numbers), lane))

    def next_due(self) -> float | None:
        """The time of the lane that waits for the earliest one; None if none waits."""
        heap = self.waiting
        while heap and (heap[0][2].state is not State.WAITING or heap[0][0] != heap[0][2].due):
            heappop(heap)
        return heap[0][0] if heap else None

    def take_due(self, now: float) -> Lane | None:
        """Take a lane whose time has come; None if there is none."""
        due = self.next_due()
        return None if due is None or due > now else heappop(self.waiting)[2]

    def delayed_beyond(self, records_max: int, size_max: int) -> Iterator[Lane]:
        """Lanes that wait for their time and have not failed, the latest first.

        None until all lanes that wait hold more than the bounds; then enough for the others to hold
        half of that, as it costs less to give back many at once. Linear in the lanes that wait.

        Args:
            records_max: Number of records.
            size_max: Their size in bytes.
        """
        lanes = {
            lane.key: lane
            for due, _, lane in self.waiting
            if lane.state is State.WAITING and lane.due == due
        }
        records = sum([len(lane.records) for lane in lanes.values()])
        size = sum([lane.size for lane in lanes.values()])
        if records <= records_max and size <= size_max:
            return
        for lane in sorted(lanes.values(), key=lambda each: each.due, reverse=True):
            if records <= records_max // 2 and size <= size_max // 2:
                return
            if lane.records[0].since is None and lane.trouble is NO_TROUBLE and not lane.revoked:
                records, size = records - len(lane.records), size - lane.size
                yield lane

    def trim(self, lane: Lane, records_max: int, size_max: int) -> Record | None:
        """Hold no more of a lane than that, but its first record; the first that was let go."""
        first = None
        while len(lane.records) > records_max or (lane.size > size_max and len(lane.records) > 1):
            first = lane.records.pop()
            lane.size -= first.size
            self.less((first,))
        return first

    def is_running(self, is_of: Callable[[Record], bool]) -> bool:
        """True if a handler has some record, or its dead letter is under way."""
        return any(
            lane.state in {State.RUNNING, State.ENDING} and is_of(record)
            for lane in self.lanes.values()
            for record in islice(lane.records, max(lane.running, 1))
        )

    def revoke(self, is_gone: Callable[[Record], bool], *, in_order: bool) -> None:
        """Hold no more of some records than what is under way.

        Args:
            is_gone: Whether others get a record.
            in_order: Whether they get it once what is under way has ended.
        """
        for lane in list(self.lanes.values()):
            self._revoke(lane, is_gone, in_order=in_order)

    def _revoke(self, lane: Lane, is_gone: Callable[[Record], bool], *, in_order: bool) -> None:
        under_way = set(islice(lane.records, 1 if lane.state is State.ENDING else lane.running))
        gone = set(filter(is_gone, lane.records))
        if not gone:
            return
        first, lane.given_back = lane.records[0], None
        lane.revoked = {**lane.revoked, **dict.fromkeys(gone & under_way, in_order)}
        self.drop(lane, gone - under_way)
        if not lane.records:
            self.remove(lane)
        elif lane.records[0] is not first and (lane.state is State.WAITING or lane.records[0].due):
            if lane.state is State.READY:
                self.ready.remove(lane)
            self.wait(lane, lane.records[0].due)

    def drop(self, lane: Lane, records: AbstractSet[Record]) -> None:
        """Hold some records of a lane no more."""
        first = lane.records[0]
        lane.records = deque(record for record in lane.records if record not in records)
        lane.size -= sum(record.size for record in records)
        self.less(records)
        if not lane.records or lane.records[0] is not first:
            lane.trouble = NO_TROUBLE

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
