"""The order in which Java's hash tables iterate over tasks; some of Kafka's decisions depend on it.

Guarantees: a permutation; equal arguments give equal orders. It is Java's for tasks of whole
partitions, as long as no table has a bucket of more than eight; shared tasks follow the hash of
their partition.
Cost: a sort.

Source: java.util.HashMap of OpenJDK 17; the hash is that of Kafka's TaskId.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from kshare.assignment.interface.task_id import TaskId

__all__ = ["order_when_copied", "order_when_grown"]

_SMALLEST: Final = 16


def order_when_grown(numbers: Sequence[int], tasks: Sequence[TaskId]) -> list[int]:
    """Return the order of a table that was filled one by one.

    Args:
        numbers: The tasks in the table, in the order in which they were added.
        tasks: The ids of all tasks, by number.
    """
    buckets = _SMALLEST
    while len(numbers) * 4 > buckets * 3:
        buckets *= 2
    return _sorted(numbers, tasks, buckets)


def order_when_copied(numbers: Sequence[int], tasks: Sequence[TaskId]) -> list[int]:
    """Return the order of a table that was copied from a collection: it starts out larger.

    Args:
        numbers: The tasks in the table, in the order in which they were added.
        tasks: The ids of all tasks, by number.
    """
    buckets = _SMALLEST
    while buckets < len(numbers) * 4 // 3 + 1:
        buckets *= 2
    return _sorted(numbers, tasks, buckets)


def _sorted(numbers: Iterable[int], tasks: Sequence[TaskId], buckets: int) -> list[int]:
    def bucket(number: int) -> int:
        task = tasks[number]
        code = (29791 + 961 * task[0] + 31 * task[1]) & 0xFFFFFFFF
        return (code ^ code >> 16) & (buckets - 1)

    return sorted(numbers, key=bucket)
