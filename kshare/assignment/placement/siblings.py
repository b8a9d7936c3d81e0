"""Siblings: the shared tasks of one partition, brought together because they share its state store.

A process needs one store for each partition of which it has a copy, active or standby, of any
sibling. So the fewer pairs of process and partition there are, the less state is kept and restored.

Guarantees: each process keeps its number of tasks, and has at most one copy of a task. Standbys
only change places with standbys on processes of the same kind, so client tags differ as before.
Cost: a few steps for each task, and one of a heap for each partition on each process.

Kafka knows no shared tasks; the rule is that of the key-shared consumption proposal ("group shared
tasks [...] and assign them onto the same stream instance").
"""

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from itertools import islice

from kshare.assignment.placement.indexed_state import IndexedState, SharedTasks
from kshare.assignment.placement.placement import Placement, is_even

__all__ = ["group_actives", "group_standbys", "keep_previous_actives", "keep_previous_standbys"]


def group_actives(placement: Placement, tasks: Sequence[int]) -> None:
    """Bring siblings together, as many tasks on each process as it has of them.

    Args:
        placement: Where the tasks are active.
        tasks: Shared tasks, siblings side by side.
    """
    of_all = set(tasks)
    rest = iter(tasks)
    held = [active - of_all for active in placement.active]
    for process, active in enumerate(placement.active):
        held[process].update(islice(rest, len(active & of_all)))
    placement.set_active(held)


def group_standbys(
    indexed: IndexedState,
    placement: Placement,
    movable: Sequence[set[int]],
    kinds: Sequence[Hashable] | None = None,
) -> None:
    """Bring standbys of siblings together, unless that needs no fewer stores.

    Args:
        indexed: Names the partition of each task.
        placement: Where all copies are.
        movable: The standbys of each process that may change places.
        kinds: Standbys stay on processes of one kind; None: all are of one kind.
    """
    by_kind: dict[Hashable, list[int]] = {}
    for process in range(len(placement.threads)):
        by_kind.setdefault(kinds[process] if kinds else None, []).append(process)
    for processes in by_kind.values():
        if sum(bool(movable[process]) for process in processes) < 2:
            continue
        grouping = _Grouping(indexed.shared, placement, processes, movable)
        if grouping.place_all() and grouping.stores_saved() > 0:
            standby = list(placement.standby)
            for process, tasks in grouping.placed.items():
                standby[process] = (standby[process] - movable[process]) | tasks
            placement.set_standby(standby)


