"""The ids of tasks and processes, and how they sort.

Guarantees: ``TaskId.parse(str(task)) == task`` and ``ProcessId(str(process)) == process``. Both
sort as in Kafka, so that an assignor that goes through them in order decides as Kafka's does.
Cost: both are tuples, so that comparing and hashing them runs no Python code.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, Self
from uuid import UUID

from kshare.core.hashing import HashRange

__all__ = ["ProcessId", "SortedTaskIds", "TaskId"]

_TASK: Final = re.compile(r"(\d+)_(\d+)(?:-\[(\d+),(\d+)\))?", re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)


class TaskId(tuple[int, ...]):
    """A task: a partition of a subtopology, or a key range of it (a shared task).

    Sorts by subtopology, partition, then range, all as numbers; the task of a whole partition comes
    before its shared tasks. The range of all key hashes is normalised to None, so that equal tasks
    are equal.
    """

    __slots__ = ()

    def __new__(cls, subtopology: int, partition: int, key_range: HashRange | None = None) -> Self:
        """Make a task's id.

        Args:
            subtopology: Number of the subtopology, from 0.
            partition: Number of the partition, from 0.
            key_range: Key hashes that the task processes; None: all.

        Raises:
            ValueError: A number is below 0.
        """
        if subtopology < 0 or partition < 0:
            raise ValueError(f"not a task: {subtopology}_{partition}; wanted numbers of 0 or more")
        if key_range is None or key_range.is_whole:
            return super().__new__(cls, (subtopology, partition))
        return super().__new__(cls, (subtopology, partition, key_range.lo, key_range.hi))

    def __getnewargs__(self) -> tuple[int, int, HashRange | None]:
        return self[0], self[1], self.key_range

    @property
    def subtopology(self) -> int:
        """The number of the subtopology."""
        return self[0]

    @property
    def partition(self) -> int:
        """The number of the partition."""
        return self[1]

    @property
    def key_range(self) -> HashRange | None:
        """The key hashes of a shared task; None: all of them."""
        return HashRange(self[2], self[3]) if len(self) == 4 else None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``0_1`` or ``0_1-[lo,hi)``.

        Raises:
            ValueError: It is neither.
        """
        match = _TASK.fullmatch(text)
        if match is None:
            raise ValueError(f"not a task: {text!r}; wanted 0_1 or 0_1-[lo,hi)")
        subtopology, partition, lo, hi = match.groups()
        hashes = None if lo is None else HashRange(int(lo), int(hi))
        return cls(int(subtopology), int(partition), hashes)

    def __str__(self) -> str:
        if len(self) == 2:
            return f"{self[0]}_{self[1]}"
        return f"{self[0]}_{self[1]}-[{self[2]},{self[3]})"

    def __repr__(self) -> str:
        return f"TaskId({self})"


class SortedTaskIds(frozenset[TaskId]):
    """A frozenset of tasks that iterates in ascending order: the KIP's ``SortedSet<TaskId>``.

    Equal to any frozenset with the same tasks. What is computed from it with ``&``, ``|`` and
    ``-`` is a plain frozenset.
    """

    __slots__ = ()

    def __iter__(self) -> Iterator[TaskId]:
        return iter(sorted(super().__iter__()))

    def __reduce__(self) -> tuple[type[Self], tuple[tuple[TaskId, ...]]]:
        return type(self), (tuple(self),)


class ProcessId(tuple[Any, ...]):
    """A process: Kafka's are UUIDs; Spark's executors have names like ``driver`` or ``3``.

    UUIDs sort like Java's ``UUID.compareTo``, by two signed halves of 64 bits, so ``8...`` comes
    before ``0...``. Numbers come after all UUIDs, in numeric order, and other names last.
    """

    __slots__ = ()

    def __new__(cls, id: UUID | str) -> Self:  # noqa: A002 - the KIP's name
        """Make a process's id.

        Args:
            id: A UUID, its text in any case, or a name.

        Raises:
            ValueError: The name is empty.
        """
        name = str(id)
        if not name:
            raise ValueError("a process needs a name")
        if _UUID.fullmatch(name):
            digits = name.replace("-", "")
            return super().__new__(
                cls, (0, _signed(digits[:16]), _signed(digits[16:]), name.lower())
            )
        if _NUMBER.fullmatch(name):
            return super().__new__(cls, (1, int(name), 0, name))
        return super().__new__(cls, (2, 0, 0, name))

    def __getnewargs__(self) -> tuple[str]:
        return (str(self),)

    @property
    def id(self) -> UUID | str:
        """The UUID, or the name if it is none."""
        if self[0]:
            return str(self)
        return UUID(str(self))

    def __str__(self) -> str:
        name: str = self[3]
        return name

    def __repr__(self) -> str:
        return f"ProcessId({self})"


def _signed(digits: str) -> int:
    number = int(digits, 16)
    return number - (1 << 64) if number >> 63 else number
