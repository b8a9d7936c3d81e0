"""Records that are given back to make room: of lanes that wait, or that are parked.

::

    limited  a lane waits and holds much ---it has no other records left---> the rest comes again
    parked   its key, as a record has failed, or by an operator
                                             ---unparked by an operator----> all of it does
    put off  as its first record is not to be handled before a time, and others need the room
             ---its time--->                                                 all of it does

What comes of a lane meanwhile was on its way. Lanes that others get are forgotten: they are read
anew if they come back.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, islice
from typing import Final

from kshare.dead_letters.record import Record
from kshare.processing.core.effects import GiveBack, TakeAgain
from kshare.processing.core.lane import HeldLanes, Lane, State
from kshare.processing.core.settings import Settings

__all__ = ["AbsentLanes"]

_WAITING_PART: Final = 8
_PUT_OFF_FACTOR: Final = 10
"""Lanes that are put off, at most, for each record that may be held: each takes memory still."""


@dataclass(slots=True)
class AbsentLanes:
    """Gives records back, and the lanes of which nothing is held.

    Attributes:
        settings: How to schedule.
        held: What is held.
        parked: Lanes that are parked, and the first record of each.
        put_off: Lanes that wait for a time: that, and the first record of each.
        parking: Lanes of which an operator has parked the key, and of which something is under way.
    """

    settings: Settings
    held: HeldLanes
    parked: dict[Hashable, Record] = field(default_factory=dict)
    put_off: dict[Hashable, tuple[float, Record]] = field(default_factory=dict)
    parking: set[Hashable] = field(default_factory=set)
    _times: list[tuple[float, int, Hashable]] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)

    def limit(self, lane: Lane) -> list[GiveBack]:
        """A lane that waits holds an eighth of all at most: others have the room."""
        settings = self.settings
        if not settings.gives_back or lane.state < State.WAITING or lane.revoked:
            return []
        records_max = max(settings.records_max // _WAITING_PART, 1)
        first = self.held.trim(lane, records_max, settings.bytes_max // _WAITING_PART)
        if first is None:
            return []
        lane.given_back = first.without_rows()
        return [GiveBack((first,))]

    def make_room(self) -> list[GiveBack]:
        """Lanes that wait hold a half of all at most, as far as they wait for their time alone."""
        settings = self.settings
        if not settings.gives_back or not self.held.waiting:
            return []
        most = settings.records_max * _PUT_OFF_FACTOR - len(self.put_off)
        beyond = self.held.delayed_beyond(settings.records_max // 2, settings.bytes_max // 2)
        firsts = []
        for lane in islice(beyond, max(most, 0)):
            first = lane.records[0]
            self.put_off[lane.key] = lane.due, first.without_rows()
            heappush(self._times, (lane.due, next(self._numbers), lane.key))
            self.held.remove(lane)
            firsts.append(first)
        return [GiveBack(tuple(firsts))] if firsts else []

    def park(self, lane: Lane) -> list[GiveBack]:
        """A lane is parked; it is held no more after this."""
        first = next((each for each in lane.records if each not in lane.revoked), None)
        if first is None:
            return []
        self.parked[lane.key] = first.without_rows()
        return [GiveBack((first,))] if self.settings.gives_back else []

    def begin_parking(self, keys: Iterable[Hashable]) -> list[Lane]:
        """Operators have parked these keys, and no others.

        Returns:
            The lanes to park now; :attr:`parking` has those to park when a call has ended.
        """
        lanes = [lane for key in keys if (lane := self.held.lanes.get(key)) is not None]
        if not self.settings.gives_back:  # what is left over would not come again
            lanes = []
        under_way = {State.RUNNING, State.ENDING}
        self.parking = {lane.key for lane in lanes if lane.state in under_way}
        return [lane for lane in lanes if lane.state not in under_way]

    def unpark(self, key: Hashable) -> list[TakeAgain]:
        """A lane is parked no more."""
        first = self.parked.pop(key, None)
        return [] if first is None else [TakeAgain(first)]

    def next_due(self) -> float | None:
        """The earliest time for which a lane is put off; None if none is."""
        times = self._times
        while times and self._is_outdated(*times[0]):
            heappop(times)
        return times[0][0] if times else None

    def _is_outdated(self, due: float, _: int, key: Hashable) -> bool:
        return key not in self.put_off or self.put_off[key][0] != due

    def take_due(self, now: float) -> list[TakeAgain]:
        """Take the lanes whose time has come."""
        taken = []
        while (due := self.next_due()) is not None and due <= now:
            taken.append(TakeAgain(self.put_off.pop(heappop(self._times)[2])[1]))
        return taken

    def revoke(self, is_gone: Callable[[Record], bool]) -> None:
        """Others get some records: lanes that begin with one are forgotten."""
        self.parked = {key: first for key, first in self.parked.items() if not is_gone(first)}
        self.put_off = {key: each for key, each in self.put_off.items() if not is_gone(each[1])}
