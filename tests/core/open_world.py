"""The small world of open batches: a log, the log of ends, Spark's logs, drivers, tasks, sinks.

A world is a value that can be copied: the explorer takes every step that is possible, in every
order. Anything may die between two steps, an append may arrive late or never, and whoever has died
to others may go on: a task whose driver is gone, a driver whose successor runs.

Its laws: batches tile the log. A task ends with the rows that count. Each key's records reach a
sink in order; one that is idempotent by batch id gets each record once, and the same rows if a
batch is written again. Nothing waits for an end that nobody will write: see :func:`finish`.
Where a sink takes a few rows of a task and no more ("abandon"), what it has left comes again, or
counts as read; the other laws hold.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self

from kshare.core.hashing import ALL_HASHES, NO_HASHES, WHOLE, KeyRanges, split
from kshare.core.open_batch import (
    RangeReader,
    Step,
    done_slices,
    missing,
    no_ends,
    open_ranges,
    reached,
    seals,
)
from kshare.core.open_entry import LogPosition, OpenBatch, OpenRange
from kshare.core.progress import Progress, Slice, TopicPartition
from kshare.core.range_end import EndKey, RangeEnd, RangeEnds, RangeId
from tests.core.older_spark import BEGIN, Call, calls_of_log, calls_of_restart, planned_after
from tests.group.protocol.world import LawBrokenError
from tests.group.protocol.world import Step as Happens

T0 = TopicPartition("t", 0)
HALVES = tuple(KeyRanges([half]) for half in split(WHOLE, 2))
_FLYING = 2  # appends at a time
CUTS = (HALVES, (ALL_HASHES,), HALVES)
"""How batches are cut, in turn: what ends at different offsets is read together later."""

Row = tuple[int, EndKey, RangeEnd | None]
"""A record of the log of ends: its offset, key and value."""


@dataclass(frozen=True)
class WorldLimits:
    """How much may happen."""

    drivers: int = 2
    attempts: int = 2
    deaths: int = 2
    parks: int = 0
    abandons: int = 0
    compactions: int = 1
    lost: int = 1
    early: int = 0


@dataclass(frozen=True)
class Planned:
    """A batch as its dict has it."""

    batch: OpenBatch
    begin: Progress

    @property
    def ranges(self) -> list[OpenRange]:
        return open_ranges(self.batch, {T0: self.begin})


@dataclass(frozen=True)
class Driver:
    """Spark's driver with its planner.

    Attributes:
        phase: What it does next: restart, look, plan, log, run, sink or commit.
        number: Of the batch that it plans or runs.
        ends: Of the batch before that, as far as it knows.
        planned: Its plan, before Spark has logged it.
        rows: By range: the rows of the first attempt that has succeeded.
        sealed: How often it has proposed ends.
        calls: What an older Spark has called of the source.
    """

    phase: str = "restart"
    number: int = 0
    ends: RangeEnds | None = None
    planned: Planned | None = None
    rows: tuple[tuple[RangeId, tuple[int, ...]], ...] = ()
    sealed: int = 0
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """A task that reads one range."""

    driver: str
    batch: int
    reader: RangeReader
    rows: tuple[int, ...] = ()
    parks: int = 0


@dataclass
class OpenWorld:
    """All there is.

    Attributes:
        keys: The hash of each record of the log.
        drivers: Those that live, also those that others take for dead.
        tasks: The attempts that live.
        offsets: Spark's offset log, by batch.
        commits: Spark's commit log: how many batches.
        log: The log of ends, with holes where it was compacted.
        log_end: Its end.
        flying: Appends that may yet arrive.
        counts: What counts, whatever the log has forgotten: the first proposals.
        begun_to_delete: Batches whose ends are deleted, or begin to be.
        once: What a sink has that is idempotent by batch id: the rows of each batch.
        least: What a sink has seen that takes all rows as they come.
    """

    keys: tuple[int, ...]
    drivers: dict[str, Driver] = field(default_factory=dict)
    tasks: dict[str, Attempt] = field(default_factory=dict)
    offsets: tuple[Planned, ...] = ()
    commits: int = 0
    log: tuple[Row, ...] = ()
    log_end: int = 0
    flying: tuple[tuple[EndKey, RangeEnd], ...] = ()
    counts: dict[RangeId, RangeEnd] = field(default_factory=dict)
    begun_to_delete: frozenset[str] = frozenset()
    once: tuple[tuple[int, ...], ...] = ()
    least: frozenset[int] = frozenset()
    launched: int = 0
    started: int = 0
    deaths: int = 0
    compactions: int = 0
    lost: int = 0
    abandoned: int = 0
    early: int = 0

    def clone(self) -> Self:
        return replace(
            self,
            drivers=dict(self.drivers),
            tasks=dict(self.tasks),
            counts=dict(self.counts),
        )

    def fingerprint(self) -> object:
        return tuple(map(repr, vars(self).values()))

    def logged(self, count: int) -> list[str]:
        """The names of the first batches."""
        return [each.batch.name for each in self.offsets[:count]]

    # -- the log of ends -------------------------------------------------------------------

    def append(self, key: EndKey, end: RangeEnd | None) -> None:
        self.log = (*self.log, (self.log_end, key, end))
        self.log_end += 1
        if end is not None and key.range not in self.counts:
            self.counts[key.range] = end

    def ends_of(self, planned: Planned) -> RangeEnds:
        first = planned.batch.log.offset
        rows = [(key, end) for offset, key, end in self.log if offset >= first]
        return no_ends(planned.ranges).read(rows)

    def compact(self) -> None:
        last = {key: offset for offset, key, _ in self.log}
        self.log = tuple(row for row in self.log if last[row[1]] == row[0] and row[2] is not None)

    # -- records ---------------------------------------------------------------------------

    def records_of(self, slices: list[Slice]) -> tuple[int, ...]:
        return tuple(
            offset
            for offset, hash_ in enumerate(self.keys)
            if any(
                hash_ in piece.hashes and piece.offsets.start <= offset < piece.offsets.end
                for each in slices
                for piece in each.rectangles
            )
        )

    @property
    def is_done(self) -> bool:
        """Whether all records are in the sink; if it was free to take a few, whether all count."""
        if not self.abandoned:
            return len(self.keys) == sum(map(len, self.once))
        counted = [
            slice_
            for planned in self.offsets[: self.commits]
            for each in planned.ranges
            if each.id in self.counts
            for slice_ in done_slices(each, self.counts[each.id])
        ]
        return len(self.keys) == len(self.records_of(counted))

    def next_record(self, task: Attempt) -> int | None:
        """The next record of a task's range, if there is one that it may hand over."""
        reader = task.reader
        for offset in self.records_of([reader.range.slice]):
            hash_ = self.keys[offset]
            if offset < _end_of(reader.delivered, hash_):
                continue
            is_parked = reader.bound is None and reader.parked.holds(hash_)
            if not is_parked and (reader.bound is None or offset < _end_of(reader.bound, hash_)):
                return offset
        return None


