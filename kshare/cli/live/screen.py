"""A snapshot as lines of text: for a full screen, a pipe, or a terminal that can do nothing.

Each partition has a strip of its key hashes, from first to last: the higher, the further behind the
front. Each range has a bar of its offsets: processed, read by the batch that runs, pending.

Where there is little room, the strip gets shorter, and the table does without the bar, then without
speeds, members and the name of an only partition. Text that is too long still ends with a mark.

Cost: linear in the ranges.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import ceil
from typing import Any, Final, TypeAlias

from kshare.cli.live.snapshot import Behind, RangeLine, Snapshot, bar_of, behind_of
from kshare.cli.live.watch import Latest
from kshare.cli.output import counted, text_table
from kshare.cli.show import parked_status_text
from kshare.core.hashing import HASH_SPACE
from kshare.core.progress import TopicPartition
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

_Names: TypeAlias = dict[tuple[int, TopicPartition], str]
"""The name of each partition of a source."""
_BAR, _STRIP, _STRIP_MIN, _NAME_MAX, _HASHES_MIN = 20, 50, 10, 40, 12
_COLUMNS: Final = ("partition", "key hashes", "offsets", "position", "lag", "offsets/s", "member")
_RIGHT: Final = {"position", "lag", "offsets/s"}
_LESS: Final = ("offsets", "offsets/s", "member")
"""The columns that a narrow table does without, in that order."""
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
        style: ``plain``, ``title``, ``head`` (of a table), ``fault``, ``warning``, or ``outlier``:
            a range that is far behind the others.
    """

    text: str
    style: str = "plain"


