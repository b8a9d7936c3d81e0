"""The output of ``kshare demo``: a bar for each range while it runs, and what it meant at the end.

In a terminal, the bars of a batch take the place of the last ones; elsewhere they stand below.
"""

from collections.abc import Iterator, Sequence
from typing import Final, TextIO

from kshare.cli.output import text_table
from kshare.core.progress import TopicPartition
from kshare.monitor.report import PartitionReport, RangeReport
from spark_plugin.demo.state import QueryState, front

__all__ = ["LEGEND", "NEXT", "Screen", "as_lines", "lesson"]

LEGEND: Final = """\
Each task reads a range: the keys whose hashes lie between two shares of all hashes, such as 0 to
25 %. A batch reads as many records of each range, so a range with hot keys needs more batches. Its
bar is how far it is in the partition. The front is the offset of the range that is furthest ahead.
Below the stable offset, all ranges have read everything.
"""
NEXT: Final = """\
Next: `kshare broker` starts a broker with a topic, and docs/getting-started.md has a query for it.
"""
_CELLS: Final = 20


class Screen:
    """Where lines are shown.

    Args:
        file: Takes the text.
        is_terminal: Whether new lines may take the place of old ones.
        size: Columns and lines of the terminal.
    """

    def __init__(self, file: TextIO, size: tuple[int, int], *, is_terminal: bool) -> None:
        self._file = file
        self._width, self._height = size
        self.is_terminal = is_terminal
        self._shown: Sequence[str] = ()

    def say(self, text: str) -> None:
        """Print a text below all others."""
        self._shown = ()
        self._file.write(f"{text}\n")
        self._file.flush()

    def show(self, lines: Sequence[str]) -> None:
        """Print lines; in a terminal, instead of the last ones."""
        if self.is_terminal:
            if len(lines) > self._height - 2:
                left_out = len(lines) - self._height + 3
                lines = [*lines[: self._height - 3], f"... {left_out} lines more"]
            # A line that is wrapped would be two to go back over.
            lines = [line[: self._width - 1] for line in lines]
        if lines == self._shown:
            return
        back = f"\033[{len(self._shown)}F\033[J" if self.is_terminal and self._shown else ""
        self._file.write(back + "".join(f"{line}\n" for line in lines))
        self._file.flush()
        self._shown = lines


def as_lines(state: QueryState) -> list[str]:
    """Show the query: a line for all of it, and a bar for each range."""
    rows: list[Sequence[str]] = [("", "partition", "range", "read", "offset", "")]
    for partition, report in sorted(state.partitions.items()):
        rows += _rows(partition, report)
    return [_headline(state), *(text_table(rows, right=(4,)).splitlines() if rows[1:] else ())]


def _rows(partition: TopicPartition, report: PartitionReport) -> Iterator[Sequence[str]]:
    end = max(report.end, 1)
    for range_ in report.ranges:
        filled = min(range_.position, end) * _CELLS // end
        yield (
            " ",
            str(partition),
            range_.span.as_percent(),
            f"|{'#' * filled}{'.' * (_CELLS - filled)}|",
            f"{range_.position:,}",
            _mark(range_, report),
        )


def _mark(range_: RangeReport, report: PartitionReport) -> str:
    if range_.is_parked:
        return "parked"
    if report.stable == front(report):
        return ""  # all ranges are there
    return {report.stable: "stable", front(report): "front"}.get(range_.position, "")


def _headline(state: QueryState) -> str:
    rate = state.records_per_second
    speed = "" if rate is None else f", {rate:,.0f} records/s"
    batch = max(state.batches, default=0)
    return f"batch {batch}: {state.records:,} of {state.target:,} records{speed}"


def lesson(state: QueryState) -> str:
    """The difference to Spark's own source, where ranges were furthest apart; empty if never."""
    if state.widest is None:
        return ""
    partition, report = state.widest
    positions = [f"{each.position:,}" for each in report.ranges if not each.is_parked]
    return (
        f'With format("kafka"), a partition has one position. When the ranges of {partition} stood '
        f"at\n{', '.join(positions)}, all {len(positions)} would have stood at {report.stable:,} "
        "and waited for the slowest.\n"
    )
