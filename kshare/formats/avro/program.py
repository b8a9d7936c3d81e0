"""The steps of a decoder under construction, and what is said of each if a record is bad there.

The kernel's side is :mod:`kshare.read.decode.avro_step`.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kshare.read.decode import avro_step
from kshare.read.decode.layout import STEP

__all__ = ["Incompatible", "Program"]

_MOST_STEPS: Final = 1 << 16  # of one writer: schemas whose records repeat each other grow fast


class Incompatible(Exception):  # noqa: N818 - it is no error of a program
    """A writer's values are none of the reader's.

    Args:
        field: The dotted path; "" for the whole.
        reason: The rest of a sentence about the field.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason


class Program:
    """Steps, of all writers, and where each writer's begin.

    Attributes:
        entries: The first step of each writer.
        steps: Of each step the fields of STEP.
        places: Of each step the dotted path of its field.
        details: Of some steps what a fault there is about: a reason, symbols, a type.
        jumps: The steps that unions choose of.
        constants: Defaults, symbols, and limits of decimals.
    """

    def __init__(self) -> None:
        self.entries: list[int] = []
        self.steps: list[list[int]] = []
        self.places: list[str] = []
        self.details: dict[int, Any] = {}
        self.jumps: list[int] = []
        self.constants = bytearray()

    @property
    def next(self) -> int:
        """The number of the step that is added next."""
        return len(self.steps)

    def begin(self) -> None:
        """Begin a writer's steps."""
        self.entries.append(self.next)

    def add(
        self,
        operation: int,
        field: str,
        node: int = 0,
        one: int = 0,
        two: int = 0,
        detail: Any = None,
    ) -> int:
        """Add a step, which the next one follows.

        Args:
            operation: What it does.
            field: The dotted path of its field.
            node: The node that it appends to.
            one: What that is depends on the operation.
            two: The same.
            detail: What a fault there is about.

        Returns:
            Its number.

        Raises:
            Incompatible: A writer has more steps than any schema needs.
        """
        number = self.next
        if number - self.entries[-1] >= _MOST_STEPS:
            raise Incompatible("", "has a schema of too many fields")
        self.steps.append([operation, node, number + 1, one, two])
        self.places.append(field)
        if detail is not None:
            self.details[number] = detail
        return number

    def constant(self, data: bytes) -> int:
        """Keep some bytes; return their place."""
        self.constants += data
        return len(self.constants) - len(data)

    def follow(self, number: int, then: int) -> None:
        """Say which step follows another."""
        self.steps[number][2] = then

    def set_one(self, number: int, one: int) -> None:
        """Say what ``one`` of a step is."""
        self.steps[number][3] = one

    def cut(self, number: int) -> None:
        """Forget the steps from a number on."""
        for gone in range(number, self.next):
            self.details.pop(gone, None)
        del self.steps[number:], self.places[number:]

    def refuse(self, error: Incompatible) -> None:
        """Add a step at which a record is bad."""
        self.add(avro_step.REFUSE, error.field, detail=error.reason)

    def straighten(self, first: int, first_jump: int) -> None:
        """Let steps, and unions, lead to where jumps lead, from these numbers on."""
        for step in self.steps[first:]:
            step[2] = self._led(step[2])
            if step[0] in (avro_step.ITEM, avro_step.CALL):
                step[3] = self._led(step[3])
        for place in range(first_jump, len(self.jumps)):
            self.jumps[place] = self._led(self.jumps[place])

    def _led(self, number: int) -> int:
        while number < self.next and self.steps[number][0] == avro_step.JUMP:
            number = self.steps[number][2]
        return number

    def table(self) -> npt.NDArray[np.void]:
        """The steps as the kernel sees them."""
        return np.array([tuple(step) for step in self.steps], STEP)
