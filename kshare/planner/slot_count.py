"""How many task slots a query has: ``minPartitions=auto``.

Spark does not tell a source how many slots there are, but tasks report which executor they run on,
and how many it runs at once. Each change of the number moves boundaries of key ranges, and each
moved boundary costs entries in the checkpoint. So a change counts when it has lasted some batches.
"""

from dataclasses import dataclass
from typing import Final

__all__ = ["SlotCount"]

_BATCHES: Final = 3


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
        """What is known after another batch.

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
