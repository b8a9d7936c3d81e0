"""A snapshot as lines of text: for a full screen, a pipe, or a terminal that can do nothing.

Each partition has a strip of its key hashes, from first to last: the higher, the more lag. Each
range has a bar of its offsets: processed, read by the batch that runs, pending.

Cost: linear in the ranges.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from kshare.cli.live.snapshot import RangeLine, Snapshot, bar_of
from kshare.cli.live.watch import Latest
from kshare.cli.output import text_table
from kshare.cli.show import parked_status_text
from kshare.core.hashing import HASH_SPACE
from kshare.monitor.status import PartitionStatus

__all__ = ["SORTS", "Line", "View", "render"]

SORTS: Final[dict[str, tuple[str, Callable[[RangeLine], Any]]]] = {
    "h": ("hash", lambda each: (each.source, each.partition, each.hashes)),
    "l": ("lag", lambda each: -(-1 if each.lag is None else each.lag)),
    "s": ("speed", lambda each: (each.speed is None, each.speed)),
    "p": ("position", lambda each: (each.position is None, each.position)),
    "m": ("member", lambda each: (each.member is None, each.member)),
}
"""Keys that sort, and by what: most lag first, slowest first, and so on."""

_BAR, _STRIP, _NAME_MAX = 20, 50, 40
_LEVELS: Final = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS: Final = "12345678"


@dataclass(frozen=True, slots=True)
class View:
    """The visible part of a snapshot, and its order.

    Attributes:
        sort: A key of :data:`SORTS`.
        is_reversed: Whether to sort the other way round.
        first: Number of the first range that is shown.
        is_ascii: Whether the terminal has only ASCII.
        interval: Seconds between looks; None if there is only one.
    """

    sort: str = "h"
    is_reversed: bool = False
    first: int = 0
    is_ascii: bool = False
    interval: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text.

    Attributes:
        text: Without a line feed.
        style: ``plain``, ``title``, ``head`` (of a table) or ``fault``.
    """

    text: str
    style: str = "plain"


