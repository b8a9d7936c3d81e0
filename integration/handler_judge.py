"""The judge of handlers' histories: what processors of a group have called, and their dead letters.

At least once, with the order of keys: a record is called again only if its process was interrupted,
or lost its key hashes; before a record is begun, all before it of its key have their outcomes.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

__all__ = ["Call", "Ended", "Handlers", "Letter", "Process", "calls_of"]

Ended: TypeAlias = Literal["handled", "failed", "later", "cancelled", "never"]
_ENDS: Final = ("handled", "failed", "later", "cancelled")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a handler.

    Attributes:
        process: Who called it.
        key: Key of the record.
        offset: Its offset.
        attempt: Which attempt it was, from 1 on.
        began: When (ns).
        ended: When; None: it is not known.
        how: How it has ended; ``never`` if that is not known.
    """

    process: str
    key: bytes
    offset: int
    attempt: int
    began: int
    ended: int | None = None
    how: Ended = "never"

    def __str__(self) -> str:
        return f"{self.process} at {self.began}: offset {self.offset}, attempt {self.attempt}"


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter.

    Attributes:
        key: Its key.
        offset: Offset of its record.
        error: Class of the error; empty if it only follows another one.
    """

    key: bytes
    offset: int
    error: str


@dataclass(frozen=True, slots=True)
class Process:
    """What was done to a process.

    Attributes:
        calls: Its calls, in its own order.
        interrupted: When it was killed or suspended (ns).
        lost: When it lost key hashes (ns).
    """

    calls: Sequence[Call]
    interrupted: Sequence[int] = ()
    lost: Sequence[int] = ()

    def has_cut_off(self, call: Call) -> bool:
        """True if a call was cancelled as the process ended: after drain_timeout at most."""
        ended = call.ended or 0
        return call.how == "cancelled" and all(each.began <= ended for each in self.calls)

    def was_disturbed(self, since: int, until: int) -> bool:
        """Whether it was killed or suspended, or lost key hashes, in between."""
        return any(since <= time <= until for time in (*self.interrupted, *self.lost))


def calls_of(process: str, lines: Iterable[Sequence[str]]) -> list[Call]:
    """The calls of a process, from the lines of :mod:`integration.handler_process`."""
    calls: list[Call] = []
    running: dict[int, list[int]] = defaultdict(list)  # by offset: places in calls
    for line in lines:
        if line[0] == "began":
            at, key, attempt = int(line[3]), bytes.fromhex(line[4]), int(line[5])
            running[at].append(len(calls))
            calls.append(Call(process, key, at, attempt, int(line[1])))
        elif line[0] in _ENDS:
            number = running[int(line[3])].pop(0)
            how: Ended = line[0]  # type: ignore[assignment]
            calls[number] = replace(calls[number], ended=int(line[1]), how=how)
    return calls


@dataclass(frozen=True)
class Handlers:
    """A history.

    Args:
        processes: By name.
        sent: Key, and what its handler does, of the record of each offset; see
            :mod:`integration.handler_process`.
        policy: One of its policies.
        attempts: How often a record is tried.
        first_ns: The least time from a failure to the next attempt.
        later_ns: The least time from a RetryAfter to the next call.
        letters: The dead letters, in the order of their log.
    """

    processes: Mapping[str, Process]
    sent: Sequence[tuple[bytes, str]]
    policy: str
    attempts: int
    first_ns: int = 0
    later_ns: int = 0
    letters: Sequence[Letter] = ()
    _calls: list[Call] = field(init=False, default_factory=list)
    _of_key: dict[bytes, list[Call]] = field(init=False)

    def __post_init__(self) -> None:
        self._calls.extend(call for each in self.processes.values() for call in each.calls)
        self._calls.sort(key=lambda call: call.began)
        of_key = defaultdict(list)
        for call in self._calls:
            of_key[call.key].append(call)
        object.__setattr__(self, "_of_key", of_key)

    def faults(self) -> list[str]:
        """What is wrong."""
        return [
            *self._lost(),
            *self._overtaken(),
            *self._beside(),
            *self._again(),
            *self._early(),
            *self._faults_of_letters(),
        ]

    def missing(self) -> list[int]:
        """The offsets that nobody has handled, and that are no letters."""
        done = {call.offset for call in self._calls if call.how == "handled"}
        done |= {letter.offset for letter in self.letters}
        return [offset for offset in range(len(self.sent)) if offset not in done]

    def _lost(self) -> Iterator[str]:
        for offset in self.missing():
            yield f"lost: offset {offset} ({self.sent[offset][1]}) was not handled"

    def _overtaken(self) -> Iterator[str]:
        """A record was begun, and one before it of its key had no outcome."""
        offsets = defaultdict(list)
        for offset, (key, _) in enumerate(self.sent):
            offsets[key].append(offset)
        lettered = {letter.offset for letter in self.letters}
        for key, calls in self._of_key.items():
            done: dict[int, int] = {}
            failed: dict[int, int] = {}
            for call in calls:
                ended = call.ended or 0
                if call.how == "handled":
                    done[call.offset] = min(ended, done.get(call.offset, ended))
                if call.how in {"failed", "cancelled"} and call.attempt >= self.attempts:
                    failed[call.offset] = min(ended, failed.get(call.offset, ended))
            for call in calls:
                for before in offsets[key][: bisect_left(offsets[key], call.offset)]:
                    end = done.get(before)
                    if end is None and before in lettered:
                        end = failed.get(before)
                    if end is None or end > call.began:
                        yield f"overtaken: {call}, and offset {before} of its key had no outcome"
                        break

    def _beside(self) -> Iterator[str]:
        """Two calls of a key ran at a time in one process."""
        for name, process in self.processes.items():
            last: dict[bytes, Call] = {}
            for call in process.calls:
                before = last.get(call.key)
                if before is not None and (before.ended is None or before.ended > call.began):
                    yield f"beside: {call}, and {before} had not ended in {name}"
                last[call.key] = call

    def _again(self) -> Iterator[str]:
        """An attempt was made again, or one too many, and its process was not disturbed."""
        before: dict[int, dict[int, Call]] = defaultdict(dict)
        has_letters = self.policy in {"dead letters", "sequences"}
        for call in self._calls:
            if call.attempt > self.attempts and has_letters:
                yield f"one attempt too many: {call}"
            if call.how in {"later", "never"}:
                continue
            of_record = before[call.offset]
            earlier, of_record[call.attempt] = of_record.get(call.attempt), call
            if call.attempt >= self.attempts and call.how == "failed" and not has_letters:
                of_record.clear()  # it is released, or its processor is started again
            if earlier is None:
                continue
            process = self.processes[earlier.process]
            if earlier.process != call.process and process.has_cut_off(earlier):
                continue
            if not process.was_disturbed(earlier.began, call.began):
                yield f"again: {call}, as {earlier} ({earlier.how})"

    def _early(self) -> Iterator[str]:
        """A record was tried again too early, or counted wrongly, by the same process."""
        for process in self.processes.values():
            last: dict[int, Call] = {}
            for call in process.calls:
                before = last.get(call.offset)
                if before is not None and before.ended is not None:
                    least = {"failed": self.first_ns, "later": self.later_ns}.get(before.how, 0)
                    if call.began - before.ended < least:
                        yield f"early: {call}, after {before} ({before.how})"
                    if self._is_miscounted(process, before, call):
                        yield f"miscounted: {call}, after {before} ({before.how})"
                last[call.offset] = call

    def _is_miscounted(self, process: Process, before: Call, call: Call) -> bool:
        """Whether what follows a failure or a RetryAfter is another attempt than the next one."""
        if before.how not in {"failed", "later"} or before.attempt >= self.attempts:
            return False
        is_right = call.attempt == before.attempt + (before.how == "failed")
        return not is_right and not process.was_disturbed(before.began, call.began)

    # -- letters --------------------------------------------------------------------------------

    def _faults_of_letters(self) -> Iterator[str]:
        times = Counter(letter.offset for letter in self.letters)
        for offset, count in times.items():
            key, what = self.sent[offset]
            if count > 1 + self._disturbances(key):
                yield f"letters: offset {offset} has {count}"
            if what != "bad" and self.policy != "sequences":
                yield f"letters: offset {offset} ({what}) is one"
        yield from self._sequences() if self.policy == "sequences" else ()

    def _disturbances(self, key: bytes) -> int:
        """How many of the processes that had a key were disturbed."""
        names = {call.process for call in self._of_key.get(key, [])}
        found = (self.processes[name] for name in names)
        return sum(len(each.interrupted) + len(each.lost) for each in found)

    def _sequences(self) -> Iterator[str]:
        """A sequence begins at its first bad record, with the reason, and nothing leaves it."""
        by_key = defaultdict(list)
        for letter in self.letters:
            by_key[letter.key].append(letter)
        for key, letters in by_key.items():
            first = letters[0].offset
            if self.sent[first][1] != "bad":
                yield f"letters: {key!r} begins with offset {first} ({self.sent[first][1]})"
            for letter in letters:
                if letter.offset < first:
                    yield f"letters: offset {letter.offset} is one, and {first} began it"
                if letter.offset == first and not letter.error:
                    yield f"letters: offset {first} has lost its reason"
            order = list(dict.fromkeys(letter.offset for letter in letters))
            if order != sorted(order):
                yield f"letters: {key!r} is out of order: {order[:20]}"
            for call in self._of_key[key]:
                if call.offset > first and call.how == "handled":
                    yield f"letters: {call} was handled, behind {first}"
