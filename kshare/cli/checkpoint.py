"""``kshare checkpoint drop-ranges``: sets a stopped query back to its stable offsets.

Guarantees: no record is lost, and a batch that a sink may have written already gets no other
records: of a batch that is planned and not committed, the partitions with ranges become empty. A
partition that such a batch adds, and whose start cannot be read, is left for the next batch to add.
A batch that reads for a while (``realTime``) comes again as a whole: where it ended is not in the
checkpoint.
Records that were processed above a stable offset come again; of a batch that becomes empty also its
own, as its sink may have written them. Partitions without ranges, and other sources, stay as they
are. Where finished batches started is left out, as nothing needs it any more and Spark's own source
cannot read it; so are the reader schemas of typed rows. The files that are replaced are kept.

Cost: at most two files are read and written.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from kshare.cli.output import complain, counted, duration, say
from kshare.core.batch import limited_slices
from kshare.core.checkpoint import EXTRA_KEY, BatchOffsets, decode, decode_stable, encode
from kshare.core.offsets import length, since, union
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import CheckpointError, CheckpointVersionError
from kshare.monitor.offset_log import OffsetLog

__all__ = ["DropResult", "Dropped", "drop_ranges", "run"]

_RECENT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Dropped:
    """A partition that was set back.

    Attributes:
        source: Number of the source in the query.
        topic_partition: The partition.
        stable: Offset that it is at now; None if the query takes it for new, and so reads it from
            its earliest offset.
        again: Maximum number of records that come again, those of a batch that becomes empty among
            them; None if the ranges could not be read, or where they ended is not in the checkpoint
            (``realTime``).
    """

    source: int
    topic_partition: TopicPartition
    stable: int | None
    again: int | None


@dataclass(frozen=True, slots=True)
class DropResult:
    """The changes made to a checkpoint.

    Attributes:
        log: The checkpoint.
        dropped: The partitions that were set back; empty if none had ranges.
        replaced: Numbers of the batches whose files were replaced.
        backup: Where these files are kept; None if none was replaced.
        is_plain: Whether Spark's own source can read the checkpoint now. It cannot while a batch
            that is planned and not committed says where partitions start.
        left_out: What else Spark's own source cannot read and was left out, as clauses.
        is_emptied: Whether partitions of a batch that is planned and not committed became empty:
            a later batch has these records, and a sink may have them already.
    """

    log: OffsetLog
    dropped: tuple[Dropped, ...]
    replaced: tuple[int, ...] = ()
    backup: Path | str | None = None
    is_plain: bool = True
    left_out: tuple[str, ...] = ()
    is_emptied: bool = False


def run(_: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit code."""
    age = time.time() - OffsetLog.open(arguments.directory).written_at
    result = drop_ranges(arguments.directory)
    log = result.log
    if result.dropped:
        say(f"{log.directory}: set back to the stable offsets")
        for dropped in result.dropped:
            say(f"  {_text(dropped)}")
        say(_sum([dropped.again for dropped in result.dropped]))
        if result.is_emptied:
            say(
                f"batch {log.planned} is not finished, and may be written already: what it has of "
                "these partitions comes again in a later batch. If that must not be, put the files "
                "below back, let kshare finish that batch, and repeat the command"
            )
    elif result.replaced:
        say(f"{log.directory}: left out {' and '.join(result.left_out)}")
    else:
        say(f"{log.directory}: nothing to drop, no partition has ranges")
    if not result.is_plain:
        say(
            f"batch {log.planned} is not finished, and says where partitions start, which "
            "format('kafka') cannot read: let kshare finish it before you go back"
        )
    if not result.replaced:
        return 0
    names = " and ".join(f"offsets/{batch}" for batch in sorted(result.replaced))
    say(f"{names} as before: {result.backup}")
    if age < _RECENT_SECONDS:
        complain(
            f"warning: the query wrote its checkpoint {duration(age)} ago. One "
            "that still runs goes on from its memory, and writes ranges again: stop it, and repeat "
            "the command"
        )
    return 0


def _text(dropped: Dropped) -> str:
    where = "its earliest offset" if dropped.stable is None else f"{dropped.stable:,}"
    return f"{dropped.topic_partition}: back at {where}, {_sum([dropped.again])}"


