"""Tasks: what is sent to the executors; plain data, which pickles."""

from dataclasses import dataclass, field
from typing import NamedTuple

from kshare.core.fetch_groups import FetchGroup
from kshare.core.progress import Slice

__all__ = ["PlannedSlice", "Task", "Ticket", "TicketId"]


class TicketId(NamedTuple):
    """A ticket of a batch."""

    batch: str
    number: int


@dataclass(frozen=True, slots=True)
class Ticket:
    """The data that a task needs to report on a slice.

    Attributes:
        host: The address that the planner listens on.
        port: The port; 0 if it does not listen, and the task then reports nothing.
        key: The planner's secret.
        batch: The name of the batch.
        task: The number of the ticket within the batch.
        hold: Whether the connection should stay open as long as the task's process lives, so that
            the planner sees when the task has ended, and not only its reader.
    """

    host: str
    port: int
    key: bytes = field(repr=False)
    batch: str
    task: int
    hold: bool = False

    @property
    def id(self) -> TicketId:
        """The batch and the number."""
        return TicketId(self.batch, self.task)


@dataclass(frozen=True, slots=True)
class PlannedSlice:
    """A slice, and how it is read.

    Attributes:
        slice: What is read.
        max_records: Maximum number of records to read; None for none.
        ticket: How its task reports where reading ended; None if the planner need not know.
        fetch_group: The tasks that read the same offsets, with which it shares what it fetches;
            None if there are none.
    """

    slice: Slice
    max_records: int | None = None
    ticket: Ticket | None = None
    fetch_group: FetchGroup | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a batch.

    Attributes:
        slices: What it reads; at least one.
    """

    slices: tuple[PlannedSlice, ...]
