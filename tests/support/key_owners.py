"""Who had a key when: the verdict over what the processes of a group have delivered.

A process *holds* a key from when it is assigned the key's hash to when it is assigned it again. A
process without callbacks holds each key that it delivers once, for as long as it lives.

::

    A   assigned ---- 5 - 7 ----------- X -- assigned -- 12
    B            assigned --- 7 - 9 ---------- 9' -          X: B has begun, and A goes on
                                                             9': in one holding, offsets ascend

Guarantees: a history has no fault if and only if, for each key, the deliveries of each holding
follow one another with none of another holding between them, and ascend strictly; none comes after
the process has said that the hash is revoked or lost; and no other process has delivered the key
since the holding began. So what was not committed at a kill may come again, in order, at the
successor. One record is excused after each SIGCONT, and after the beginning of a close: the one in
hand.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from kshare.core.hashing import HashRange, key_hash

__all__ = ["Delivery", "Events", "OwnerChange", "key_owner_faults"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A record that was handed out; times are in ns, of a clock that all processes share."""

    time: int
    partition: int
    offset: int
    key: bytes


@dataclass(frozen=True, slots=True)
class OwnerChange:
    """A callback.

    Attributes:
        time: When it was called.
        is_gain: Whether the hashes were assigned; else they were revoked or lost.
        hashes: By partition; empty: all of them.
    """

    time: int
    is_gain: bool
    hashes: Mapping[int, tuple[HashRange, ...]]

    def has(self, partition: int, key_hash: int) -> bool:
        """Whether it is about this hash."""
        if partition not in self.hashes:
            return False
        parts = self.hashes[partition]
        return not parts or any(key_hash in part for part in parts)


@dataclass(frozen=True, slots=True)
class Events:
    """What happened to one process.

    Attributes:
        lines: What it has written, in its own order.
        resumed: When it went on after it was stopped.
        closing: When a signal handler began to close it, amid its loop.
        has_callbacks: Whether it writes what it is assigned; else it was given all at its start.
    """

    lines: Sequence[Delivery | OwnerChange]
    resumed: Sequence[int] = ()
    closing: Sequence[int] = ()
    has_callbacks: bool = True


_ALWAYS: Final = -1


@dataclass(frozen=True, slots=True)
class _Held:
    """A delivery, with the holding that it belongs to: the time of the assignment."""

    delivery: Delivery
    process: str
    since: int | None  # None: the process does not own the hash


@dataclass(slots=True)
class _Current:
    """Whoever holds a key, as its deliveries are followed."""

    holding: tuple[str, int | None] | None = None
    last: Delivery | None = None
    ended: set[tuple[str, int | None]] = field(default_factory=set)


def key_owner_faults(processes: Mapping[str, Events], log_losses: Sequence[int] = ()) -> list[str]:
    """Name each delivery that shows that a key had two owners, or that its order was broken.

    Args:
        processes: What happened to each process, by its name.
        log_losses: When the group's log was deleted or truncated. After each, a process may begin
            a key once again: what was not committed comes again, in order. It may do so when the
            next loss has come already.
    """
    by_key: dict[tuple[int, bytes], list[_Held]] = {}
    losses = {
        name: [loss for loss in log_losses if any(line.time < loss for line in events.lines[:1])]
        for name, events in processes.items()
    }
    for name, events in processes.items():
        for held in _holdings(name, events):
            if held.delivery.key:  # records without a key have no order
                by_key.setdefault((held.delivery.partition, held.delivery.key), []).append(held)
    return [
        fault
        for rows in by_key.values()
        for fault in _faults(sorted(rows, key=lambda row: row.delivery.time), losses)
    ]


def _holdings(name: str, events: Events) -> Iterator[_Held]:
    """What a process has delivered but what is excused."""
    changes: list[OwnerChange] = []
    since: dict[tuple[int, bytes], int | None] = {}  # as of the last change
    in_hand = _in_hand(events)
    for line in events.lines:
        if isinstance(line, OwnerChange):
            changes.append(line)
            since.clear()
        elif line not in in_hand:
            key = line.partition, line.key
            if key not in since:
                since[key] = _since(changes, line) if events.has_callbacks else _ALWAYS
            yield _Held(line, name, since[key])


def _in_hand(events: Events) -> set[Delivery]:
    """The records that a process had in hand when it was interrupted.

    What it writes next after it was stopped; a handler that closes it writes callbacks before that.
    """
    found = set()
    for time in events.resumed:
        following = next((line for line in events.lines if line.time > time), None)
        if isinstance(following, Delivery):
            found.add(following)
    for time in events.closing:
        later = (line for line in events.lines if line.time > time and isinstance(line, Delivery))
        found.update(islice(later, 1))
    return found


def _since(changes: Sequence[OwnerChange], line: Delivery) -> int | None:
    hashed = key_hash(line.key, line.offset)
    for change in reversed(changes):
        if change.has(line.partition, hashed):
            return change.time if change.is_gain else None
    return None


def _faults(rows: Sequence[_Held], losses: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """The faults of one key.

    Args:
        rows: Its deliveries, in the order of time.
        losses: When the group's log was lost while a process lived, by the process.
    """
    now = _Current()
    begun_again: Counter[str] = Counter()  # by process
    for row in rows:
        delivery, holding, last = row.delivery, (row.process, row.since), now.last
        what = (
            f"{row.process} has delivered offset {delivery.offset} of partition "
            f"{delivery.partition}, key {delivery.key!r}"
        )
        if row.since is None:
            yield f"{what}, whose hash it did not own"
        elif holding == now.holding:
            if last is not None and delivery.offset <= last.offset:
                begun_again[row.process] += 1
                seen = sum(loss < delivery.time for loss in losses[row.process])
                if begun_again[row.process] > seen:
                    yield f"{what}, after offset {last.offset}"
        elif holding in now.ended:
            yield f"{what}, after {now.holding and now.holding[0]} had taken the key over"
        elif last is not None and _ALWAYS < row.since < last.time:
            yield f"{what}, and {now.holding and now.holding[0]} since it was assigned the hash"
        if holding != now.holding and now.holding is not None:
            now.ended.add(now.holding)
        now.holding, now.last = holding, delivery
