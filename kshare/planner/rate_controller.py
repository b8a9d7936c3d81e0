"""What the tasks of a stream told, and what that means for the next batch.

Law: a hint, never a fact. What is lost here (a restart, a message) changes how fast ranges go, and
nothing else: where a task ended is found in the log if it was not told.
Cost: linear in the tasks of a batch; memory for the last batch.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kshare.core.hashing import HashRange
from kshare.core.progress import TopicPartition
from kshare.core.rate import SLOW, Measured, RangeSpeed, learn, next_limits, ranges_to_measure
from kshare.core.slice_end import SliceEnd
from kshare.core.slicing import RangeObservation
from kshare.feedback.messages import Executor
from kshare.feedback.server import FeedbackServer
from kshare.options import SourceOptions
from kshare.planner.tasks import Task

__all__ = ["Pacer"]

# Messages are on their way when a batch ends; those of processes that end with it, a bit longer.
_WAIT_SECONDS = 0.25
_WAIT_HELD_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Batch:
    """The batch that runs."""

    name: str
    tasks: tuple[Task, ...]
    began: float
    held: frozenset[int]


class Pacer:
    """Gives out tickets, collects what comes back, and sets the limits of ranges."""

    def __init__(
        self,
        options: SourceOptions,
        server: FeedbackServer | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._clock = clock
        self._server = server
        self._batch: _Batch | None = None
        self._speeds: dict[TopicPartition, tuple[RangeSpeed, ...]] = {}
        self._observed: dict[TopicPartition, tuple[RangeObservation, ...]] = {}
        self._to_measure: dict[TopicPartition, frozenset[HashRange]] = {}
        self._unmeasured = 0
        self._since_all = 0
        self._batch_seconds: float | None = None
        self._slowest = 0.0  # of its tasks that were measured
        self._full: dict[TopicPartition, frozenset[HashRange]] = {}
        self._recent: list[str] = []

    @property
    def listens(self) -> bool:
        """Whether tasks report: only if something depends on it."""
        return self._options.limits_records or self._options.range_assignor == "adaptive"

    def observed(self, partition: TopicPartition) -> tuple[RangeObservation, ...]:
        """What the last batches told about a partition's ranges."""
        return self._observed.get(partition, ())

    def began(self, name: str, tasks: Sequence[Task], *, asks: bool = False) -> tuple[Task, ...]:
        """A batch is about to run: give its tasks tickets.

        Args:
            name: the batch's.
            tasks: of the batch.
            asks: whether tasks shall tell where they run, even if nothing else depends on them.
        """
        held = frozenset(
            number
            for number, task in enumerate(tasks)
            if self._range_of(place := _place(task), task)
            in self._to_measure.get(place, frozenset())
        )
        self._batch = _Batch(name, tuple(tasks), self._clock(), held)
        if not (self.listens or asks) or not tasks:
            return tuple(tasks)
        if self._server is None:
            self._server = FeedbackServer(self._options.kafka.bootstrap_servers[0])
        if not self._server.start():
            return tuple(tasks)
        server = self._server
        self._recent = [*self._recent[-1:], name]
        server.retain(self._recent)
        return tuple(
            replace(task, ticket=server.ticket(name, number, hold=number in held))
            for number, task in enumerate(tasks)
        )

    def ended(self, name: str) -> Mapping[int, SliceEnd]:
        """What the tasks of a batch told, by their numbers; learns from it, once."""
        ended = self._clock()
        batch, self._batch = self._batch, None
        if batch is None or batch.name != name:
            return self._server.reports(name) if self._server else {}
        results: Mapping[int, SliceEnd] = {}
        if self._server is not None and batch.tasks and self.listens:
            wait = _WAIT_HELD_SECONDS if batch.held else _WAIT_SECONDS
            results = self._server.reports(name, wait_seconds=wait)
        if batch.tasks:
            self._learn(batch, results, ended)
        return results

    def executors(self, name: str) -> dict[int, Executor]:
        """Where the tasks of a batch ran, by their numbers, as far as they told."""
        return {} if self._server is None else self._server.executors(name)

    def limits(
        self, ranges: Mapping[TopicPartition, Sequence[HashRange]]
    ) -> dict[TopicPartition, tuple[int, ...]]:
        """How many records each range may read in the next batch, in the order given."""
        target, most = self._options.target_task_seconds, self._options.max_records_per_task
        if target is None:
            assert most is not None
            return {place: (most,) * len(parts) for place, parts in ranges.items()}
        # How long the batch took, unless a task that was measured is why.
        unexplained = self._batch_seconds
        if not self._unmeasured and self._slowest * SLOW >= (unexplained or 0.0):
            unexplained = None
        coming = {
            place: next_limits(
                parts,
                self._speeds.get(place, ()),
                target_seconds=target,
                batch_seconds=unexplained,
                max_records=most,
            )
            for place, parts in ranges.items()
        }
        self._to_measure = {
            place: ranges_to_measure(
                speeds,
                self._speeds.get(place, ()),
                target_seconds=target,
                batch_seconds=self._batch_seconds,
                full=self._full.get(place, ()),
                batches_unmeasured=self._unmeasured,
                batches_since_all=self._since_all,
            )
            for place, speeds in coming.items()
        }
        self._speeds.update(coming)
        return {place: tuple(s.limit for s in speeds) for place, speeds in coming.items()}

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    def _learn(self, batch: _Batch, results: Mapping[int, SliceEnd], ended: float) -> None:
        told: dict[TopicPartition, list[RangeObservation]] = {}
        measured: dict[TopicPartition, dict[HashRange, Measured]] = {}
        full: dict[TopicPartition, set[HashRange]] = {}
        for number, task in enumerate(batch.tasks):
            result = results.get(number)
            if result is None:
                continue
            place = _place(task)
            hashes = self._range_of(place, task)
            # The time of a reader alone says little: what comes after it may take much longer.
            seconds = result.task_seconds
            offsets = max(result.end - task.slice.offsets.start, 1)
            told.setdefault(place, []).append(
                RangeObservation(hashes, result.records, offsets, seconds, result.sample)
            )
            if seconds is not None:
                found = Measured(result.records, seconds, result.sample)
                measured.setdefault(place, {})[hashes] = found
            if task.max_records is not None and result.records >= task.max_records:
                full.setdefault(place, set()).add(hashes)
        for place, seen in told.items():
            self._observed[place] = self._merged(place, sorted(seen, key=lambda o: o.hashes.lo))
        for place, times in measured.items():
            self._speeds[place] = learn(
                self._speeds.get(place, ()), times, target_seconds=self._options.target_task_seconds
            )
        self._slowest = max(
            (task.seconds for ranges in measured.values() for task in ranges.values()), default=0.0
        )
        self._batch_seconds = self._effective_seconds(batch, results, ended)
        self._unmeasured = 0 if measured else self._unmeasured + 1
        whole = all(n in results and results[n].held for n in range(len(batch.tasks)))
        self._since_all = 0 if whole else self._since_all + 1
        self._full = {place: frozenset(ranges) for place, ranges in full.items()}

    def _effective_seconds(
        self,
        batch: _Batch,
        results: Mapping[int, SliceEnd],
        ended: float,
    ) -> float:
        """How long the batch's tasks took. Workers that had to start do not make a batch slow."""
        last = max((r.began for r in results.values() if r.began is not None), default=batch.began)
        return max(ended - max(last, batch.began), self._slowest)

    def _range_of(self, place: TopicPartition, task: Task) -> HashRange:
        """The planned range that a task's slice is of: wider if some of it was not pending."""
        hashes = task.slice.hashes
        for speed in self._speeds.get(place, ()):
            if speed.hashes.lo <= hashes.lo and hashes.hi <= speed.hashes.hi:
                return speed.hashes
        return hashes

    def _merged(
        self, place: TopicPartition, seen: list[RangeObservation]
    ) -> tuple[RangeObservation, ...]:
        """New observations, with the seconds of the last measured batch where it has none.

        Ranges that had no task in this batch keep what was known of them.
        """
        before = {old.hashes: old for old in self._observed.get(place, ())}
        merged = []
        for new in seen:
            old = before.get(new.hashes)
            if new.seconds is None and old is not None and old.seconds is not None and old.records:
                seconds = old.seconds / old.records * new.records
                new = replace(new, seconds=seconds)  # noqa: PLW2901
            merged.append(new)
        kept = [
            old
            for old in before.values()
            if all(old.hashes.intersect(new.hashes) is None for new in merged)
        ]
        return tuple(sorted([*merged, *kept], key=lambda o: o.hashes.lo))


def _place(task: Task) -> TopicPartition:
    return TopicPartition(task.slice.topic, task.slice.partition)