def _end_of(end: RangeEnd, hash_: int) -> int:
    return next(offset for hashes, offset in end.parts if hashes.holds(hash_))


# -- what can happen -----------------------------------------------------------------------------


def steps(world: OpenWorld, limits: WorldLimits) -> Iterator[Happens]:
    """Everything that can happen next."""
    if len(world.drivers) < 2 and world.started < limits.drivers:
        yield ("start", "")
    for name, driver in world.drivers.items():
        yield from _driver_steps(world, limits, name, driver)
    for name, task in world.tasks.items():
        yield from _task_steps(world, limits, name, task)
    if world.deaths < limits.deaths:
        yield from (("kill", name) for name in world.drivers)
        yield from (("die", name) for name in world.tasks)
    for number in range(len(world.flying)):
        yield (f"arrive {number}", "")
        if world.lost < limits.lost:
            yield (f"lose {number}", "")
    if world.compactions < limits.compactions and world.log:
        yield ("compact", "")


def _driver_steps(
    world: OpenWorld, limits: WorldLimits, name: str, driver: Driver
) -> Iterator[Happens]:
    if driver.phase == "look" and driver.number > 1 and _deletable(world, driver) is not None:
        yield ("delete", name)
    if driver.phase != "run":
        if driver.phase != "look" or len(world.flying) < _FLYING:
            yield ("go", name)
        return
    if world.early < limits.early and len(world.flying) < _FLYING:
        yield ("seal", name)
    ranges, done = world.offsets[driver.number].ranges, {each for each, _ in driver.rows}
    if len(done) == len(ranges):
        yield ("go", name)
    for each in ranges:
        mine = (task for task in world.tasks.values() if task.driver == name)
        running = sum(task.reader.range.id == each.id for task in mine)
        if each.id not in done and running < limits.attempts:
            yield (f"launch {each.id.number}", name)