def render(latest: Latest, view: View, height: int | None = None) -> list[Line]:
    """The lines that show a snapshot.

    Args:
        latest: The snapshot, and what is wrong with it.
        view: How to show it.
        height: The number of lines there is room for; None for as many as there are.
    """
    snapshot = latest.snapshot
    above = [Line(_title(snapshot), "title"), Line(_facts(snapshot, view))]
    if latest.fault is not None:
        above.append(Line(f"NOT RENEWED: {latest.fault}", "fault"))
    above += [Line(text, "fault") for text in snapshot.alarms]
    above += [Line(f"warning: {text}", "fault") for text in snapshot.warnings]
    strips = list(_strips(snapshot, view))
    if height is not None and len(strips) > height // 3:
        left_out = len(strips) - height // 3
        strips = [*strips[: height // 3], Line(f"  ... {left_out} partitions more")]
    below = _below(snapshot)
    table = _table(snapshot, view)
    if height is not None:
        room = max(height - len(above) - len(strips) - 3, 3)
        below = below[: max(room - len(table) - 1, 0)]
        table = _scrolled(table, view.first, room)
    return [*above, Line(""), *strips, Line(""), *table, *([Line("")] if below else []), *below]


def _title(snapshot: Snapshot) -> str:
    lag = "" if snapshot.lag is None else f", lag {snapshot.lag:,}"
    speed = "" if snapshot.speed is None else f", about {snapshot.speed:,.0f} records/s"
    return f"{snapshot.kind} {snapshot.name}{lag}{speed}"


def _facts(snapshot: Snapshot, view: View) -> str:
    at = datetime.fromtimestamp(snapshot.at).astimezone().strftime("%H:%M:%S")
    every = "" if view.interval is None else f", every {view.interval:g} s"
    order = f"by {SORTS[view.sort][0]}{', reversed' if view.is_reversed else ''}"
    return f"{snapshot.facts}; at {at}{every}; {order}"


# -- key hashes ------------------------------------------------------------------------------------


def _strips(snapshot: Snapshot, view: View) -> Iterator[Line]:
    """For each partition its lag by key hash."""
    by_partition: dict[tuple[int, Any], list[RangeLine]] = {}
    for each in snapshot.ranges:
        by_partition.setdefault((each.source, each.partition), []).append(each)
    names = [_partition_name(ranges[0], snapshot) for ranges in by_partition.values()]
    wide = max(map(len, names), default=0)
    for name, ranges in zip(names, by_partition.values(), strict=True):
        lags = [each.lag for each in ranges if each.lag is not None]
        if lags:
            strip = _strip(ranges, is_ascii=view.is_ascii)
            yield Line(f"{name:<{wide}}  |{strip}| most lag {max(lags):,}")
        else:
            yield Line(f"{name:<{wide}}  lag not known")


def _strip(ranges: Sequence[RangeLine], *, is_ascii: bool) -> str:
    """The lag of each of some equal parts of the hash space: that of the range with most."""
    levels = _ASCII_LEVELS if is_ascii else _LEVELS
    most = max((each.lag or 0 for each in ranges), default=0)
    cells = [0] * _STRIP
    for each in ranges:
        for part in each.hashes:
            first = part.lo * _STRIP // HASH_SPACE
            last = (part.hi - 1) * _STRIP // HASH_SPACE
            for cell in range(first, last + 1):
                cells[cell] = max(cells[cell], each.lag or 0)
    return "".join(
        levels[-(-lag * len(levels) // most) - 1] if lag else ("." if is_ascii else "·")
        for lag in cells
    )


# -- ranges ----------------------------------------------------------------------------------------


def _table(snapshot: Snapshot, view: View) -> list[Line]:
    """The ranges, with a header."""
    ranges = sorted(snapshot.ranges, key=SORTS[view.sort][1], reverse=view.is_reversed)
    partitions = snapshot.by_partition
    rows = [("partition", "key hashes", "offsets", "position", "lag", "offsets/s", "member")]
    rows += [
        (
            _partition_name(each, snapshot),
            each.hashes_text,
            _bar(each, partitions.get((each.source, each.partition)), is_ascii=view.is_ascii),
            _number(each.position),
            _number(each.lag),
            _number(each.speed),
            _owner(snapshot, each),
        )
        for each in ranges
    ]
    lines = text_table(rows, right=(3, 4, 5)).splitlines()
    if not ranges:
        return [Line("no partition yet: where the first batch began is known when it is done")]
    return [Line(lines[0], "head"), *map(Line, lines[1:])]


def _bar(each: RangeLine, partition: PartitionStatus | None, *, is_ascii: bool) -> str:
    """The offsets of a range. A part with something pending is never shown as processed."""
    shares = bar_of(each, partition)
    if shares is None:
        return ""
    done, read, pending = "#+." if is_ascii else "█▒·"
    filled = int(shares[0] * _BAR)
    shaded = -int(-shares[1] * _BAR // 1) - filled
    return done * filled + read * shaded + pending * (_BAR - filled - shaded)


def _scrolled(table: list[Line], first: int, room: int) -> list[Line]:
    """The header, and as many rows as there is room for; what is left out is said."""
    rows = table[1:]
    if len(rows) + 1 <= room:
        return table
    kept = max(room - 2, 1)
    first = min(max(first, 0), max(len(rows) - kept, 0))
    note = f"ranges {first + 1:,} to {first + kept:,} of {len(rows):,} (arrows scroll)"
    return [table[0], *rows[first : first + kept], Line(note)]


def _owner(snapshot: Snapshot, each: RangeLine) -> str:
    if snapshot.kind == "query" or each.is_chunks:
        return ""
    return each.member or "(nobody)"


def _partition_name(each: RangeLine, snapshot: Snapshot) -> str:
    several = len({one.source for one in snapshot.ranges}) > 1
    name = f"{each.partition}{f' (source {each.source})' if several else ''}"
    return name if len(name) <= _NAME_MAX else f"...{name[3 - _NAME_MAX :]}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _below(snapshot: Snapshot) -> list[Line]:
    """Members and parked keys, as far as there is room."""
    lines = []
    if snapshot.members:
        rows = [("member", "ranges", "lag", "client id", "address", "host")]
        rows += [
            (
                member.member.name,
                f"{load.ranges:,}",
                _number(load.lag),
                member.joined.client_id if member.joined else "",
                member.joined.host if member.joined else "",
                member.member.host,
            )
            for member, load in snapshot.members
        ]
        head, *others = text_table(rows, right=(1, 2)).splitlines()
        lines += [Line(head, "head"), *map(Line, others)]
    if snapshot.parked:
        head, *others = parked_status_text(snapshot.parked).splitlines()
        lines += [*([Line("")] if lines else []), Line(head, "head"), *map(Line, others)]
    return lines
