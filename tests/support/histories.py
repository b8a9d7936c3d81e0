"""Right histories of a group, and faults to put into them.

A history is drawn as it may happen on one partition: one owner after another has a key, most are
told so, some are killed before they have committed all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from hypothesis import strategies as st

from integration.history import Committed, Delivery, Events, History, Kind, OwnerChange, Sent
from kshare.core.progress import TopicPartition

__all__ = ["SEEDED", "right_histories"]

AT = TopicPartition("orders", 0)
_KEYS = (b"a", b"b")
Line = Delivery | OwnerChange | Committed


@dataclass
class _Making:
    """A history as it grows.

    Attributes:
        keys: The key of each record that consumers get, by its offset.
        lines: What each process has written.
        time: Of the last line.
        position: The next offset of whoever owns the partition.
    """

    keys: Mapping[int, bytes]
    lines: dict[str, list[Line]] = field(default_factory=dict)
    time: int = 0
    position: int = 0

    def own(self, process: str, count: int, committed: int, *, is_killed: bool) -> None:
        """Let a process own the partition: it receives some records, and commits some of them."""
        lines = self.lines.setdefault(process, [])
        lines.append(OwnerChange(self._tick(), True, {AT: ()}))
        offsets = [offset for offset in sorted(self.keys) if offset >= self.position][:count]
        done = offsets if not is_killed else offsets[:committed]
        lines += [Delivery(self._tick(), AT, each, self.keys[each]) for each in offsets]
        if done:
            self.position = done[-1] + 1
            lines.append(Committed(self._tick(), AT, self.position, is_below=True))
        if not is_killed:
            lines.append(OwnerChange(self._tick(), False, {AT: ()}))

    def _tick(self) -> int:
        self.time += 1
        return self.time


@st.composite
def right_histories(draw: st.DrawFn) -> History:
    """Histories without an anomaly: at least four records, a transaction, an aborted one."""
    count = draw(st.integers(4, 12))
    keys = [draw(st.sampled_from(_KEYS)) for _ in range(count)]
    aborted = draw(st.integers(0, count))
    sent = [
        Sent(AT, offset, key, "written", "t" if offset % 3 else None)
        for offset, key in enumerate(keys)
    ]
    sent.insert(aborted, Sent(AT, count, _KEYS[0], "aborted", "u"))
    making = _Making(dict(enumerate(keys)))
    owners = draw(
        st.lists(st.tuples(st.integers(0, count), st.integers(0, count), st.booleans()), max_size=4)
    )
    for number, (received, committed, is_killed) in enumerate(owners):
        name = f"m{number}" if is_killed else "again"
        making.own(name, received, committed, is_killed=is_killed)
    making.own("last", count, count, is_killed=False)
    processes = {name: Events(lines) for name, lines in making.lines.items()}
    return History(processes=processes, sent=sent)


# -- faults ---------------------------------------------------------------------------------------


def _with_lines(history: History, lines: Mapping[str, list[Line]]) -> History:
    processes = {name: Events(lines[name]) for name in history.processes}
    return replace(history, processes=processes)


def _lines(history: History) -> dict[str, list[Line]]:
    return {name: list(events.lines) for name, events in history.processes.items()}


def _spread(history: History) -> dict[str, list[Line]]:
    """The lines of a history whose times leave room for more."""
    return {
        name: [replace(line, time=10 * line.time) for line in events.lines]
        for name, events in history.processes.items()
    }


def _come_again(history: History, draw: st.DataObject) -> History:
    """A record that was committed comes once more, at a new owner."""
    _, line = draw.draw(st.sampled_from(list(history.deliveries())))
    lines = _lines(history)
    end = max(each.time for of_process in lines.values() for each in of_process)
    again: list[Line] = [OwnerChange(end + 1, True, {AT: ()}), replace(line, time=end + 2)]
    processes = {**history.processes, "new": Events(again)}
    return replace(history, processes=processes)


def _lose(history: History, draw: st.DataObject) -> History:
    """A record is received by nobody."""
    _, lost = draw.draw(st.sampled_from(list(history.deliveries())))
    return _without(history, lambda line: line.offset == lost.offset)


def _without(history: History, is_gone: Callable[[Delivery], bool]) -> History:
    lines = {
        name: [line for line in of if not (isinstance(line, Delivery) and is_gone(line))]
        for name, of in _lines(history).items()
    }
    return _with_lines(history, lines)


def _read_aborted(history: History, draw: st.DataObject) -> History:
    """The record of the aborted transaction is received, by the last owner."""
    lines = _lines(history)
    (aborted,) = (each for each in history.sent or () if each.outcome == "aborted")
    assert aborted.offset is not None
    time = lines["last"][-1].time
    # Instead of the callback at the end.
    lines["last"][-1] = Delivery(time, AT, aborted.offset, aborted.key or b"")
    return _with_lines(history, lines)


def _skip(history: History, draw: st.DataObject) -> History:
    """Of two records of a key the later one comes first, where both came for the first time."""
    lines = _lines(history)
    seen: set[int] = set()
    pairs: list[tuple[str, int, int]] = []
    for name, line in sorted(history.deliveries(), key=lambda each: each[1].time):
        of_key = [
            (at, each)
            for at, each in enumerate(lines[name])
            if isinstance(each, Delivery) and each.key == line.key and each.time > line.time
        ]
        if line.offset not in seen and of_key:
            pairs.append((name, lines[name].index(line), of_key[0][0]))
        seen.add(line.offset)
    if not pairs:
        return history
    name, first, second = draw.draw(st.sampled_from(pairs))
    return _swapped(history, name, first, second)


def _swapped(history: History, name: str, first: int, second: int) -> History:
    lines = _lines(history)
    one, other = lines[name][first], lines[name][second]
    lines[name][first] = replace(other, time=one.time)
    lines[name][second] = replace(one, time=other.time)
    return _with_lines(history, lines)


def _go_on(history: History, draw: st.DataObject) -> History:
    """Another process has a key, too, and is given its next record in between."""
    lines = _spread(history)
    of_key: dict[bytes, list[Delivery]] = {}
    for line in lines["last"]:
        if isinstance(line, Delivery):
            of_key.setdefault(line.key, []).append(line)
    found = [pair for of in of_key.values() for pair in pairwise(of)]
    if not found:
        return history
    line, following = draw.draw(st.sampled_from(found))
    gain = OwnerChange(line.time - 1, True, {AT: ()})
    other = Events([gain, replace(following, time=line.time + 1)])
    whole = {name: Events(of) for name, of in lines.items()}
    return replace(history, processes={**whole, "other": other})


def _tear(history: History, draw: st.DataObject) -> History:
    """Of a transaction of several records, one is received by nobody."""
    offsets = [each.offset for each in history.sent or () if each.transaction == "t"]
    lost = draw.draw(st.sampled_from(offsets))
    return _without(history, lambda line: line.offset == lost)


SEEDED: Mapping[Kind, Callable[[History, st.DataObject], History]] = {
    "duplicate": _come_again,
    "lost write": _lose,
    "aborted read": _read_aborted,
    "poll skip": _skip,
    "non-monotonic poll": _go_on,
    "torn transaction": _tear,
}
