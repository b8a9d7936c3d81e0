"""Where the tasks of a limited batch ended.

Law: a function of the offset dict and of the log. What tasks tell saves looking, and changes
nothing; what they tell that cannot be is not believed. If the log has lost what would have to be
looked at, records that may have been delivered come again: rather twice than never.
Cost: nothing for a task that told; for one that did not, the keys of its records are read again.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from kshare.core.checkpoint import Offsets
from kshare.core.hashing import HashRange, complement
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, Slice, TopicPartition
from kshare.core.slice_end import SliceEnd
from kshare.errors import DataLossError, UnknownTopicError
from kshare.options import Assign, SourceOptions
from kshare.planner.tasks import Task, allowed_hashes

__all__ = ["Scan", "Settler", "limited_tasks", "scan_log", "unassigned_hashes"]

_log = logging.getLogger("kshare.planner")

_REMEMBERED = 2

Scan: TypeAlias = Callable[[Slice, SourceOptions, int], int]
"""Finds in the log where a task ends that reads a slice up to a number of records."""


def scan_log(slice_: Slice, options: SourceOptions, max_records: int) -> int:
    """Find the end of a limited slice in Kafka's log: as its reader does, but of keys only.

    Raises:
        KafkaError: the cluster did not answer.
        DataLossError: the log does not hold the slice any more, and ``failOnDataLoss`` is true.
    """
    from kshare.wire.reader.find_end import find_end  # noqa: PLC0415 - brings the compiled kernels

    return find_end(slice_, options, max_records)


def limited_tasks(offsets: Offsets) -> list[Task]:
    """The tasks of a dict's limits, in the order of partitions, then of ranges."""
    tasks = []
    for place, limits in sorted(offsets.limits.items()):
        for limit in limits:
            pending = offsets.progress[place].pending_of(limit.end, limit.hashes)
            if pending:
                slice_ = Slice(place.topic, place.partition, pending)
                tasks.append(Task(slice_, limit.records))
    return tasks


class Settler:
    """Finds how far partitions are when a batch is done.

    Args:
        options: the query's.
        scan: looks into the log.
    """

    def __init__(self, options: SourceOptions, scan: Scan) -> None:
        self._options = options
        # A reader that passes over what is lost would count on, with records that no task had.
        self._strict = replace(options, fail_on_data_loss=True)
        self._scan = scan
        self._settled: dict[str, dict[TopicPartition, Progress]] = {}

    def settle(
        self,
        name: str,
        before: Offsets,
        tasks: Sequence[Task],
        results: Mapping[int, SliceEnd],
        *,
        ran_here: bool = True,
    ) -> dict[TopicPartition, Progress]:
        """How far each partition is when the batch of a dict is done.

        Args:
            name: of the batch; what was found for it is remembered.
            before: what the dict says.
            tasks: of its limits, as :func:`limited_tasks` has them.
            results: what tasks told, by their place in ``tasks``; more may be there.
            ran_here: whether its tasks had this query's isolation level, and not that of the run
                before a restart, which the dict has.

        Raises:
            DataLossError: an end cannot be found any more, and ``failOnDataLoss`` is true.
        """
        known = self._settled.get(name)
        if known is not None:
            return dict(known)
        ends = {n: told.end for n, told in results.items() if n < len(tasks)}
        ends = {n: end for n, end in ends.items() if _can_be(tasks[n], end, results[n].records)}
        missing = [number for number in range(len(tasks)) if number not in ends]
        if missing:
            _log.info(
                "looking for the ends of %d of %d tasks of batch %s", len(missing), len(tasks), name
            )
        level = self._strict.kafka.read_committed if ran_here else before.read_committed
        ends.update((number, self._found(tasks[number], level)) for number in missing)
        moved = self._moved(before.progress, [(task, ends[n]) for n, task in enumerate(tasks)])
        settled = {**before.progress, **moved}
        while len(self._settled) >= _REMEMBERED:
            del self._settled[next(iter(self._settled))]
        self._settled[name] = settled
        return dict(settled)

    def scanned(
        self, progress: Mapping[TopicPartition, Progress], tasks: Iterable[Task]
    ) -> dict[TopicPartition, Progress]:
        """How far the partitions of limited tasks will be, found out before they run.

        Args:
            progress: how far partitions are.
            tasks: limited ones.

        Raises:
            DataLossError: the log does not hold what is to be read, and ``failOnDataLoss`` is true.
        """
        level = self._strict.kafka.read_committed
        return self._moved(progress, [(task, self._found(task, level)) for task in tasks])

    def _found(self, task: Task, read_committed: bool) -> int:
        """Where a task ends or ended, by the log and the isolation level that it had."""
        assert task.max_records is not None
        offsets = task.slice.offsets
        kafka = replace(self._strict.kafka, read_committed=read_committed)
        try:
            return self._scan(task.slice, replace(self._strict, kafka=kafka), task.max_records)
        except UnknownTopicError:
            return offsets.start  # what is to be said of that is said when partitions are compared
        except DataLossError as error:
            if self._options.fail_on_data_loss:
                raise
            first = error.available[0] if error.available else offsets.start
            end = min(max(first, offsets.start), offsets.end)
            _log.warning(
                "%s: the log no longer holds the offsets %s, and how far their task came for the "
                "key hashes %s is not known. Going on at offset %d, since failOnDataLoss is false: "
                "what is there may come a second time.",
                TopicPartition(task.slice.topic, task.slice.partition),
                offsets,
                task.slice.hashes,
                end,
            )
            return end

    def _moved(
        self, progress: Mapping[TopicPartition, Progress], ended: Iterable[tuple[Task, int]]
    ) -> dict[TopicPartition, Progress]:
        """The partitions of some tasks, with what these read committed.

        Key hashes that the query does not read hold nothing: they go along.
        """
        done: dict[TopicPartition, list[Rectangle]] = defaultdict(list)
        planned_to: dict[TopicPartition, int] = defaultdict(int)
        for task, end in ended:
            place = TopicPartition(task.slice.topic, task.slice.partition)
            planned_to[place] = max(planned_to[place], task.slice.offsets.end)
            for piece in task.slice.rectangles:
                start, stop = piece.offsets.start, min(piece.offsets.end, end)
                if start < stop:
                    done[place].append(Rectangle(OffsetRange(start, stop), piece.hashes))
        moved = {}
        for place, end in planned_to.items():
            skipped = progress[place].pending_of(end, unassigned_hashes(self._options, place))
            moved[place] = progress[place].commit([*done[place], *skipped])
        return moved


def unassigned_hashes(options: SourceOptions, place: TopicPartition) -> tuple[HashRange, ...]:
    """The key hashes of a partition that the query does not read."""
    topics = options.topics
    if isinstance(topics, Assign) and place not in topics.partitions:
        return ()  # read before a restart only
    return complement(allowed_hashes(options, place))


def _can_be(task: Task, end: int, records: int) -> bool:
    """Whether a task can have ended there: at its limit, or else at its slice's end."""
    offsets = task.slice.offsets
    return offsets.start < end <= offsets.end and (
        end == offsets.end or records == task.max_records
    )
