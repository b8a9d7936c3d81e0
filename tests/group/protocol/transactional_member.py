"""A member of the small world for transactions, without brokers: what it sees, takes and gives up.

What decides is :class:`.TransactionState`, as in production. Here is what its driver tells it, and
how deliveries follow the owner.
"""

from copy import copy
from dataclasses import dataclass, field
from typing import Self

from kshare.core.progress import Progress
from kshare.group.core.transaction_state import (
    GiveUp,
    Outlook,
    Stage,
    TransactionAction,
    TransactionState,
)
from kshare.group.protocol.commit_log import commit
from kshare.group.protocol.commit_log.commit import PurgatoryState, TransactionPart
from kshare.group.protocol.commit_log.records import Block, Key
from tests.group.protocol.process import T0, Process


@dataclass
class Member(Process):
    """A process whose facts go into transactions; ``in_flight`` holds a transaction's records."""

    transactional_id: str = ""
    state: TransactionState = field(default_factory=TransactionState)
    stops: int = 0  # how often delivery has ended or begun again
    epoch: int = 0  # the last one that its producer has got
    is_read: bool = False  # the log, since it has that epoch
    number: int = 0  # of the transaction that the brokers hold; 0 if they hold nothing of it
    records: tuple[tuple[Block, ...], tuple[Key, ...]] | None = None  # to be written, as checked
    written: tuple[Block, ...] = ()  # its facts, until it is decided
    passes: bool = False  # its transaction passes over offsets that are none of its records
    incarnation: int = 0  # of the offsets that its records were handed out by
    owner_is_behind: bool = False  # it has read what its owner has not looked at
    _purgatory: tuple[tuple[object, ...], PurgatoryState] | None = None  # by what, and what it is

    def clone(self) -> Self:
        copied = super().clone()
        copied.state = copy(self.state)
        return copied

    def fingerprint(self) -> tuple[object, ...]:
        its = self.state
        return (
            *super().fingerprint(),
            *(its.stage, its.epoch is None, its.is_begun, self.epoch),
            *(its._mark == self.stops, its._starts is None),
            its.is_own(self.ownerships.started()),
            *(self.is_read, self.number, self.records, self.delivery == self.start),
            *(self.passes, self.written, self.incarnation, self.owner_is_behind),
        )

    @property
    def next_position(self) -> int:
        """Where it delivers next: from the beginning, if that is from another start."""
        return self.position if self.start == self.delivery else 0

    def refresh(self) -> None:
        """As its dispatcher: what is delivered from another start begins again."""
        if self.start != self.delivery:
            self.position, self.passes = self.next_position, False
            self.delivery, self.stops = self.start, self.stops + 1

    @property
    def has_work(self) -> bool:
        """Whether its transaction processes something."""
        return bool(self.in_flight) or self.passes

    @property
    def is_lost(self) -> bool:
        """Whether it knows that it was dropped from its group."""
        return False

    @property
    def is_disturbed(self) -> bool:
        """Whether its hashes are about to change."""
        return False


# -- what it sees ---------------------------------------------------------------------------------


def part_of(member: Member) -> TransactionPart:
    known = commit.known_progress(member.part(), member.owner.done)
    start = commit.first_new_offset(processed(member), known)
    return TransactionPart(start, member.hashes, member.hashes, known)


def processed(member: Member) -> Progress:
    """What is processed, with the records of the transaction."""
    done = member.owner.done
    return done.commit(done.pending_of(member.position, member.hashes))


def is_alive(member: Member) -> bool:
    """Whether nobody can have taken over its hashes who is sure that it is dead."""
    return member.is_member


def outlook(member: Member) -> Outlook:
    """What its transaction sees; reads count from the epoch on, so that states are few."""
    starts = member.ownerships.started()
    found = purgatory_of(member) if starts else PurgatoryState.OPEN
    return Outlook(
        starts,
        found,
        float(member.is_read),
        is_alive=is_alive(member),
        is_lost=member.is_lost,
        is_disturbed=member.is_disturbed,
    )


def action_of(member: Member) -> TransactionAction | GiveUp:
    """What its transaction wants next. It waits for ever: that it gives up may happen any time."""
    if member.state.stage is Stage.COMMITTING:
        return member.state.next_action(outlook(member), 0.0)
    return member.state.recovery


def purgatory_of(member: Member) -> PurgatoryState:
    """Whether the purgatory is open for a member; asked again once something has changed."""
    by = (member.log.end, member.owner.done, member.position, member.hashes)
    if member._purgatory is None or member._purgatory[0] != by:
        member._purgatory = by, commit.purgatory_state([part_of(member)], "stable")
    return member._purgatory[1]


# -- what it takes, and gives up -------------------------------------------------------------------


def may_take(member: Member) -> bool:
    """Whether what it is handed out is of its transaction, or of one that it begins."""
    may_begin = member.state.is_settled or member.state.may_take
    return member.start is not None and may_begin


def ensure_open(member: Member) -> None:
    """See where it is delivered from, and begin a transaction if there is none."""
    member.refresh()
    assert member.owner.resolved is not None
    member.incarnation = member.owner.resolved.incarnation
    if member.state.is_settled:
        member.state.begin(member.stops, 0)


def ask_commit(member: Member) -> None:
    """The block of its user ends."""
    member.state.ask_commit(member.stops, {T0: member.delivery}, 0.0, has_news=True)


def give_up(member: Member, *, is_decided: bool) -> None:
    """As the driver does: it is in doubt until an answer says otherwise."""
    member.state.abort()
    if is_decided:
        member.state.decided()
    if member.state.recovery is TransactionAction.REWIND:
        rewind(member)


def rewind(member: Member) -> None:
    """After an abort: the positions go back to what the log says."""
    member.in_flight, member.records, member.passes = [], None, False
    member.number, member.written = 0, ()
    for each in member.ownerships.by_partition.values():
        each.rewind()
    member.refresh()
    member.state.rewound()