def render(
    latest: Latest, view: View, height: int | None = None, width: int | None = None
) -> list[Line]:
    """The lines that show a snapshot.

    Args:
        latest: The snapshot, and what is wrong with it.
        view: How to show it.
        height: The number of lines there is room for; None for as many as there are.
        width: The number of characters in a line; None for any.
    """
    snapshot = latest.snapshot
    above = [Line(_title(snapshot), "title"), Line(_facts(snapshot, view))]
    if latest.fault is not None:
        above.append(Line(f"NOT RENEWED: {latest.fault}", "fault"))
    above += [Line(text, "fault") for text in snapshot.alarms]
    above += [Line(f"warning: {text}", "warning") for text in snapshot.warnings]
    behind, names = behind_of(snapshot), _partition_names(snapshot)
    strips = list(_strips(snapshot, behind, names, view, width))
    if height is not None and len(strips) > height // 3:
        left_out = len(strips) - height // 3
        strips = [*strips[: height // 3], Line(f"  ... {counted(left_out, 'partition')} more")]
    below = _below(snapshot)
    table = _table(snapshot, behind, names, view, width)
    if height is not None:
        room = max(height - len(above) - len(strips) - 3, 3)
        below = below[: max(room - len(table) - 1, 0)]
        table = _scrolled(table, view.first, room)
    lines = [*above, Line(""), *strips, Line(""), *table, *([Line("")] if below else []), *below]
    if width is None:
        return lines
    return [replace(line, text=_shortened(line.text, width, _mark(view))) for line in lines]


def _mark(view: View) -> str:
    return "..." if view.is_ascii else "…"


def _shortened(text: str, width: int, mark: str) -> str:
    """A text that fits; if it was longer, it ends with the mark."""
    return text if len(text) <= width else f"{text[: max(width - len(mark), 0)]}{mark}"[:width]


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


def _strips(
    snapshot: Snapshot, behind: Sequence[Behind], names: _Names, view: View, width: int | None
) -> Iterator[Line]:
    """For each partition by key hash how far it is behind its front."""
    by_partition: dict[tuple[int, TopicPartition], list[tuple[RangeLine, Behind]]] = {}
    for each, its in zip(snapshot.ranges, behind, strict=True):
        by_partition.setdefault((each.source, each.partition), []).append((each, its))
    wide = max(map(len, names.values()), default=0)
    cells = _STRIP
    if width is not None:
        cells = max(min(_STRIP, width - wide - len("  || behind up to 1,000,000")), _STRIP_MIN)
    for where, ranges in by_partition.items():
        name = names[where]
        known = [each.offsets for _, each in ranges if each.offsets is not None]
        if known:
            strip = _strip(ranges, cells, is_ascii=view.is_ascii)
            text = f"behind up to {max(known):,}" if max(known) else "level"
            yield Line(f"{name:<{wide}}  |{strip}| {text}")
        else:
            yield Line(f"{name:<{wide}}  position not known")


def _strip(ranges: Sequence[tuple[RangeLine, Behind]], cells: int, *, is_ascii: bool) -> str:
    """The lag of some equal parts of the hash space: that of the range that is furthest behind."""
    levels = _ASCII_LEVELS if is_ascii else _LEVELS
    shares = [0.0] * cells
    for each, behind in ranges:
        for part in each.hashes:
            first = part.lo * cells // HASH_SPACE
            last = (part.hi - 1) * cells // HASH_SPACE
            for cell in range(first, last + 1):
                shares[cell] = max(shares[cell], behind.share)
    return "".join(
        levels[ceil(share * len(levels)) - 1] if share else ("." if is_ascii else "·")
        for share in shares
    )


# -- ranges ----------------------------------------------------------------------------------------


def _table(
    snapshot: Snapshot, behind: Sequence[Behind], names: _Names, view: View, width: int | None
) -> list[Line]:
    """The ranges, with a header; as many columns as there is room for."""
    if not snapshot.ranges:
        return [Line("no partition yet: where the first batch began is known when it is done")]
    sort = SORTS[view.sort][1]
    ranges = sorted(
        zip(snapshot.ranges, behind, strict=True),
        key=lambda pair: sort(pair[0]),
        reverse=view.is_reversed,
    )
    partitions = snapshot.by_partition
    rows = [_COLUMNS]
    rows += [
        (
            names[each.source, each.partition],
            each.hashes_text,
            _bar(
                each,
                partitions.get((each.source, each.partition)),
                is_ascii=view.is_ascii,
                is_still=snapshot.is_still,
            ),
            _number(each.position),
            _number(each.lag),
            _number(each.speed),
            _owner(snapshot, each),
        )
        for each, _ in ranges
    ]
    lines = _as_wide(rows, width, _mark(view))
    styles = ["head", *("outlier" if its.is_outlier else "plain" for _, its in ranges)]
    return [Line(text, style) for text, style in zip(lines, styles, strict=True)]


def _as_wide(rows: Sequence[tuple[str, ...]], width: int | None, mark: str) -> list[str]:
    """The lines of a table that is no wider than that, if it can be.

    Positions and lags are always whole.
    """
    columns, lines = list(_COLUMNS), _lines(rows, _COLUMNS)
    less = [*_LESS, *(["partition"] if len({row[0] for row in rows[1:]}) == 1 else [])]
    for column in less:
        if width is None or _wide(lines) <= width:
            return lines
        columns.remove(column)
        lines = _lines(rows, columns)
    if width is not None and (over := _wide(lines) - width) > 0:
        wide = max(max(len(row[1]) for row in rows) - over, _HASHES_MIN)
        rows = [(row[0], _shortened(row[1], wide, mark), *row[2:]) for row in rows]
        lines = _lines(rows, columns)
    return lines


def _lines(rows: Sequence[tuple[str, ...]], columns: Sequence[str]) -> list[str]:
    """The lines of a table with some of its columns."""
    kept = [_COLUMNS.index(column) for column in columns]
    right = [i for i, column in enumerate(columns) if column in _RIGHT]
    return text_table([[row[i] for i in kept] for row in rows], right=right).splitlines()


def _wide(lines: Sequence[str]) -> int:
    return max(map(len, lines))


def _bar(
    each: RangeLine, partition: PartitionStatus | None, *, is_ascii: bool, is_still: bool
) -> str:
    """The offsets of a range. A part with something pending is never shown as processed.

    What the planned batch reads is shown as pending if that may not be running.
    """
    shares = bar_of(each, partition)
    if shares is None:
        return ""
    done, read, pending = "#+." if is_ascii else "█▒·"
    if is_still:
        read = pending
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


def _partition_names(snapshot: Snapshot) -> _Names:
    """The names of the partitions, with the number of the source if there are several."""
    places = dict.fromkeys((each.source, each.partition) for each in snapshot.ranges)
    several = len({source for source, _ in places}) > 1
    names = {}
    for source, partition in places:
        name = f"{partition}{f' (source {source})' if several else ''}"
        names[source, partition] = name if len(name) <= _NAME_MAX else f"...{name[3 - _NAME_MAX :]}"
    return names


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
        parked = parked_status_text(snapshot.parked, snapshot.at, snapshot.kind)
        head, *others = parked.splitlines()
        lines += [*([Line("")] if lines else []), Line(head, "head"), *map(Line, others)]
    return lines