def _task_steps(
    world: OpenWorld, limits: WorldLimits, name: str, task: Attempt
) -> Iterator[Happens]:
    reader = task.reader
    has_next = world.next_record(task) is not None
    may_propose = reader.step is not Step.PROPOSE or len(world.flying) < _FLYING
    if may_propose and (reader.step is not Step.READ or has_next or reader.bound is not None):
        yield ("task", name)
    if reader.step is Step.READ and reader.bound is None:
        yield ("time", name)
        if task.parks < limits.parks and task.rows:
            yield ("park", name)
    if world.abandoned < limits.abandons:
        yield ("abandon", name)


def take(world: OpenWorld, step: Happens) -> None:
    """Let something happen.

    Raises:
        LawBrokenError: A law does not hold any more.
    """
    verb, _, number = step[0].partition(" ")
    name = step[1]
    match verb:
        case "start":
            world.drivers[f"d{world.started}"] = Driver()
            world.started += 1
        case "go":
            _go(world, name)
        case "launch":
            _launch(world, name, int(number))
        case "seal":
            world.early += 1
            driver = world.drivers[name]
            world.drivers[name], _ = _seal(world, name, driver, world.offsets[driver.number])
        case "task":
            _work(world, name)
        case "time" | "park" | "abandon":
            _disturb(world, verb, name)
        case "kill" | "die":
            world.drivers.pop(name, None)
            world.tasks.pop(name, None)
            world.deaths += 1
        case _:
            _keep_log(world, verb, name, int(number or 0))


def _launch(world: OpenWorld, name: str, number: int) -> None:
    batch = world.drivers[name].number
    (each,) = [each for each in world.offsets[batch].ranges if each.id.number == number]
    world.tasks[f"a{world.launched}"] = Attempt(name, batch, RangeReader.of(each))
    world.launched += 1


def _disturb(world: OpenWorld, verb: str, name: str) -> None:
    task = world.tasks[name]
    if verb == "time":
        world.tasks[name] = replace(task, reader=task.reader.time_over())
    elif verb == "park":
        parked = KeyRanges.of_hashes([world.keys[task.rows[-1]]])
        world.tasks[name] = replace(task, reader=task.reader.park(parked), parks=task.parks + 1)
    else:
        world.abandoned += 1
        _succeed(world, name)


def _keep_log(world: OpenWorld, verb: str, name: str, number: int) -> None:
    if verb == "delete":
        key = _deletable(world, world.drivers[name])
        assert key is not None
        world.begun_to_delete |= {key.range.batch}
        world.append(key, None)
    elif verb == "compact":
        world.compactions += 1
        world.compact()
    else:
        flying = list(world.flying)
        key, end = flying.pop(number)
        world.flying = tuple(flying)
        world.lost += verb == "lose"
        if verb == "arrive":
            world.append(key, end)


# -- drivers -------------------------------------------------------------------------------------


