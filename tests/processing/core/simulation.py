"""A scheduler in simulated time: handlers, dead letters and parked keys are scripts."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

from kshare.core.progress import TopicPartition
from kshare.dead_letters.record import Outcome, Record, Status
from kshare.processing.core.effects import (
    Abandon,
    Cancel,
    Forget,
    GiveBack,
    Halt,
    ParkKey,
    Remember,
    TakeAgain,
    WriteLetter,
)
from kshare.processing.core.lane import Call, Lane
from kshare.processing.core.scheduler import Scheduler
from kshare.processing.core.settings import Settings

PARTITION = TopicPartition("orders", 0)


class Rows:
    topic_partition = PARTITION

    def column(self, name: str) -> list[Any]:
        raise AssertionError(name)


def record_of(offset: int, key: int, *, size: int = 1, due: float = 0.0) -> Record:
    data = str(key).encode()
    record = Record(Rows(), offset, offset, data, b"", data)
    record.size, record.due = size, due
    return record


@dataclass(frozen=True)
class Attempt:
    """What a handler does with a record: it takes so long, and may fail."""

    seconds: float
    fails: bool = False
    is_final: bool = False
    after: float | None = None


@dataclass
class Simulation:
    """Runs a scheduler over records.

    Attributes:
        started: Each start of a record: time, record and attempt.
        peak: The most records, bytes and calls that were held or ran at a time.
        todo: Records that are still to be added.
        live: Lanes that have a call that has not ended, nor been given up.
        back: Records that were given back and do not come yet, by lane.
    """

    settings: Settings
    attempt: Callable[[Record], Attempt]
    writes: Callable[[Record, int], bool] = lambda record, tries: True
    now: float = 0.0
    scheduler: Scheduler = field(init=False)
    outcomes: list[Outcome] = field(default_factory=list)
    started: list[tuple[float, Record, int]] = field(default_factory=list)
    letters: list[Record] = field(default_factory=list)
    remembered: dict[int, int] = field(default_factory=dict)
    halted: BaseException | None = None
    peak: tuple[int, int, int] = (0, 0, 0)
    ran: dict[Any, int] = field(default_factory=dict)
    todo: list[Record] = field(default_factory=list)
    back: dict[Any, list[Record]] = field(default_factory=dict)
    live: set[Any] = field(default_factory=set)
    _taken: list[Record] = field(default_factory=list)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.settings)

    def run(self, records: Sequence[Record], until: float = 1e9) -> None:
        self._offer(records)
        while self.now <= until:
            while taken := self.scheduler.add(self.todo, self.now):  # parked ones take no room
                self._taken += self.todo[:taken]
                self.todo = self.todo[taken:]
                self._act()
            while call := self.scheduler.next_call(self.now):
                self._begin(call)
            self._note()
            given_back = set(self.back)
            self._act()
            if given_back - self.back.keys():  # they come again
                continue
            tick = self.scheduler.next_tick()
            times = [
                t for t in (tick, self._events[0][0] if self._events else None) if t is not None
            ]
            if not times:
                break
            if min(times) > until:
                self.now = until
                break
            self.now = max(self.now, min(times))
            while self._events and self._events[0][0] <= self.now:
                heappop(self._events)[2]()
            self.scheduler.tick(self.now)

    def _offer(self, records: Iterable[Record]) -> None:
        """Records come, but those of lanes that were given back."""
        for record in records:
            self.back.get(record.lane, self.todo).append(record)
        self.todo.sort(key=lambda record: record.offset)

    def _give_back(self, first: Record, *others: Record) -> None:
        # Twice only from an earlier record on, or as the key is parked besides.
        is_parked = first.lane in self.scheduler.parked_lanes
        back = [record.offset for record in self.back.get(first.lane, [])]
        assert is_parked or all(first.offset < offset for offset in back)
        lane = [r for r in (*self._taken, *self.todo) if r.lane == first.lane]
        again = [r for r in lane if r.offset >= first.offset] + self.back.get(first.lane, [])
        self.back[first.lane] = again
        self.todo = [r for r in self.todo if r not in again]
        self._taken = [r for r in self._taken if r not in again]
        if others:
            self._give_back(*others)

    def _take_again(self, first: Record) -> None:
        again = self.back.pop(first.lane)
        self._taken = [each for each in self._taken if each.lane != first.lane]
        assert first.offset in [record.offset for record in again]
        self._offer(again)

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        heappush(self._events, (self.now + seconds, next(self._numbers), act))

    def _begin(self, call: Call) -> None:
        attempts = [self.attempt(record) for record in call.records]
        for record in call.records:
            assert record.due <= self.now
            assert record.lane not in self.live  # unless it was given up
            self.ran[record.lane] = self.ran.get(record.lane, 0)
            self.started.append((self.now, record, record.attempt))
        worst = next((each for each in attempts if each.fails), None)
        seconds = max(each.seconds for each in attempts)

        lanes = {record.lane for record in call.records}
        self.live |= lanes

        def end() -> None:
            if not call.is_over:
                self.live -= lanes
            if worst is None:
                self.scheduler.done(call, self.now)
            else:
                error = ValueError("no")
                self.scheduler.failed(
                    call, error, self.now, is_final=worst.is_final, after=worst.after
                )

        self.at(seconds, end)

    def _note(self) -> None:
        figures = self.scheduler.figures()
        seen = figures.records, figures.size, figures.calls
        self.peak = tuple(map(max, self.peak, seen))  # type: ignore[assignment]

    def _act(self) -> None:
        self.outcomes += self.scheduler.outcomes
        self.scheduler.outcomes.clear()
        effects, self.scheduler.effects = self.scheduler.effects, []
        for effect in effects:
            match effect:
                case Cancel(call) | Abandon(call):
                    assert call.is_cancelled
                    assert call.is_over or isinstance(effect, Cancel)
                    self.live -= {record.lane for record in call.records if call.is_over}
                case Remember(record):
                    self.remembered[record.offset] = record.failures
                case Forget(record):
                    self.remembered.pop(record.offset, None)
                case WriteLetter(lane, record, _, _):

                    def answer(lane: Any = lane, record: Record = record) -> None:
                        if self.writes(record, lane.trouble.failed_endings):
                            self.letters.append(record)
                            self.scheduler.letter_written(lane, self.now)
                        else:
                            self.scheduler.ending_failed(lane, self.now)

                    self.at(0.5, answer)
                case ParkKey(lane):
                    self.at(0.5, partial(self._park, lane))
                case GiveBack(firsts):
                    self._give_back(*firsts)
                case TakeAgain(record):
                    self._take_again(record)
                case Halt(_, error):
                    self.halted = error

    def _park(self, lane: Lane) -> None:
        self.scheduler.parked(lane)

    def of_key(self, key: int, *statuses: Status) -> list[int]:
        data = str(key).encode()
        return [
            each.record.offset
            for each in self.outcomes
            if each.record.lane == data and (not statuses or each.status in statuses)
        ]
