"""A member of the small world of calls, with its user: what has to come next, and what counts.

What decides is what production has: :class:`.Ownerships`, :class:`.Right`, :class:`.Deliveries`
with :class:`.HandingOut`, and :class:`.Call`. The user knows what calls have returned, and no more.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from kshare.core.hashing import NO_HASHES, KeyRanges
from kshare.core.progress import Progress, TopicPartition
from kshare.group.core.handing_out import Call
from kshare.group.core.ownership import Ownership
from kshare.group.core.ownerships import Ownerships
from kshare.group.core.right import Right
from kshare.group.delivery_start import DeliveryStart
from kshare.group.message import Message
from kshare.group.protocol.commit_log.records import Member
from kshare.group.protocol.commit_log.start import Primary
from kshare.group.protocol.owners.actions import Action
from tests.group.core.driver import HIGH, LOW, Driver, owns, point
from tests.group.protocol.world import LawBrokenError, is_pending
from tests.support.groups import T0, T1

PARTITIONS = (T0, T1)
LOG = [LOW[0], HIGH[0], LOW[1], HIGH[0], LOW[0], HIGH[1], LOW[0], HIGH[0]]
KEYS = sorted({*LOG})
RECORDS = len(LOG)
Which: TypeAlias = "Callable[[Held], bool]"


@dataclass
class Held:
    """A record that a call has returned, and that its user has not acknowledged."""

    message: Message
    counts: bool = True  # whether its acknowledgement does: it is not to come again

    @property
    def at(self) -> tuple[TopicPartition, int]:
        return self.message.topic_partition, self.message.offset()


@dataclass
class User:
    """What a user of one partition has got, and what has to come next of each key.

    Attributes:
        hashes: What is assigned.
        start: The start that is delivered from.
        carries: Whether hashes that stay go on where they are when there is another start.
        out: Offsets of each key that begun, which do not come again.
        done: Offsets that are processed since the start, or before on hashes that stay.
        sought: Where the next start begins, and of which hashes that was asked.
    """

    hashes: KeyRanges = NO_HASHES
    start: DeliveryStart | None = None
    carries: bool = False
    out: dict[str, set[int]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    sought: tuple[int, KeyRanges] | None = None

    def assign(self, hashes: KeyRanges, *, keeps: bool) -> None:
        """Other hashes are assigned."""
        self.hashes, self.carries = hashes, keeps and bool(hashes)
        self.out = {key: out for key, out in self.out.items() if owns(hashes, key)}
        if self.sought is not None:
            stays = any(owns(self.sought[1], k) and owns(hashes, k) for k in KEYS)
            self.sought = self.sought if keeps and stays else None

    def begin(self, start: DeliveryStart) -> bool:
        """Another start is there; whether all comes again that it does not name."""
        self.start, carried = start, self.carries
        if not carried:
            self.out, self.done = {}, set()
        for key in KEYS:
            if owns(self.hashes, key) and key not in self.out:
                self.out[key] = {
                    at for at in offsets(key) if not is_pending(start.done, at, point(key))
                }
        return not carried

    def seek(self, offset: int) -> None:
        """All from an offset on comes next, and nothing before it."""
        self.out = {key: {at for at in offsets(key) if at < offset} for key in self.out}

    def get(self, message: Message) -> None:
        """A call has returned a record.

        Raises:
            LawBrokenError: Another one has to come.
        """
        key, offset = LOG[message.offset()], message.offset()
        if key not in self.out:
            raise LawBrokenError(f"{message} is of a key that has not begun")
        left = [at for at in offsets(key) if at not in self.out[key]]
        if left[:1] != [offset]:
            raise LawBrokenError(f"{message} comes instead of {left[:1]}")
        self.out[key].add(offset)


def offsets(key: str) -> list[int]:
    return [at for at, other in enumerate(LOG) if other == key]


@dataclass
class Process:
    """A member, and what its user has got and done."""

    name: str
    explicit: bool
    ownerships: Ownerships
    right: Right
    driver: Driver
    broker: str = "present"  # or away, or old
    frozen_at: float = 0.0
    asked_at: float | None = None  # a read is under way
    late: list[Member] = field(default_factory=list)  # beats that the present log has not got yet
    inbox: list[tuple[Ownership, int, Action]] = field(default_factory=list)
    answers: list[tuple[Ownership, int, Primary | None, int]] = field(default_factory=list)
    call: Call = field(default_factory=Call)
    is_open: bool = False
    target: KeyRanges | None = None  # what the group assigns next, while the rest is kept
    users: dict[TopicPartition, User] = field(
        default_factory=lambda: {tp: User() for tp in PARTITIONS}
    )
    held: list[Held] = field(default_factory=list)  # to be acknowledged
    last: list[Held] = field(default_factory=list)  # by the last call
    ever: dict[TopicPartition, set[int]] = field(
        default_factory=lambda: {tp: set() for tp in PARTITIONS}
    )
    work: tuple[dict[TopicPartition, Progress], dict[TopicPartition, DeliveryStart]] | None = None

    @property
    def hashes(self) -> KeyRanges:
        """What is assigned to it, of both partitions alike."""
        return self.users[T0].hashes

    def may_deliver(self, now: float) -> bool:
        """Whether it would hand out records."""
        return self.ownerships.fenced() is None and self.right.seconds_to_deliver(now) >= 0

    def delivers(self, partition: TopicPartition, key: str, now: float) -> bool:
        """Whether it would hand out records of a key."""
        each = self.ownerships.by_partition.get(partition)
        has_started = each is not None and each.start is not None and owns(each.owner.hashes, key)
        return has_started and self.may_deliver(now)

    # -- as the consumer does ----------------------------------------------------------------

    def assign(self, hashes: KeyRanges, *, keeps: bool, is_kept: bool = False) -> None:
        """Other hashes are assigned; what was collected goes back before.

        Args:
            hashes: The hashes.
            keeps: Whether those that stay are read on.
            is_kept: Whether the others are about to be given up, and no claim has changed.
        """
        self.give_back()
        assignment = dict.fromkeys(PARTITIONS, hashes) if hashes else {}
        if is_kept:
            self.driver.state.keep(assignment)
        else:
            self.driver.state.assign(assignment, keeps=keeps)
        self.driver.read_anew()
        for user in self.users.values():
            user.assign(hashes, keeps=keeps)
        self.void(lambda held: not owns(hashes, LOG[held.message.offset()]))

    def look(self, now: float) -> None:
        """Follow the session, as each look of a call does; what it has stopped goes back."""
        driver = self.driver
        driver.started, driver.now = self.ownerships.started(), now
        driver.may_count = self.ownerships.may_count
        driver.look(continues=not self.call.is_empty)
        driver.pass_over()
        if self.call.was_stopped(driver.state.by_partition):
            self.give_back()
        for partition, delivery in driver.state.by_partition.items():
            user = self.users[partition]
            if delivery.start != user.start and user.begin(delivery.start):
                self.void(lambda held, at=partition: held.at[0] == at)  # type: ignore[misc]
            if user.sought is not None:
                self.sought(partition, user.sought[0])
                user.sought = None

    def void(self, which: "Which") -> None:
        """Acknowledgements of some records that were returned count no more."""
        for each in (*self.held, *self.last):
            each.counts = each.counts and not which(each)

    def give_back(self) -> None:
        """What is collected is not returned."""
        for partition in self.call.give_back(self.driver.state.by_partition):
            self.driver.state.take_back(partition)
        self.driver.read_anew()

    def settle(self) -> None:
        """In implicit mode, what the calls before this one returned is processed."""
        for delivery in self.driver.state.by_partition.values():
            delivery.settle()
        if not self.explicit:
            self.processed(self.last)
        self.last = []

    def processed(self, some: Iterable[Held]) -> None:
        """Its user has processed what a call has returned, if that is not to come again."""
        for each in some:
            partition, offset = each.at
            if each.counts:
                self.users[partition].done.add(offset)
                self.ever[partition].add(offset)

    def acknowledge(self, which: int) -> None:
        """A record that a call has returned is acknowledged; it may be of a start that is over."""
        each = self.held.pop(which)
        partition, offset = each.at
        chunk, row = each.message.chunk, each.message.row
        assert int(chunk.offsets[row]) == offset
        state, rows = self.driver.state, np.array([offset], np.int64)
        state.acknowledge_rows(partition, rows, {chunk.number})
        self.processed([each])

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at an offset: what was collected goes back before."""
        self.give_back()
        self.settle()
        state, user = self.driver.state, self.users[partition]
        delivery = state.by_partition.get(partition)
        state.seek(partition, offset, self.ownerships.started())
        self.driver.read_anew()
        if delivery is not None and not delivery.is_provisional:
            self.sought(partition, offset)
        else:  # until then, what is acknowledged was before the seek
            user.sought = offset, user.hashes

    def sought(self, partition: TopicPartition, offset: int) -> None:
        """A seek is done: what it hands out again counts once that is processed."""
        self.users[partition].seek(offset)
        self.void(lambda held: held.at[0] == partition and held.at[1] >= offset)

    def pause(self, partition: TopicPartition) -> None:
        """Pause a partition, or resume it."""
        self.give_back()
        state = self.driver.state
        (state.resume if partition in state.paused else state.pause)(partition)
        self.driver.read_anew()

    # -- laws --------------------------------------------------------------------------------

    def check_return(
        self,
        messages: Iterable[Message],
        others: Iterable["Process"],
        started: Mapping[TopicPartition, DeliveryStart],
        now: float,
    ) -> None:
        """What holds when a call returns.

        Raises:
            LawBrokenError: It does not.
        """
        for message in messages:
            partition, key = message.topic_partition, LOG[message.offset()]
            user = self.users[partition]
            for other in others:
                if other.delivers(partition, key, now):
                    raise LawBrokenError(f"{message} of {self.name} is with {other.name}")
            if not owns(user.hashes, key):
                raise LawBrokenError(f"{message} is not of what is assigned")
            if partition not in started and not user.carries:
                raise LawBrokenError(f"{message} is returned without a start")
            if partition in self.driver.state.paused:
                raise LawBrokenError(f"{message} is returned, and is paused")
            user.get(message)

    def check(self, others: Iterable["Process"]) -> None:
        """What counts as processed was returned since the start, and acknowledged.

        Raises:
            LawBrokenError: It was not.
        """
        for partition, each in self.ownerships.by_partition.items():
            if each.start is None:
                continue
            user = self.users[partition]
            done = user.done if user.carries or each.start == user.start else set()
            # Late facts of former owners are true, too; and of its own that were given up.
            truths = [other.ever[partition] for other in others]
            done = done.union(*truths, self.ever[partition] if user.carries else ())
            for offset, key in enumerate(LOG):
                counts = not is_pending(each.owner.done, offset, point(key))
                if (
                    counts
                    and offset not in done
                    and is_pending(each.start.done, offset, point(key))
                ):
                    raise LawBrokenError(f"{partition}@{offset} counts as processed, and is not")