def _go(world: OpenWorld, name: str) -> None:
    driver = world.drivers[name]
    match driver.phase:
        case "restart":
            last = len(world.offsets)
            calls = calls_of_restart(world.logged(last), world.commits)
            if _is_unfinished(world):
                world.drivers[name] = Driver("run", last - 1, calls=calls)
            else:
                world.drivers[name] = Driver("look", last, calls=calls)
        case "look":
            _look(world, name, driver)
        case "plan":
            world.drivers[name] = replace(driver, phase="log", planned=_plan(world, name, driver))
        case "log":
            assert driver.planned is not None
            if len(world.offsets) != driver.number:  # another driver has logged it
                del world.drivers[name]
            else:
                world.offsets = (*world.offsets, driver.planned)
                calls = (*driver.calls, *calls_of_log(world.logged(driver.number + 1)))
                world.drivers[name] = Driver("run", driver.number, calls=calls)
        case "run":
            world.drivers[name] = replace(driver, phase="sink")
        case "sink":
            _sink(world, driver)
            world.drivers[name] = replace(driver, phase="commit")
        case "commit":
            if world.commits != driver.number:  # another driver has committed it
                del world.drivers[name]
            else:
                world.commits += 1
                world.drivers[name] = Driver("look", driver.number + 1, calls=driver.calls)


def _is_unfinished(world: OpenWorld) -> bool:
    """Whether the last batch is not committed: a restart runs it again before it asks on."""
    return world.commits < len(world.offsets)


def _look(world: OpenWorld, name: str, driver: Driver) -> None:
    """Find the ends of the batch before, and propose what is missing; look again then."""
    last = [BEGIN, *world.logged(driver.number)][-1]
    if world.commits < driver.number:
        raise LawBrokenError(f"Spark asks for an end when {last} is not committed")
    if (told := planned_after(driver.calls)) != last:
        raise LawBrokenError(f"an older Spark is at {last}, and its planner at {told}")
    if not driver.number:
        world.drivers[name] = replace(driver, phase="plan")
        return
    driver, ends = _seal(world, name, driver, world.offsets[driver.number - 1])
    phase = "look" if missing(world.offsets[driver.number - 1].ranges, ends) else "plan"
    world.drivers[name] = replace(driver, phase=phase, ends=ends)


def _seal(world: OpenWorld, name: str, driver: Driver, of: Planned) -> tuple[Driver, RangeEnds]:
    """Propose ends for ranges of a batch that have none; those that are known."""
    ends = world.ends_of(of)
    proposals = seals(of.ranges, ends)
    for id_, end in proposals.items():
        key = EndKey(id_, f"{name}-{driver.number}-{driver.sealed}")
        world.flying = (*world.flying, (key, end))
    return replace(driver, sealed=driver.sealed + bool(proposals)), ends


def _plan(world: OpenWorld, name: str, driver: Driver) -> Planned:
    begin = Progress.at(0)
    if driver.number:
        before = world.offsets[driver.number - 1]
        assert driver.ends is not None
        progress = {T0: before.begin}
        begin = reached(before.ranges, progress, driver.ends, lambda _: NO_HASHES)[T0]
        counts = RangeEnds({}, world.counts)
        if missing(before.ranges, counts):
            raise LawBrokenError(f"batch {driver.number} begins where no end counts yet")
        if begin != reached(before.ranges, progress, counts, lambda _: NO_HASHES)[T0]:
            raise LawBrokenError(f"batch {driver.number} does not begin where the last one ended")
    ranges = {T0: CUTS[driver.number % len(CUTS)]}
    return Planned(
        OpenBatch(f"{name}-{driver.number}", 1, "ends", LogPosition(0, world.log_end), ranges),
        begin,
    )


def _deletable(world: OpenWorld, driver: Driver) -> EndKey | None:
    """A record of the batch before the last committed one, the first of them first."""
    name = world.offsets[driver.number - 2].batch.name
    keys = {key: offset for offset, key, end in world.log if key.range.batch == name and end}
    for _, key, end in world.log:
        if end is None:
            keys.pop(key, None)
    return min(keys, key=keys.__getitem__, default=None)