def _sum(numbers: Sequence[int | None]) -> str:
    """The number of records that come again; each number is one of a partition, or not known."""
    known = [number for number in numbers if number is not None]
    if not known:
        return "how many records come again is not known"
    rest = ", and others whose number is not known" if len(known) < len(numbers) else ""
    return f"at most {_come_again(sum(known))}{rest}"


def _come_again(records: int) -> str:
    return f"{counted(records, 'record')} {'comes' if records == 1 else 'come'} again"


@dataclass(frozen=True, slots=True)
class _Entry:
    """The entry of one source in a file; of a damaged entry only Spark's part."""

    offsets: BatchOffsets
    damaged: bool = False

    def has_ranges(self, tp: TopicPartition) -> bool:
        """True if a partition is in more than one state."""
        reached = self.offsets.progress.get(tp)
        is_begin = self.offsets.open is not None or tp in self.offsets.limits
        return self.damaged or is_begin or not (reached is None or reached.is_level)

    def has_started(self, tp: TopicPartition) -> bool:
        """True if the query had the partition by then; true if that cannot be read."""
        return self.damaged or tp in self.offsets.progress or tp in self.offsets.started

    def again(self, tp: TopicPartition, stable: int) -> int | None:
        """Maximum number of records above an offset once its batch is done; None if not known."""
        if self.damaged or self.offsets.open is not None:
            return None
        reached = self.offsets.progress[tp]
        begun = (stable, reached.stable) if stable < reached.stable else ()
        processed = union([begun, *(since(each.bounds, stable) for each in reached.stripes)])
        limits = {tp: self.offsets.limits.get(tp, ())}
        limited = limited_slices(BatchOffsets({tp: reached}, limits=limits))
        records = sum(limit.records for limit in limits[tp])
        pending = length(union(planned.slice.bounds for planned in limited))
        return length(processed) + min(records, pending)  # no offset has two records


