"""The number of a query's task slots: ``minPartitions=auto``.

Spark does not tell a source how many slots there are, but tasks report which executor they run on,
and how many it runs at once. Each change of the number moves boundaries of key ranges, and each
moved boundary costs entries in the checkpoint. So a change counts when it has lasted some batches.

An executor that has gone says nothing. It is known by tasks: Spark gives one to each executor
before any gets a second, so one that gets none of as many as there are slots is gone or busy.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["SlotCount", "TaskSlots"]

_BATCHES: Final = 3
_ABSENCES_MAX: Final = 3


class TaskSlots:
    """Counts the slots of the executors that tasks have reported from lately."""

    def __init__(self) -> None:
        self._count = SlotCount()
        self._absences: dict[str, int] = {}  # of each executor: batches in a row without a task
        self._ran: set[str] = set()  # the executors of this batch
        self._is_full = False  # whether this batch has a task for each slot

    @property
    def slots(self) -> int | None:
        """The number of slots that ranges are made for; None if no task has reported yet."""
        return self._count.slots

    def observe(self, executors: Iterable[str]) -> None:
        """Take note of executors that tasks of this batch have reported from."""
        self._ran.update(executors)

    def finish_batch(self, executors: Mapping[str, int]) -> None:
        """Count the slots after a batch.

        Args:
            executors: The number of slots of each executor that is known. Of these, the ones that
                the last batches with reports had no task on do not count.
        """
        if self._ran:
            for name in self._absences:
                self._absences[name] += self._is_full
            self._absences |= dict.fromkeys(self._ran, 0)
            self._ran.clear()
        self._absences = {
            name: absences
            for name, absences in self._absences.items()
            if name in executors and absences < _ABSENCES_MAX
        }
        self._count = self._count.see(sum(executors[name] for name in self._absences))

    def start_batch(self, tasks: int) -> None:
        """Take note of how many tasks the next batch has."""
        self._is_full = tasks >= (self.slots or 1)


@dataclass(frozen=True, slots=True)
class SlotCount:
    """The number of task slots that ranges are made for.

    Attributes:
        slots: The number; None if no task has reported yet.
        next_slots: A number that was seen instead in the last batches; None if there is none.
        batches: In how many batches it was seen.
    """

    slots: int | None = None
    next_slots: int | None = None
    batches: int = 0

    def see(self, slots: int) -> "SlotCount":
        """Learn from another batch.

        Args:
            slots: The slots of the executors that tasks have reported from; 0 if none has.
        """
        if slots == 0:
            return self
        if self.slots is None or slots == self.slots:
            return SlotCount(slots)
        batches = self.batches + 1 if slots == self.next_slots else 1
        if batches == _BATCHES:
            return SlotCount(slots)
        return SlotCount(self.slots, slots, batches)