def _sink(world: OpenWorld, driver: Driver) -> None:
    rows = tuple(row for _, part in sorted(driver.rows) for row in part)
    if driver.number < len(world.once):
        is_last = driver.number == len(world.once) - 1 and not world.abandoned
        if is_last and sorted(world.once[-1]) != sorted(rows):
            raise LawBrokenError(f"batch {driver.number} had {world.once[-1]}, and has {rows} now")
        return
    before = {row for batch in world.once for row in batch}
    for hash_ in set(world.keys):
        wanted = [offset for offset, each in enumerate(world.keys) if each == hash_]
        new = [row for row in rows if world.keys[row] == hash_]
        left = [row for row in wanted if row not in before]
        if new != (sorted(new) if world.abandoned else left[: len(new)]):
            raise LawBrokenError(f"key {hash_}: {new} after {before}, of {wanted}")
    world.once = (*world.once, rows)


# -- tasks ---------------------------------------------------------------------------------------


def _work(world: OpenWorld, name: str) -> None:
    task = world.tasks[name]
    reader = task.reader
    match reader.step:
        case Step.LOOK:
            planned = world.offsets[task.batch]
            world.tasks[name] = replace(task, reader=reader.look(world.ends_of(planned)))
        case Step.READ:
            _read(world, name, task)
        case Step.PROPOSE:
            world.flying = (*world.flying, (reader.key(name), reader.delivered))
            world.tasks[name] = replace(task, reader=reader.proposed())
        case Step.END:
            _succeed(world, name)
        case Step.FAIL:
            del world.tasks[name]


def _read(world: OpenWorld, name: str, task: Attempt) -> None:
    offset = world.next_record(task)
    if offset is None:  # up to its bound, there is no record any more
        assert task.reader.bound is not None
        to = max(end for _, end in task.reader.bound.parts)
        world.tasks[name] = replace(task, reader=task.reader.deliver_to(to))
        return
    hash_ = world.keys[offset]
    before = {row for row in range(offset) if world.keys[row] == hash_}
    if not before <= world.least:
        raise LawBrokenError(f"offset {offset} before {before - world.least} of its key")
    world.least |= {offset}
    reader = task.reader.deliver_to(offset + 1)
    world.tasks[name] = replace(task, rows=(*task.rows, offset), reader=reader)


def _succeed(world: OpenWorld, name: str) -> None:
    """A task ends, and its driver hears it if it lives: Spark takes the first that does."""
    task = world.tasks.pop(name)
    each, rows = task.reader.range, task.rows
    if task.reader.step is Step.END and each.id.batch not in world.begun_to_delete:
        end = world.counts.get(each.id)
        counted = () if end is None else world.records_of(done_slices(each, end))
        if end is None or sorted(rows) != sorted(counted):
            raise LawBrokenError(f"a task ends with {rows}, and {counted} count")
    driver = world.drivers.get(task.driver)
    if driver is None or (driver.phase, driver.number) != ("run", task.batch):
        return
    if each.id not in {known for known, _ in driver.rows}:
        rows_by_key = tuple(sorted(rows, key=lambda row: (world.keys[row], rows.index(row))))
        driver = replace(driver, rows=(*driver.rows, (each.id, rows_by_key)))
        world.drivers[task.driver] = driver


# -- the end -------------------------------------------------------------------------------------

_ROUNDS = 12


def finish(world: OpenWorld) -> None:
    """Let no more go wrong: one driver is left, or starts, and all records reach the sink.

    Raises:
        LawBrokenError: A law does not hold, or they do not.
    """
    world.flying, world.tasks = (), {}
    for name in [*world.drivers][:-1]:
        del world.drivers[name]
    limits = WorldLimits(attempts=1, deaths=0, compactions=0, lost=0)
    for _ in range(_ROUNDS * 8):
        if world.is_done:
            return
        if not world.drivers:
            take(world, ("start", ""))
        for step in [*steps(world, limits)]:
            _take_if_possible(world, limits, step)
    raise LawBrokenError(f"it waits: {world.drivers}")


def _take_if_possible(world: OpenWorld, limits: WorldLimits, step: Happens) -> None:
    """What a round begins with happens, if it still can; what is appended arrives at once."""
    verb = step[0].partition(" ")[0]
    if verb in {"delete", "start"} or step not in [*steps(world, limits)]:
        return
    if verb == "time" and world.next_record(world.tasks[step[1]]) is not None:
        return
    take(world, step)
    while world.flying:
        take(world, ("arrive 0", ""))
