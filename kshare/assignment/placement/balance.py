"""Even loads: tasks dealt in turn, and moved while that improves the balance.

Guarantees: no move makes the balance of two processes worse; no task is lost, and no process gets
a second copy of one.
Cost: evening out looks at each pair of processes until nothing moves; the rest is one step of a
heap for each task.

The rules are those of Kafka Streams' high-availability assignor.
"""

from collections.abc import Callable, Sequence

from kshare.assignment.placement.placement import LeastLoaded, Placement

__all__ = ["deal", "even_out", "is_even", "place_by_active_load"]


def deal(placement: Placement, tasks: Sequence[int]) -> None:
    """Deal active tasks to all processes in turn."""
    processes = len(placement.threads)
    for turn, task in enumerate(tasks):
        placement.add_active(turn % processes, task)


def place_by_active_load(placement: Placement, tasks: Sequence[int]) -> None:
    """Give each task to the process with the fewest active tasks a thread."""
    active = [len(held) for held in placement.active]
    loads = [count / threads for count, threads in zip(active, placement.threads, strict=True)]
    queue = LeastLoaded(loads)
    for task in tasks:
        process = queue.first()
        placement.add_active(process, task)
        active[process] += 1
        queue.change_first(active[process] / placement.threads[process])


def even_out(
    placement: Placement,
    held: Sequence[set[int]],
    move: Callable[[int, int, int], None],
    is_allowed: Callable[[int, int], bool] = lambda _source, _target: True,
) -> None:
    """Move tasks from loaded to less loaded processes while the skew of the two shrinks.

    Args:
        placement: The placement, for the loads.
        held: The tasks of each process that may move.
        move: Moves a task: task, source, target.
        is_allowed: Whether tasks may go from a source to a target.
    """
    processes = range(len(placement.threads))
    load = placement.load
    is_moving = True
    while is_moving:
        is_moving = False
        for source in processes:
            for target in processes:
                if load[source] <= load[target] or not _improves(placement, source, target):
                    continue
                if not is_allowed(source, target):
                    continue
                for task in sorted(held[source]):
                    if not _improves(placement, source, target):
                        break
                    if not placement.has(target, task):
                        move(task, source, target)
                        is_moving = True


def is_even(placement: Placement) -> bool:
    """Return whether no single task would make the skew of two processes smaller by moving."""
    processes, load = range(len(placement.threads)), placement.load
    return not any(
        load[source] > load[target] and _improves(placement, source, target)
        for source in processes
        for target in processes
    )


def _improves(placement: Placement, source: int, target: int) -> bool:
    """True if moving one task makes the skew smaller without inverting it."""
    count, threads, load = placement.count, placement.threads, placement.load
    skew = load[source] - load[target]
    after = (count[source] - 1.0) / threads[source] - (count[target] + 1.0) / threads[target]
    return 0 <= after < skew
