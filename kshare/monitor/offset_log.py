"""Spark's offset log, as files in a query's checkpoint directory: read and replaced.

A file ``offsets/N`` holds the version, a line of metadata, and a line for each source: where
batch N ends. In version 1 that is JSON, in the order of the sources. Version 2, which Spark 4.2
writes if sources have names (``readStream.name("orders")``), has the name and a colon before it.
Sources are numbered here: those with names in the order of their names in the newest batch.
``commits/N`` says that the batch is done. Spark reads a hidden ``.N.crc`` beside a local file, if
there is one, and refuses a file that does not match it.

Cost: reading takes two listings and three files.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kshare.core.checkpoint import EXTRA_KEY, BatchOffsets, decode
from kshare.errors import CheckpointError, CheckpointVersionError
from kshare.monitor.folder import Folder, open_folder

__all__ = ["OffsetLog"]

_NO_OFFSET: Final = "-"
_UNNAMED: Final = "v1"
_NAMED: Final = "v2"
_HEAD_LINES: Final = 2


@dataclass(frozen=True, slots=True)
class OffsetLog:
    """The newest entries of a query's offset log.

    Attributes:
        directory: The checkpoint's directory as it was named.
        folder: The same, opened.
        planned: Number of the newest planned batch.
        committed: Number of the newest committed batch; None before the first.
    """

    directory: str
    folder: Folder
    planned: int
    committed: int | None

    @classmethod
    def open(cls, directory: str) -> "OffsetLog":
        """Look at a checkpoint; its query may be running.

        Args:
            directory: Its ``checkpointLocation``: a path, or a URI such as ``file:/...`` or, with
                the extra ``remote``, ``s3://...``.

        Raises:
            CheckpointError: there is no checkpoint, or no batch was planned yet.
        """
        folder = open_folder(directory)
        planned = _newest(folder, "offsets")
        if planned is None:
            what = "no batch is planned yet" if folder.exists() else "there is no such directory"
            raise CheckpointError(
                f"{directory}: {what}; wanted the checkpointLocation of a query that was started"
            )
        return cls(directory, folder, planned, _newest(folder, "commits"))

    @property
    def is_committed(self) -> bool:
        """True if the newest planned batch is done."""
        return self.committed is not None and self.committed >= self.planned

    @property
    def written_at(self) -> float:
        """Time of the query's last write, in seconds since 1970."""
        committed = self.folder.written_at(f"commits/{self.committed}")
        return max(self.folder.written_at(_file(self.planned)), committed)

    def file(self, batch: int) -> Path | str:
        """The place of a batch's file."""
        return self.folder.place(_file(batch))

    def has(self, batch: int) -> bool:
        """True if there is a batch's file; Spark deletes old ones."""
        return batch >= 0 and self.folder.exists(_file(batch))

    def source_name(self, number: int) -> str | None:
        """The name of a source; None if it has none."""
        lines = self._lines(self.planned)
        return _names(lines)[number] if lines[0] == _NAMED else None

    def _lines(self, batch: int) -> list[str]:
        """The lines of a batch's file; its sources begin at the third.

        Raises:
            CheckpointError: it cannot be read.
            CheckpointVersionError: a later Spark wrote it.
        """
        lines = self.folder.read(_file(batch)).split("\n")
        if lines[0] not in {_UNNAMED, _NAMED}:
            raise CheckpointVersionError(
                f"{self.file(batch)}: wanted {_UNNAMED} or {_NAMED} of Spark's offset log, found "
                f"{lines[0][:40]!r}",
                version=lines[0][:40],
            )
        return lines

    def _places(self, batch: int) -> dict[int, tuple[int, str]]:
        """For the number of each source its line in a batch's file, and what that begins with.

        Raises:
            CheckpointError: as :meth:`_lines`, or the batches before are of the other version.
        """
        lines, newest = self._lines(batch), self._lines(self.planned)
        if lines[0] != newest[0]:
            raise CheckpointError(
                f"{self.file(batch)}: the query's sources got names, or lost them, after this "
                f"batch: let the query finish batch {self.planned} first"
            )
        if lines[0] == _UNNAMED:
            return {i - _HEAD_LINES: (i, "") for i in range(_HEAD_LINES, len(lines))}
        numbers = {name: number for number, name in enumerate(_names(newest))}
        return {
            numbers[name]: (_HEAD_LINES + i, f"{name}:")
            for i, name in enumerate(_names(lines, ordered=False))
            if name in numbers
        }

    def sources(self, batch: int) -> dict[int, str]:
        """The lines of a batch's sources that have one, by the number of the source."""
        lines = self._lines(batch)
        texts = {
            number: lines[at].removeprefix(start)
            for number, (at, start) in self._places(batch).items()
        }
        return {number: text for number, text in texts.items() if text not in {_NO_OFFSET, ""}}

    def offsets(self, batch: int) -> dict[int, BatchOffsets]:
        """The offset dicts of a batch's Kafka sources, by the number of the source.

        Raises:
            CheckpointError: one of kshare cannot be read.
            CheckpointVersionError: a later kshare wrote one.
        """
        offsets = {}
        for number, line in self.sources(batch).items():
            try:
                offsets[number] = decode(line)
            except CheckpointVersionError:
                raise
            except CheckpointError:
                if EXTRA_KEY in line:
                    raise
                # Offsets of another kind of source: files, rates, Delta.
        return offsets

    def replace(self, batch: int, sources: dict[int, str]) -> None:
        """Replace the lines of some sources of a batch, at once and durably.

        Raises:
            CheckpointError: the file cannot be written.
        """
        lines, places = self._lines(batch), self._places(batch)
        for number, line in sources.items():
            at, start = places[number]
            lines[at] = start + line
        # First the sum of what is replaced: a file without one is in order.
        self.folder.remove(_checksum(batch))
        self.folder.replace(_file(batch), "\n".join(lines))

    def back_up(self, batch: int, folder: str) -> None:
        """Copy a batch's file, and its checksum, into a folder of the checkpoint.

        Raises:
            CheckpointError: it cannot be copied.
        """
        for name in (_file(batch), _checksum(batch)):
            if self.folder.exists(name):
                self.folder.copy(name, f"{folder}/{name.rpartition('/')[2]}")


def _file(batch: int) -> str:
    return f"offsets/{batch}"


def _checksum(batch: int) -> str:
    """The path of a file's checksum in Hadoop's local file system."""
    return f"offsets/.{batch}.crc"


def _names(lines: list[str], *, ordered: bool = True) -> list[str]:
    """The names of the sources in a file of version 2."""
    names = [line.partition(":")[0] for line in lines[_HEAD_LINES:] if line]
    return sorted(names) if ordered else names


def _newest(folder: Folder, name: str) -> int | None:
    """The highest batch number of a log of Spark's."""
    numbers = (int(name) for name in folder.names(name) if name.isdecimal())
    return max(numbers, default=None)
