"""Where delivery of a partition has started."""

from dataclasses import dataclass, field
from itertools import count
from typing import Self

from kshare.core.progress import Progress

__all__ = ["DeliveryStart"]

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class DeliveryStart:
    """From where a partition is delivered. Two are equal if they are the same start.

    Attributes:
        number: Its number: unique in this process, and higher than that of earlier starts.
        done: What had been processed then. Two starts may have the same.
    """

    number: int
    done: Progress = field(compare=False)

    @classmethod
    def new(cls, done: Progress) -> Self:
        """Another start than any before."""
        return cls(next(_numbers), done)