def drop_ranges(
    directory: str, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> DropResult:
    """Set a checkpoint back to its stable offsets. The query must not run.

    Of a checkpoint without ranges, it leaves out where the query started, and reader schemas.

    Args:
        directory: The query's ``checkpointLocation``: a path, or a URI such as ``file:/...`` or ``s3://...``.
        now: Time of day, by which the backup is named.

    Raises:
        CheckpointError: It is no checkpoint of a query with a Kafka source, or where the last batch
            began is not known. Nothing is changed then.
        CheckpointVersionError: A later kshare wrote it, or a later Spark.
    """
    log = OffsetLog.open(directory)
    newest = _entries(log, log.planned)
    if not newest:
        raise CheckpointError(f"{directory}: the query has no Kafka source, or no offsets of one")
    begun: dict[int, _Entry] = {}
    emptied = False
    if log.is_committed:
        changes = {log.planned: {n: _level(entry.offsets) for n, entry in newest.items()}}
        dropped = [each for number, entry in newest.items() for each in _set_back(number, entry)]
    else:
        if log.has(log.planned - 1):
            begun = _entries(log, log.planned - 1)
        changes, dropped = _empty_batch(log, newest, begun)
        reads = {n for n, entry in newest.items() if entry.damaged or entry != begun.get(n)}
        emptied = any(each.source in reads for each in dropped)
    plain = not any(offsets.started for offsets in changes[log.planned].values())
    was = {log.planned: newest, log.planned - 1: begun}
    changes = {
        batch: sources
        for batch, sources in changes.items()
        if any(was[batch][n] != _Entry(offsets) for n, offsets in sources.items())
    }
    if not changes:
        return DropResult(log, (), is_plain=plain)
    before = [was[batch][n].offsets for batch, sources in changes.items() for n in sources]
    left_out = {
        "where the query started": any(offsets.started for offsets in before),
        "the reader schemas": any(offsets.schemas for offsets in before),
    }
    backup = _back_up(log, changes, now())
    for batch, sources in changes.items():
        lines = {number: _line(offsets) for number, offsets in sources.items()}
        log.replace(batch, lines)
    named = tuple(what for what, is_so in left_out.items() if is_so)
    return DropResult(log, tuple(dropped), tuple(changes), backup, plain, named, emptied)


def _set_back(number: int, entry: _Entry) -> list[Dropped]:
    """The partitions of a source with ranges, once its batch is done."""
    return [
        Dropped(number, tp, reached.stable, entry.again(tp, reached.stable))
        for tp, reached in sorted(entry.offsets.progress.items())
        if entry.has_ranges(tp)
    ]


def _entries(log: OffsetLog, batch: int) -> dict[int, _Entry]:
    """The entries of Kafka sources in a batch's file."""
    entries = {}
    for number, line in log.sources(batch).items():
        try:
            entries[number] = _Entry(decode(line))
        except CheckpointVersionError:
            raise
        except CheckpointError as error:
            if EXTRA_KEY in line:
                entries[number] = _Entry(_without_extra(line, error), damaged=True)
    return entries


def _without_extra(line: str, error: CheckpointError) -> BatchOffsets:
    """The stable offsets of a dict of which the rest is damaged."""
    try:
        return decode_stable(line)
    except CheckpointError:
        raise error from None


def _level(offsets: BatchOffsets) -> BatchOffsets:
    """All partitions at their stable offsets, as Spark's own source writes them."""
    return BatchOffsets(
        {tp: Progress.at(reached.stable) for tp, reached in offsets.progress.items()}
    )


def _empty_batch(
    log: OffsetLog, newest: Mapping[int, _Entry], begun: Mapping[int, _Entry]
) -> tuple[dict[int, dict[int, BatchOffsets]], list[Dropped]]:
    """The content of two files with which an uncommitted batch reads no range.

    Its content may have been written: a sink that knows batches by their numbers would take other
    records for a repetition. So the batch ends where it begins.
    """
    ends: dict[int, BatchOffsets] = {}
    starts: dict[int, BatchOffsets] = {}
    dropped = []
    for number, entry in newest.items():
        before = begun.get(number, _Entry(BatchOffsets({})))
        if entry == before and not entry.damaged:  # only other sources have something to read
            ends[number] = starts[number] = _level(entry.offsets)
            dropped += _set_back(number, entry)
            continue
        end = dict(entry.offsets.progress)
        start = dict(before.offsets.progress)
        for tp in sorted(end):
            if not (entry.has_ranges(tp) or before.has_ranges(tp)):
                continue
            if entry.damaged and number in begun and not before.has_started(tp):
                del end[tp]
                dropped.append(Dropped(number, tp, None, None))
                continue
            stable = _begin(log, tp, entry, before)
            end[tp] = Progress.at(stable)
            if tp in start:
                start[tp] = Progress.at(stable)
            # What the batch reads comes again, too: it may be written, but nobody knows.
            dropped.append(Dropped(number, tp, stable, entry.again(tp, stable)))
        ends[number] = BatchOffsets(end, started=entry.offsets.started)
        if number in begun:
            starts[number] = BatchOffsets(start)
    changes = {log.planned: ends}
    if starts:
        changes[log.planned - 1] = starts
    return changes, dropped


def _begin(log: OffsetLog, tp: TopicPartition, entry: _Entry, before: _Entry) -> int:
    """The stable offset where a partition's batch begins."""
    if entry.offsets.open is not None or tp in entry.offsets.limits:
        return entry.offsets.progress[tp].stable
    if tp in entry.offsets.started:
        return entry.offsets.started[tp]
    if tp in before.offsets.progress:
        return before.offsets.progress[tp].stable
    raise CheckpointError(
        f"{log.file(log.planned)}: batch {log.planned} is not committed, and where it begins in "
        f"{tp} is not known: start the query with a new checkpoint"
    )


def _line(offsets: BatchOffsets) -> str:
    return json.dumps(encode(offsets), separators=(",", ":"))


def _back_up(log: OffsetLog, batches: Mapping[int, object], now: datetime) -> Path | str:
    """Copy the files of some batches into a directory of their own."""
    stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    backup = f"offsets-before-drop-ranges-{stamp}"
    for batch in batches:
        log.back_up(batch, backup)
    return log.folder.place(backup)
