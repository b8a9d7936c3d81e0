"""The tasks of one partition that share what they fetch, as a host's index knows them."""

from dataclasses import dataclass, field
from typing import NamedTuple

from kshare.core.tasks import SharedRange

__all__ = ["Chunk", "Claim", "Group", "GroupKey", "LostGroupError", "Owner"]


class Owner(NamedTuple):
    """A process.

    Attributes:
        pid: Its number.
        birth: When it started, in the kernel's ticks, because numbers are used again.
    """

    pid: int
    birth: int


class GroupKey(NamedTuple):
    """The key of a group.

    Attributes:
        query: Random name of the query run.
        batch: Name of the batch.
        number: Number of the group within its partition.
        topic: The topic.
        partition: The partition.
    """

    query: str
    batch: str
    number: int
    topic: str
    partition: int


class LostGroupError(LookupError):
    """The index does not know this group, or no longer."""


class Chunk(NamedTuple):
    """The content of one Fetch response, in an open file without a name.

    Attributes:
        name: A random name, which is in the file's header too.
        start: First offset that the chunk answers for.
        end: The offset after the last one.
        size: Size of the file, in bytes.
        owner: The process that holds the file open.
        handle: The file's descriptor in that process.
        device: The file's device.
        inode: The file's inode.
        rolling: Whether it gives way to newer ones.
    """

    name: str
    start: int
    end: int
    size: int
    owner: Owner
    handle: int
    device: int
    inode: int
    rolling: bool = False


class Claim(NamedTuple):
    """A task fetches what begins at ``start``, and will probably get all below ``end``."""

    number: int
    owner: Owner
    start: int
    end: int


@dataclass(slots=True)
class Group:
    """The tasks of one partition in one batch.

    Attributes:
        ranges: The offsets that each reads, in the order of their numbers.
        touched: When a task last began or ended, in seconds of the host's clock.
        positions: How far each is, by number; those that did not begin are missing.
        members: The processes of the tasks that run now, by number.
        claims: What is being fetched.
    """

    ranges: tuple[SharedRange, ...]
    touched: int = 0
    positions: dict[int, int] = field(default_factory=dict)
    members: dict[int, Owner] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)

    def is_wanted(self, start: int, end: int, *, except_for: int | None = None) -> bool:
        """True if a task may still want some of these offsets."""
        first = 0
        for low, high, count in self.ranges:
            if low < end and start < high:
                bound = min(end, high)
                for number in range(first, first + count):
                    if number != except_for and self.positions.get(number, low) < bound:
                        return True
            first += count
        return False

    @property
    def is_done(self) -> bool:
        """True if no task wants anything more."""
        return not self.is_wanted(0, 1 << 63)

    def end_of(self, number: int) -> int:
        """The offset after the last one that a task reads."""
        first = 0
        for _, high, count in self.ranges:
            first += count
            if number < first:
                return high
        raise LostGroupError(number)
