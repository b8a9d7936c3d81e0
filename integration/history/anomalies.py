"""The anomalies of a history: of what was received, key by key, and of what was written."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final

from integration.history.model import (
    Anomaly,
    Committed,
    Delivery,
    Events,
    History,
    Key,
    Kind,
    OwnerChange,
    Sent,
    key_of,
)
from kshare.core.hashing import key_hash
from kshare.core.progress import TopicPartition

__all__ = ["Polls", "Writes"]

_ALWAYS: Final = -1
"""Since when a process without callbacks holds its keys."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A delivery, with the holding that it belongs to: the time of the assignment."""

    delivery: Delivery
    process: str
    since: int | None  # None: the process does not own the hash
    in_hand: bool = False

    @property
    def holding(self) -> tuple[str, int | None]:
        return self.process, self.since

    def __str__(self) -> str:
        return f"{self.process} has received {self.delivery}"


@dataclass(slots=True)
class _Current:
    """Whoever holds a key, as its deliveries are followed."""

    last: _Held | None = None
    ended: set[tuple[str, int | None]] = field(default_factory=set)
    having: dict[int, _Held] = field(default_factory=dict)  # by offset: who had it last
    begun_again: Counter[str] = field(default_factory=Counter)  # by process


class Polls:
    """The anomalies of what was received."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._resets = {
            name: [reset for reset in history.resets if any(e.time < reset for e in each.lines[:1])]
            for name, each in history.processes.items()
        }
        self._committed = _Commits(history)
        self._known = _known_offsets(history)

    def anomalies(self) -> Iterator[Anomaly]:
        """All of them."""
        by_key: dict[Key, list[_Held]] = {}
        for name, events in self._history.processes.items():
            for held in _holdings(name, events):
                line = held.delivery
                key = key_of(line.partition, line.key, line.offset)
                by_key.setdefault(key, []).append(held)
        for key, rows in by_key.items():
            rows.sort(key=lambda row: row.delivery.time)
            yield from self._duplicates(rows)
            if self._history.has_order:
                yield from self._of_key([row for row in rows if not row.in_hand])
                yield from self._skips(key, rows)

    def _duplicates(self, rows: Sequence[_Held]) -> Iterator[Anomaly]:
        for row in rows:
            since = self._committed.since(row.delivery)
            if since is not None and not self._history.processes[row.process].is_plain:
                seconds = (row.delivery.time - since[0]) / 1e9
                yield Anomaly(
                    "duplicate", f"{row}, {seconds:.3f} s after {since[1]} knew it to be committed"
                )

    def _of_key(self, rows: Sequence[_Held]) -> Iterator[Anomaly]:
        """The faults of one key, whose deliveries are in the order of time: one for each."""
        now = _Current()
        for row in rows:
            found = self._fault(now, row)
            if found is not None:
                yield found
            last, now.last = now.last, row
            if last is not None and last.holding != row.holding:
                now.ended.add(last.holding)
            now.having[row.delivery.offset] = row

    def _fault(self, now: _Current, row: _Held) -> Anomaly | None:
        last = now.last
        before = now.having.get(row.delivery.offset)
        if row.since is None:
            return Anomaly("not the owner", f"{row}, whose hash it did not own")
        if last is None:
            return None
        if row.holding == last.holding:
            return self._fault_within(now, row, last.delivery.offset, is_again=before is not None)
        is_late = row.holding in now.ended
        if is_late or _ALWAYS < row.since < last.delivery.time:
            others = "had taken the key over" if is_late else "had the key since the assignment"
            return Anomaly("non-monotonic poll", f"{row}, after {last.process} {others}")
        if before is not None and self._was_handed_over(before, row):
            return Anomaly("duplicate", f"{row}, which {before.process} had, and handed over")
        return None

    def _fault_within(
        self, now: _Current, row: _Held, last: int, *, is_again: bool
    ) -> Anomaly | None:
        """Within a holding, offsets ascend."""
        if row.delivery.offset > last:
            return None
        now.begun_again[row.process] += 1
        resumed = self._history.processes[row.process].resumed
        excuses = [*self._resets[row.process], *resumed]
        if now.begun_again[row.process] <= sum(time < row.delivery.time for time in excuses):
            return None
        kind: Kind = "duplicate" if is_again else "non-monotonic poll"
        return Anomaly(kind, f"{row}, after offset {last}")

    def _was_handed_over(self, before: _Held, now: _Held) -> bool:
        """True if a record's process gave its hash up in a rebalance, with the time to commit."""
        events = self._history.processes[before.process]
        record, time = before.delivery, now.delivery.time
        if self._history.processes[now.process].is_plain:
            return False
        # What is committed amid a reset may be lost, too: so whenever it was.
        if not events.has_callbacks or any(reset < time for reset in self._history.resets):
            return False
        hashed = key_hash(record.key, record.offset)
        after = [line for line in events.lines if line.time > record.time]
        ends = (
            (at, line)
            for at, line in enumerate(after)
            if isinstance(line, OwnerChange) and line.has(record.partition, hashed)
        )
        at, end = next(ends, (0, None))
        if end is None or end.is_lost or any(closing < end.time for closing in events.closing):
            return False
        if any(record.time < anew < end.time for anew in events.anew):
            return False
        # What stays is read on while it commits: only the next change says that it has.
        following = next((line for line in after[at + 1 :] if isinstance(line, OwnerChange)), None)
        return following is not None and not following.is_lost

    def _skips(self, key: Key, rows: Sequence[_Held]) -> Iterator[Anomaly]:
        """Each record that was passed over when a later one of its key was received."""
        known = self._known.get(key, [])
        received: set[int] = set()
        passed = 0  # so many of the known ones are looked at
        for row in rows:
            end = bisect_left(known, row.delivery.offset)
            for offset in known[passed:end]:
                if offset not in received:
                    yield Anomaly("poll skip", f"{row}, before offset {offset}")
            passed = max(passed, end)
            received.add(row.delivery.offset)


