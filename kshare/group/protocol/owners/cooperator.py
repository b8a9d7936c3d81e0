"""A member's part in a partition without key order: leases of offsets go to whoever is free.

::

    want --> Lease written --> read back --> held: delivered --> processed, committed --> deleted
                 |                  |
                 |                  +-- an earlier lease has it: deleted, and wanted again
                 +-- failed: wanted again, under another number

A :class:`Cooperator` starts, commits and is fenced as any :class:`.Owner`. Its claim is of all key
hashes, and *shared*: shared claims do not exclude each other. What it may deliver are the offsets
that its leases have (:func:`.holdings`), less what the log says is processed.

Guarantees: no two living members have an offset, if members whose claims others delete deliver no
more then. That holds of a member that the group's coordinator has dropped (a later epoch does not
list it), and of a silent one, if it delivers only while its signs of life are surely read. An
offset that is not processed is held by a living member, or is free, or becomes so when its holder
is dead.

A lease counts while its author's claim is in the log. Of leases that count, the earlier one has the
offsets that are in both: the order of the log decides. So a claim's tombstone is what sets the
leases of a dead member free, and what ignores those that it writes later.

Who has an offset is a function of the leases that name it and of their authors' claims. A lease is
deleted only when the log says that all it has is processed, or by its author, or when it counts no
more. So compaction changes nobody's offsets.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from kshare.core.offsets import Bounds, complement, subtract, union
from kshare.core.progress import Progress
from kshare.group.protocol.commit_log.commit import stable_offset
from kshare.group.protocol.commit_log.log import PartitionLog, PlacedClaim
from kshare.group.protocol.commit_log.placement import UNPLACED, Placement
from kshare.group.protocol.commit_log.records import Key, Lease, key_of
from kshare.group.protocol.owners.actions import Action, Append
from kshare.group.protocol.owners.leases import (
    Share,
    counts,
    holdings,
    next_lease,
    processed_offsets,
)
from kshare.group.protocol.owners.owner import Owner, Phase
from kshare.group.protocol.owners.takeover import session_of

__all__ = ["Cooperator"]

_NO_END: Final = 1 << 62


@dataclass(slots=True)
class Cooperator(Owner):
    """A member's part in a partition that is shared by leases of offsets.

    Raises:
        ValueError: The claim is not marked as shared.

    Attributes:
        lease_records: Number of offsets to lease at a time.
        silent: Names of the claims of members that have given no sign of life for so long that they
            deliver no more.
        share: What it may deliver; None while it does not run.
        leased: What each of its leases has and is not processed, by the leases' numbers, ascending.
        asked: Number of the lease that it has written and not read back; None if there is none.
    """

    lease_records: int = 1_000
    silent: frozenset[str] = frozenset()
    share: Share | None = None
    leased: dict[int, Bounds] = field(default_factory=dict)
    asked: int | None = None
    _is_stable_behind: bool = False
    _number: int = 0  # of the last lease
    _placement_asked: Placement = UNPLACED  # of the lease that is asked for
    _data: tuple[int, int] | None = None  # a lease is wanted: the bounds of the partition's log
    _given_up: set[int] = field(default_factory=set)  # leases that may be deleted at any time
    _appended: set[Key] = field(default_factory=set)  # tombstones that are not read back
    _looked_at: object = None  # what the share was made of

    def __post_init__(self) -> None:
        if not self.claim.shared:
            raise ValueError(
                f"the claim of {self.claim_name} is not shared: it would exclude others"
            )

    def keys(self, log: PartitionLog) -> list[Key]:
        """The keys of its claim and of its leases."""
        return Owner.keys(self, log) + [
            Key(log.incarnation, "lease", self.partition, detail)
            for detail in log.leases
            if detail[0] == self.claim_name
        ]

    def must_claim_anew(self, log: PartitionLog) -> bool:  # noqa: ARG002 - as the base has it
        """False: with leases, a claim that cannot be read ends the session."""
        return False

    # -- events ----------------------------------------------------------------------------

    def want(self, first: int, end: int) -> None:
        """More offsets are wanted, unless a lease is under way.

        Args:
            first: The first offset of the partition's log.
            end: The end of the partition's log.
        """
        if self.share is not None and self.asked is None:
            self._data = (first, end)

    def expire(self, sessions: Collection[str], log: PartitionLog) -> None:
        """These sessions deliver no more: their claims are silent."""
        self.silent = frozenset(name for name in log.claims if session_of(name) in sessions)

    def appended(self, key: Key, position: int) -> None:
        """Brokers have taken a record.

        Args:
            key: Its key.
            position: Its log offset.
        """
        if self._is_asked(key):
            self._placement_asked, self._looked_at = self._placement_asked.at(position), None

    def not_appended(self, key: Key) -> None:
        """A record could not be written, as far as it is known."""
        self._appended.discard(key)
        self._looked_at = None
        if self._is_asked(key):
            self.asked = None  # should it be in the log, it has what it has

    def _is_asked(self, key: Key) -> bool:
        return key.kind == "lease" and key.detail == (self.claim_name, self.asked)

    def log_lost(self, topic_id: str = "") -> None:
        """The log was deleted or truncated, and all leases with it."""
        # Not super(): a dataclass with slots is made anew, and the method knows the first one.
        Owner.log_lost(self, topic_id)
        self._stop()
        self._appended.clear()

    def stable(self, log: PartitionLog) -> int:
        """The stable offset that the log names, or that follows from its facts."""
        named = stable_offset(log, self.resolved)
        return named if self.share is None else max(named, self.share.done.stable)

    def is_stable_behind(self, log: PartitionLog) -> bool:  # noqa: ARG002 - as far as it was looked at
        """True if it is the lead, and the log does not name the stable offset of its facts."""
        return self._is_stable_behind

    # -- decisions -------------------------------------------------------------------------

    def look(self, log: PartitionLog) -> None:
        """Move on by what the log says."""
        Owner.look(self, log)
        if self.phase is not Phase.RUNNING:
            self._stop()

    def actions(self, log: PartitionLog, log_end: int) -> tuple[Action, ...]:
        """What to do next, as :meth:`.Owner.actions`."""
        actions = Owner.actions(self, log, log_end)
        if self.phase is not Phase.RUNNING:
            return actions
        looks_at = (log_end, log.incarnation, self.epoch, self.peers, self.silent)
        if looks_at == self._looked_at and self._data is None:
            return actions
        self._looked_at = looks_at
        return (*actions, *self._bury(log), *self._cooperate(log, log_end))

    def _done_at(self, start: Progress, known: Progress | None) -> Progress:
        """What others have processed, they have written: it writes what is its own."""
        return Progress.at(start.stable) if known is None else known.advance(start.stable)

    def _bury(self, log: PartitionLog) -> Iterator[Append]:
        """Delete the claims of the dead: what they have leased is free then."""
        for name, placed in log.claims.items():
            if placed.claim.shared and self._is_dead(name, placed):
                yield from self._deleted(Key(0, "claim", self.partition, (name,)))

    def _is_dead(self, name: str, placed: PlacedClaim) -> bool:
        """True if a member delivers no more: silent, or dropped before the own epoch began."""
        session = session_of(name)
        if session == session_of(self.claim_name):
            return name != self.claim_name  # of before
        was_dropped = (
            self.epoch is not None
            and self.peers is not None
            and placed.claim.self_fencing
            and placed.age[0] < self.epoch
            and session not in self.peers
        )
        return was_dropped or name in self.silent

    def _cooperate(self, log: PartitionLog, log_end: int) -> Iterator[Append]:
        assert self.resolved is not None
        done = log.progress(self.resolved.progress.stable)
        processed, held = processed_offsets(done), holdings(log)
        mine = {
            number: subtract(bounds, processed)
            for (author, number), bounds in held.items()
            if author == self.claim_name
        }
        # Or it was deleted before it was read: another one is wanted then, under another number.
        if self.asked in mine or self._placement_asked.is_passed(log_end):
            self.asked = None
        self.leased = {number: bounds for number, bounds in sorted(mine.items()) if bounds}
        yield from self._clear(log, mine)
        taken = union([processed, *held.values()])
        yield from self._lease(log, log_end, taken)
        has = union(bounds for number, bounds in mine.items() if number not in self._given_up)
        free = complement(taken, 0, _NO_END)[0]
        share = Share(has, done, free, self.asked is not None)
        if share != self.share:
            self.share = share
        said = log.stable.offset if log.stable is not None else self.resolved.progress.stable
        self._is_stable_behind = log.lead == self.claim_name and done.stable > said

    def _clear(self, log: PartitionLog, mine: dict[int, Bounds]) -> Iterator[Append]:
        """Delete own leases that have nothing, and, as the lead, those that do not count."""
        self._given_up |= {number for number, bounds in mine.items() if not bounds}
        read = {key for key in self._appended if not _is_in(log, key)}
        self._appended -= read
        self._given_up -= {key.detail[1] for key in read if key.detail[0] == self.claim_name}
        is_lead = log.lead == self.claim_name
        for author, number in log.leases:
            is_over = author == self.claim_name and number in self._given_up
            if is_over or (is_lead and not counts(log, author)):
                key = Key(log.incarnation, "lease", self.partition, (author, number))
                yield from self._deleted(key)

    def _lease(self, log: PartitionLog, log_end: int, taken: Bounds) -> Iterator[Append]:
        """Write the lease that is wanted, if something is free."""
        data, self._data = self._data, None
        if data is None or self.asked is not None:
            return
        if self.claim_name not in log.claims:  # it cannot be read: its leases do not count
            return
        first, end = data
        members = sum(placed.claim.shared for placed in log.claims.values())
        offsets = next_lease(complement(taken, 0, end), first, self.lease_records, members)
        if offsets is not None:
            self._number += 1
            self.asked, self._placement_asked = self._number, Placement(log_end)
            lease = Lease(self.partition, log.incarnation, self.claim_name, self._number, offsets)
            yield Append(key_of(lease), lease)

    def _deleted(self, key: Key) -> Iterator[Append]:
        if key not in self._appended:
            self._appended.add(key)
            yield Append(key)

    def _stop(self) -> None:
        self.share, self._data, self._looked_at = None, None, None
        self.leased = {}
        self.asked, self._is_stable_behind = None, False


def _is_in(log: PartitionLog, key: Key) -> bool:
    """True if the log holds a claim, or a lease of its incarnation."""
    if key.kind == "claim":
        return key.detail[0] in log.claims
    return key.incarnation == log.incarnation and key.detail in log.leases
