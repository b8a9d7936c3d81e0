"""Tasks that are behind where they are wanted run where their state is, until they are warm.

Guarantees: no active task stays on a process that is not caught up while another process has a
strictly smaller lag; at most ``quota`` copies are made beyond the wanted ones.
Cost: one row of lags for each task that is not caught up where it is wanted.

    wanted process caught up, or no other one fresher    the task runs there
    a standby elsewhere is caught up                     the two change places
    another process is caught up                         it runs there; warm-up on the wanted one
    no process is caught up                              it runs on the freshest; warm-up, too

The rules are those of Kafka Streams' high-availability assignor (KIP-441).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from kshare.assignment.interface.task_id import TaskId
from kshare.assignment.placement.placement import Placement

__all__ = ["RUNNING", "UNBOUNDED", "Lags", "Warmups", "move_actives", "move_standbys"]

RUNNING: Final = -2
"""The lag of a task that was running actively."""

UNBOUNDED: Final = 2**63 - 1
"""The acceptable lag at which every process counts as caught up."""


class Lags:
    """The lag of each process on each task; rows are read when they are needed.

    Args:
        lags: For each process, the lag of each task.
        tasks: The ids of the tasks, by number.
        acceptable: Greatest lag at which a process counts as caught up.
    """

    def __init__(
        self, lags: Sequence[Mapping[TaskId, int]], tasks: Sequence[TaskId], acceptable: int
    ) -> None:
        self._lags = lags
        self._tasks = tasks
        self._acceptable = acceptable
        self._rows: dict[int, list[int]] = {}
        self._caught_up: dict[int, list[int]] = {}

    def caught_up(self, task: int) -> list[int]:
        """Return the processes that are caught up on a task, ascending."""
        processes = self._caught_up.get(task)
        if processes is None:
            is_caught_up, lags = self._is_caught_up, self._row(task)
            good = {lag for lag in set(lags) if is_caught_up(lag)}
            processes = [process for process, lag in enumerate(lags) if lag in good]
            self._caught_up[task] = processes
        return processes

    def is_behind(self, process: int, task: int) -> bool:
        """Return whether a process is not caught up, and another one has a smaller lag."""
        lag = self._lags[process][self._tasks[task]]
        return not self._is_caught_up(lag) and min(self._row(task)) < lag

    def freshest(self, task: int, than: int, passed_over: Collection[int] = ()) -> int | None:
        """Return the process with the smallest lag, the first on a tie; None if that is ``than``.

        Args:
            task: The task's number.
            than: The process to beat.
            passed_over: Processes that do not count.
        """
        lags = self._row(task)
        best = than
        for process, lag in enumerate(lags):
            is_better = lag < lags[best] or (lag == lags[best] and process < best)
            if is_better and process not in passed_over:
                best = process
        return None if best == than else best

    def _row(self, task: int) -> list[int]:
        row = self._rows.get(task)
        if row is None:
            id_ = self._tasks[task]
            row = self._rows[task] = [lags[id_] for lags in self._lags]
        return row

    def _is_caught_up(self, lag: int) -> bool:
        # The lag -3 (unknown) is no proof of being caught up, though it sorts as the smallest.
        return lag == RUNNING or 0 <= lag <= self._acceptable or self._acceptable == UNBOUNDED


class Warmups:
    """The copies that warm up.

    Args:
        quota: Maximum number of copies.

    Attributes:
        made: The copies, as (process, task).
    """

    def __init__(self, quota: int) -> None:
        self._left = quota
        self.made: set[tuple[int, int]] = set()

    def take(self, process: int, task: int) -> bool:
        """Take one copy of the quota for the process; return whether one was left."""
        if self._left <= 0:
            return False
        self._left -= 1
        self.made.add((process, task))
        return True


def move_actives(
    placement: Placement,
    tasks: Iterable[int],
    lags: Lags,
    warmups: Warmups,
    siblings: Mapping[int, Collection[int]],
) -> list[int]:
    """Run each active task that is behind where it is wanted on a process that is caught up.

    That is a holder of a standby, which costs no warmup, or else a process that is caught up: the
    one that runs most siblings of the task, then the least loaded; or else the freshest. Tasks with
    the fewest caught-up processes go first.

    Args:
        placement: Where the tasks are wanted; it is changed.
        tasks: The active tasks to look at.
        lags: The lag of each process.
        warmups: Takes the copies that warm up where they are wanted.
        siblings: For each shared task, all shared tasks of its partition.

    Returns:
        The tasks that cannot run yet where they are wanted.
    """
    behind = [task for task in tasks if lags.is_behind(placement.owner[task], task)]
    behind.sort(key=lambda task: (len(lags.caught_up(task)), task))
    for task in behind:
        wanted = placement.owner[task]
        caught_up = lags.caught_up(task)
        holders = [process for process in caught_up if task in placement.standby[process]]
        source = _least_loaded(placement, holders or caught_up, siblings.get(task, ()))
        if source is None:
            source = lags.freshest(task, wanted)
            if source is None:
                raise AssertionError(f"task {task} is behind, and no process is fresher")
        if task in placement.standby[source]:
            placement.swap(task, source)
        else:
            placement.move_active(task, source)
            if warmups.take(wanted, task):
                placement.add_standby(wanted, task)
    return behind


def move_standbys(placement: Placement, lags: Lags, warmups: Warmups) -> list[int]:
    """Give a standby that is behind where it is wanted to a fresher process without a copy.

    The wanted process keeps its copy too, if a warm-up is left. Warm-ups of active tasks stay.

    Returns:
        The tasks of the standbys that were moved, one entry for each.
    """
    active_warmups = set(warmups.made)
    behind = [
        (len(lags.caught_up(task)), task, process)
        for process, held in enumerate(placement.standby)
        for task in held
        if (process, task) not in active_warmups and lags.is_behind(process, task)
    ]
    moved = []
    for _, task, wanted in sorted(behind):
        holders = {process for process, held in enumerate(placement.standby) if task in held}
        holders.add(placement.owner[task])
        having_none = [process for process in lags.caught_up(task) if process not in holders]
        source = _least_loaded(placement, having_none)
        if source is None:
            source = lags.freshest(task, wanted, holders)
        if source is not None:
            moved.append(task)
            placement.add_standby(source, task)
            if not warmups.take(wanted, task):
                placement.drop_standby(wanted, task)
    return moved


def _least_loaded(
    placement: Placement, processes: Sequence[int], siblings: Collection[int] = ()
) -> int | None:
    """The process that runs most of the siblings, then the least loaded, then the first."""
    if siblings and processes:
        running = Counter(placement.owner[task] for task in siblings)
        most = max(running[process] for process in processes)
        processes = [process for process in processes if running[process] == most]
    load = placement.load
    return min(processes, key=lambda process: (load[process], process), default=None)