class _Grouping:
    """Standbys while they are regrouped among processes of one kind.

    Attributes:
        placed: The movable standbys of each process, as far as they are placed.
    """

    def __init__(
        self,
        shared: SharedTasks,
        placement: Placement,
        processes: Sequence[int],
        movable: Sequence[set[int]],
    ) -> None:
        self.placed: dict[int, set[int]] = {process: set() for process in processes}
        self._shared = shared
        self._movable = {process: movable[process] for process in processes}
        self._fixed = {
            process: shared.tasks
            & (placement.active[process] | (placement.standby[process] - movable[process]))
            for process in processes
        }
        self._missing = Counter(task for tasks in self._movable.values() for task in tasks)
        self._room = {process: len(movable[process]) for process in processes}
        # Room, and copies that are still missing but cannot come here: the higher the sum, the
        # fewer choices are left to fill the process.
        self._urgency = dict(self._room)
        self._holders: dict[int, list[int]] = {task: [] for task in self._missing}
        for process, fixed in self._fixed.items():
            for task in self._missing.keys() & fixed:
                self._holders[task].append(process)
                self._urgency[process] += self._missing[task]
        self._heap = [(-urgency, process) for process, urgency in self._urgency.items()]
        heapq.heapify(self._heap)

    def place_all(self) -> bool:
        """Place the siblings of each partition in turn; return whether all could be placed."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for task in sorted(self._missing):
            groups.setdefault(self._shared.partitions[task], []).append(task)
        for group in groups.values():
            while wanted := [task for task in group if self._missing[task]]:
                process, fitting = self._best(wanted)
                if not fitting and not self._exchange(wanted[0]):
                    return False
                self._give(process, fitting)
        return True

    def stores_saved(self) -> int:
        """Return how many stores fewer the new placement needs."""
        before, after = (
            self._shared.stores(held[process] | fixed for process, fixed in self._fixed.items())
            for held in (self._movable, self.placed)
        )
        return before - after

    def _best(self, tasks: Sequence[int]) -> tuple[int, list[int]]:
        """The process that takes the most of these siblings, on a tie the most urgent to fill.

        Mostly the first one from the heap takes all.
        """
        best, fitting = -1, list[int]()
        passed = []
        while self._heap and len(fitting) < len(tasks):
            entry = heapq.heappop(self._heap)
            process = entry[1]
            if -entry[0] != self._urgency[process]:  # there is a newer entry
                continue
            passed.append(entry)
            if self._room[process] > len(fitting):
                free = [task for task in tasks if process not in self._holders[task]]
                if len(free := free[: self._room[process]]) > len(fitting):
                    best, fitting = process, free
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return best, fitting

    def _exchange(self, task: int) -> bool:
        """Place a task whose copies are on all processes with room, by moving another one there."""
        for target, room in self._room.items():
            if not room:
                continue
            for process, tasks in self.placed.items():
                if process in self._holders[task]:
                    continue
                for other in sorted(tasks):
                    if target not in self._holders[other]:
                        self._take(process, other)
                        self._give(target, [other])
                        self._give(process, [task])
                        return True
        return False

    def _give(self, process: int, tasks: Sequence[int]) -> None:
        for task in tasks:
            self.placed[process].add(task)
            self._missing[task] -= 1
            for holder in self._holders[task]:
                self._change(holder, -1)
            self._holders[task].append(process)
            self._room[process] -= 1
            self._change(process, self._missing[task] - 1)

    def _take(self, process: int, task: int) -> None:
        self.placed[process].remove(task)
        self._holders[task].remove(process)
        self._room[process] += 1
        self._change(process, 1 - self._missing[task])
        self._missing[task] += 1
        for holder in self._holders[task]:
            self._change(holder, 1)

    def _change(self, process: int, by: int) -> None:
        self._urgency[process] += by
        heapq.heappush(self._heap, (-self._urgency[process], process))


def keep_previous_actives(indexed: IndexedState, placement: Placement, tasks: list[int]) -> None:
    """Leave shared tasks where they were active, if that is as even and needs few stores.

    Few are no more than the new placement needs, or than one for each partition and one more for
    each process but one, since even loads have to cut that many partitions.

    Args:
        indexed: Knows where the tasks were active.
        placement: Where the tasks would be active instead.
        tasks: The shared tasks that may stay; all of them stay, or none.
    """
    previous, cuts = indexed.previous.active, len(placement.threads) - 1
    kept = _kept(indexed, placement.active, previous, set(tasks), copies=1, cuts=cuts)
    _replace_if_even(placement, placement.active, kept, placement.set_active, by_spread=False)


def keep_previous_standbys(indexed: IndexedState, placement: Placement, tasks: list[int]) -> None:
    """Leave standbys of shared tasks where they were, if that is as even and needs few stores.

    They may need two stores more for each process: a standby cannot be where another copy is.

    Args:
        indexed: Knows where the standbys were.
        placement: Where the standbys would be instead.
        tasks: The shared tasks whose standbys may stay; all of them stay, or none.
    """
    previous, cuts = indexed.previous.standby, 2 * len(placement.threads)
    if all(had.isdisjoint(on) for had, on in zip(previous, placement.active, strict=True)):
        copies = indexed.replicas
        kept = _kept(indexed, placement.standby, previous, set(tasks), copies=copies, cuts=cuts)
        _replace_if_even(placement, placement.standby, kept, placement.set_standby, by_spread=True)


def _kept(
    indexed: IndexedState,
    held: Sequence[set[int]],
    previous: Sequence[set[int]],
    tasks: set[int],
    *,
    copies: int,
    cuts: int,
) -> list[set[int]] | None:
    """The held tasks with the previous copies; None if one is missing, or stores are too many."""
    stay = [had & tasks for had in previous]
    if Counter(task for had in stay for task in had) != Counter(dict.fromkeys(tasks, copies)):
        return None
    shared = indexed.shared
    few = copies * len({shared.partitions[task] for task in tasks}) + cuts
    if shared.stores(stay) > max(few, shared.stores(on & tasks for on in held)):
        return None
    return [(on - tasks) | had for on, had in zip(held, stay, strict=True)]


def _replace_if_even(
    placement: Placement,
    held: Sequence[set[int]],
    kept: Sequence[set[int]] | None,
    replace: Callable[[Sequence[set[int]]], None],
    *,
    by_spread: bool,
) -> None:
    """Replace what is held, unless loads are less even then.

    Args:
        placement: The placement, for the loads.
        held: What is held.
        kept: What replaces it; None: nothing does.
        replace: Replaces it in the placement.
        by_spread: Whether a spread of loads that is not greater is enough; else processes of the
            same size must have the same loads, in any order.
    """
    if kept is None:
        return
    before, spread = list(held), placement.spread
    loads = Counter(zip(placement.threads, placement.count, strict=True))
    replace(kept)
    if loads == Counter(zip(placement.threads, placement.count, strict=True)):
        return
    if not (is_even(placement) or (by_spread and placement.spread <= spread)):
        replace(before)
