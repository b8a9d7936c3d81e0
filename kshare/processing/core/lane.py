"""A lane: records that are processed one after another. A call: records that a handler is given."""

from collections import deque
from collections.abc import Hashable
from collections.abc import Set as AbstractSet
from enum import IntEnum
from typing import Any

from kshare.processing.core.record import Record

__all__ = ["Call", "Lane", "State"]


class State(IntEnum):
    """What the first record of a lane waits for."""

    READY = 0  # a free slot
    RUNNING = 1  # its handler
    WAITING = 2  # its time
    ENDING = 3  # its dead letter, or the list of parked keys


class Lane:
    """Records that are processed one after another, in offset order.

    Attributes:
        key: What they share.
        records: Those that have no outcome yet; the first ones are under way.
        state: What the first one waits for.
        running: How many of them a handler has now.
        singly: How many of the next records go one by one, as a batch with them has failed.
        due: While it waits: until when.
        error: Why the first one failed the last time; None if it did not.
        undelivered: How often its dead letter could not be delivered, or its key not be parked.
        is_exhausted: Whether all attempts of the first one have failed.
        size: Size of its records in bytes.
        given_back: The first of its records that was given back; None if none was. No later ones
            come before it comes again.
        revoked: Those that are under way, and that others got meanwhile. One that comes back to
            this process comes as another record.
    """

    __slots__ = (
        "due",
        "error",
        "given_back",
        "is_exhausted",
        "key",
        "records",
        "revoked",
        "running",
        "singly",
        "size",
        "state",
        "undelivered",
    )

    def __init__(self, key: Hashable, record: Record) -> None:
        self.key = key
        self.records = deque((record,))
        self.state = State.READY
        self.running = 0
        self.singly = 0
        self.due = 0.0
        self.error: BaseException | None = None
        self.undelivered = 0
        self.size = record.size
        self.given_back: Record | None = None
        self.is_exhausted = False
        self.revoked: AbstractSet[Record] = frozenset()


class Call:
    """Records that a handler is given at once: of one lane, or some of each of several.

    Attributes:
        lanes: The lanes, each once.
        records: The records, lane after lane; each lane's :attr:`Lane.running` says how many.
        started: When it began.
        is_over: Whether its answer counts no more.
        handle: The driver's: what cancels it.
    """

    __slots__ = ("handle", "is_over", "lanes", "records", "started")

    def __init__(self, lanes: list[Lane], records: list[Record], started: float) -> None:
        self.lanes = lanes
        self.records = records
        self.started = started
        self.is_over = False
        self.handle: Any = None