def _holdings(name: str, events: Events) -> Iterator[_Held]:
    """The records that a process has received."""
    changes: list[OwnerChange] = []
    since: dict[tuple[TopicPartition, bytes], int | None] = {}  # as of the last change
    in_hand = _in_hand(events)
    for line in events.lines:
        if isinstance(line, OwnerChange):
            changes.append(line)
            since.clear()
        elif isinstance(line, Delivery):
            key = line.partition, line.key
            if not events.has_callbacks:
                # While it was stopped, others may have come and gone.
                yield _Held(line, name, _last_before(events.resumed, line.time), line in in_hand)
                continue
            if key not in since or not line.key:
                since[key] = _since(changes, line)
            yield _Held(line, name, since[key], line in in_hand)


def _last_before(times: Sequence[int], time: int) -> int:
    return max((each for each in times if each < time), default=_ALWAYS)


def _in_hand(events: Events) -> set[Delivery]:
    """The records that a process had in hand when it was interrupted.

    What it writes next after it was stopped; a handler that closes it writes callbacks before that.
    """
    found = set()
    lines = [line for line in events.lines if not isinstance(line, Committed)]
    for time in events.resumed:
        following = next((line for line in lines if line.time > time), None)
        if isinstance(following, Delivery):
            found.add(following)
    for time in events.closing:
        later = (line for line in lines if line.time > time and isinstance(line, Delivery))
        found.update(islice(later, 1))
    return found


def _since(changes: Sequence[OwnerChange], line: Delivery) -> int | None:
    hashed = key_hash(line.key, line.offset)
    for change in reversed(changes):
        if change.has(line.partition, hashed):
            return change.time if change.is_gain else None
    return None


