"""What an owner wants to be done: the caller does it, and says so."""

from dataclasses import dataclass
from typing import TypeAlias

from kshare.group.protocol.commit_log.records import Key, Record
from kshare.group.protocol.commit_log.start import Anchor

__all__ = [
    "Action",
    "Append",
    "Delete",
    "Fence",
    "FetchPrimary",
    "ResolveInitial",
    "Unblock",
    "Write",
    "WritePrimary",
]


@dataclass(frozen=True, slots=True)
class Write:
    """Append records to the log, in this order."""

    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """Append tombstones to the log. Nobody waits for them."""

    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Fence:
    """Shut out the producers of transactional ids, then call :meth:`.Owner.former_fenced`.

    That is done only when no transaction of theirs is under way any more, in any partition.
    """

    transactional_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Unblock:
    """Abort the transactions of these ids, which may hide the own claim. Nobody waits for it."""

    transactional_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class FetchPrimary:
    """Fetch the primary offset and the log's bounds, then call :meth:`.Owner.primary_read`.

    In a group that keeps no log, the bounds are 0 and 0.
    """


@dataclass(frozen=True, slots=True)
class ResolveInitial:
    """Find what ``auto.offset.reset`` means, then call :meth:`.Owner.initial_found`."""


@dataclass(frozen=True, slots=True)
class WritePrimary:
    """Commit a primary offset with its anchor, then call :meth:`.Owner.primary_written`.

    Attributes:
        offset: The offset.
        anchor: Ties it to the log; None if nothing does.
        leader_epoch: Leader epoch of the last record before it; None if it is not known.
    """

    offset: int
    anchor: Anchor | None
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Append:
    """Append a record, or a tombstone; if that fails, call :meth:`.Cooperator.not_appended`.

    Nothing waits for it, and it waits for no other action.
    """

    key: Key
    record: Record | None = None


Action: TypeAlias = (
    Write | Delete | Append | Fence | Unblock | FetchPrimary | ResolveInitial | WritePrimary
)