class _Commits:
    """Since when somebody knew of a record that it is committed."""

    def __init__(self, history: History) -> None:
        self._resets = sorted(history.resets)
        self._records: dict[tuple[TopicPartition, int], list[tuple[int, str]]] = {}
        self._below: dict[TopicPartition, list[tuple[int, str, int]]] = {}
        self._lease = history.lease_ns or 0
        self._late = _late_commits(history)
        for name, events in history.processes.items():
            for line in events.lines:
                if not isinstance(line, Committed):
                    continue
                if line.is_below:
                    of_partition = self._below.setdefault(line.partition, [])
                    of_partition.append((line.time, name, line.offset))
                else:
                    record = line.partition, line.offset
                    self._records.setdefault(record, []).append((line.time, name))
        for partition, rows in self._below.items():
            self._below[partition] = _rising(sorted(rows), self._resets)

    def since(self, delivery: Delivery) -> tuple[int, str] | None:
        """Time and process; None if nobody knew when the record was received."""
        record = delivery.partition, delivery.offset
        if any(0 <= delivery.time - late <= self._lease for late in self._late.get(record, ())):
            return None
        known = self._records.get(record, [])
        below = self._below.get(delivery.partition, [])
        whole = ((t, name) for t, name, end in below if delivery.offset < end)
        found = min(
            (each for each in chain(known, whole) if self._counts(each, delivery)), default=None
        )
        return found

    def _counts(self, known: tuple[int, str], delivery: Delivery) -> bool:
        return known[0] < delivery.time and not any(
            known[0] < reset < delivery.time for reset in self._resets
        )


def _late_commits(history: History) -> dict[tuple[TopicPartition, int], list[int]]:
    """When records were committed by processes whose lease of them was over."""
    found: dict[tuple[TopicPartition, int], list[int]] = {}
    if history.lease_ns is None:
        return found
    for events in history.processes.values():
        received: dict[tuple[TopicPartition, int], int] = {}
        for line in events.lines:
            if isinstance(line, Delivery):
                received[line.partition, line.offset] = line.time
            elif isinstance(line, Committed) and not line.is_below:
                record = line.partition, line.offset
                began = received.get(record)
                if began is not None and line.time - began > history.lease_ns:
                    found.setdefault(record, []).append(line.time)
    return found


def _rising(
    rows: Sequence[tuple[int, str, int]], resets: Sequence[int]
) -> list[tuple[int, str, int]]:
    """Those that say more than all before them; after a reset, it begins anew."""
    kept: list[tuple[int, str, int]] = []
    for row in rows:
        is_anew = bool(kept) and any(kept[-1][0] < reset < row[0] for reset in resets)
        if not kept or is_anew or row[2] > kept[-1][2]:
            kept.append(row)
    return kept


def _known_offsets(history: History) -> dict[Key, list[int]]:
    """The offsets of each key that are known to have a record, ascending."""
    found: dict[Key, set[int]] = {}
    for sent in history.sent or ():
        if sent.outcome == "written" and sent.offset is not None and sent.key is not None:
            key = key_of(sent.partition, sent.key, sent.offset)
            found.setdefault(key, set()).add(sent.offset)
    for _, line in history.deliveries():
        found.setdefault(key_of(line.partition, line.key, line.offset), set()).add(line.offset)
    starts = history.starts
    return {
        key: sorted(offset for offset in offsets if offset >= starts.get(key[0], 0))
        for key, offsets in found.items()
    }


class Writes:
    """The anomalies of what was written: whether it was received, once, as it was written."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._received: dict[tuple[TopicPartition, int], tuple[str, Delivery]] = {}
        self._names: set[str] = set()
        self._highest: dict[Key, int] = {}
        for name, line in history.deliveries():
            self._received.setdefault((line.partition, line.offset), (name, line))
            key = key_of(line.partition, line.key, line.offset)
            self._highest[key] = max(line.offset, self._highest.get(key, -1))
            if line.name is not None:
                self._names.add(line.name)

    def anomalies(self) -> Iterator[Anomaly]:
        """All of them."""
        yield from self._twice_written()
        sent = self._history.sent
        yield from self._inconsistent(sent or ())
        if sent is not None:
            yield from self._aborted(sent)
            yield from self._lost(sent)
            yield from self._torn(sent)

    def _twice_written(self) -> Iterator[Anomaly]:
        places: dict[str, set[tuple[TopicPartition, int]]] = {}
        for _, line in self._history.deliveries():
            if line.name is not None:
                places.setdefault(line.name, set()).add((line.partition, line.offset))
        for sent in self._history.sent or ():
            if sent.name is not None and sent.offset is not None and sent.outcome == "written":
                places.setdefault(sent.name, set()).add((sent.partition, sent.offset))
        for name, found in places.items():
            if len(found) > 1:
                where = ", ".join(f"{at} offset {offset}" for at, offset in sorted(found))
                yield Anomaly("duplicate", f"{name!r} is at {where}")

    def _inconsistent(self, sent: Iterable[Sent]) -> Iterator[Anomaly]:
        keys: dict[tuple[TopicPartition, int], tuple[bytes | None, str | None]] = {}
        has_unknown = self._history.sent is None
        for each in sent:
            if each.offset is None:
                has_unknown = True  # it may be any record
            else:
                keys[each.partition, each.offset] = each.key, each.name
        for name, line in self._history.deliveries():
            record = line.partition, line.offset
            wanted = keys.get(record)
            if wanted is None and not has_unknown:
                yield Anomaly("inconsistent record", f"{name} has received {line}: never written")
            if wanted is None:
                keys[record] = line.key, line.name
            elif wanted[0] not in {None, line.key}:
                yield Anomaly(
                    "inconsistent record", f"{name} has received {line}: it has key {wanted[0]!r}"
                )
            elif None not in {wanted[1], line.name} and wanted[1] != line.name:
                yield Anomaly(
                    "inconsistent record", f"{name} has received {line}: it is {wanted[1]!r}"
                )

    def _is_received(self, sent: Sent) -> bool:
        if sent.offset is not None:
            return (sent.partition, sent.offset) in self._received
        return sent.name in self._names

    def _is_missing(self, sent: Sent) -> bool:
        """True if it was not received, and could have been."""
        if self._is_received(sent):
            return False
        if sent.offset is None:
            return self._history.is_complete
        if sent.offset < self._history.starts.get(sent.partition, 0):
            return False
        if self._history.is_complete or sent.key is None:
            return self._history.is_complete
        key = key_of(sent.partition, sent.key, sent.offset)
        return self._highest.get(key, -1) > sent.offset

    def _aborted(self, sent: Iterable[Sent]) -> Iterator[Anomaly]:
        for each in sent:
            if each.outcome == "aborted" and self._is_received(each):
                of = "" if each.transaction is None else f" of transaction {each.transaction}"
                yield Anomaly("aborted read", f"{_named(each)}{of} was received")

    def _lost(self, sent: Iterable[Sent]) -> Iterator[Anomaly]:
        for each in sent:
            if each.outcome == "written" and self._is_missing(each):
                yield Anomaly("lost write", f"nobody has received {_named(each)}")

    def _torn(self, sent: Iterable[Sent]) -> Iterator[Anomaly]:
        transactions: dict[str, list[Sent]] = {}
        for each in sent:
            if each.transaction is not None and each.outcome != "aborted":
                transactions.setdefault(each.transaction, []).append(each)
        for name, rows in transactions.items():
            missing = [each for each in rows if self._is_missing(each)]
            if missing and any(self._is_received(each) for each in rows):
                some = ", ".join(_named(each) for each in missing[:5])
                yield Anomaly(
                    "torn transaction",
                    f"of {name}, {len(missing)} of {len(rows)} records were not received: {some}",
                )


def _named(sent: Sent) -> str:
    where = f"offset {sent.offset} of {sent.partition}" if sent.offset is not None else sent.name
    return where or "" if sent.key is None else f"{where}, key {sent.key!r}"
