"""Spark's offset log, as files in a query's checkpoint directory: read and replaced.

A file ``offsets/N`` holds the version, a line of metadata, and a line of JSON for each source:
where batch N ends. ``commits/N`` says that the batch is done. Spark reads a hidden ``.N.crc``
beside a file, if there is one, and refuses a file that does not match it.

Cost: reading takes two listings and two files.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from kshare.core.checkpoint import EXTRA_KEY, Offsets, decode
from kshare.errors import CheckpointError, CheckpointVersionError

__all__ = ["OffsetLog"]

_REMOTE: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):/")
_NO_OFFSET: Final = "-"
_VERSION: Final = "v1"
_HEAD_LINES: Final = 2


@dataclass(frozen=True, slots=True)
class OffsetLog:
    """The newest entries of a query's offset log.

    Attributes:
        directory: The checkpoint's directory as it was named.
        root: The same as a path.
        planned: Number of the newest planned batch.
        committed: Number of the newest committed batch; None before the first.
    """

    directory: str
    root: Path
    planned: int
    committed: int | None

    @classmethod
    def open(cls, directory: str) -> "OffsetLog":
        """Look at a checkpoint; its query may be running.

        Args:
            directory: Its ``checkpointLocation``: a path, or a URI ``file:/...``.

        Raises:
            CheckpointError: there is no checkpoint, or no batch was planned yet.
        """
        root = _local(directory)
        planned = _newest(root / "offsets")
        if planned is None:
            what = "no batch is planned yet" if root.is_dir() else "there is no such directory"
            raise CheckpointError(
                f"{directory}: {what}; wanted the checkpointLocation of a query that was started"
            )
        return cls(directory, root, planned, _newest(root / "commits"))

    @property
    def is_committed(self) -> bool:
        """Whether the newest planned batch is done."""
        return self.committed is not None and self.committed >= self.planned

    @property
    def written_at(self) -> float:
        """When the query wrote last, in seconds since 1970."""
        files = [self.file(self.planned)]
        if self.committed is not None:
            files.append(self.root / "commits" / str(self.committed))
        return max(file.stat().st_mtime for file in files if file.exists())

    def file(self, batch: int) -> Path:
        """The file of a batch."""
        return self.root / "offsets" / str(batch)

    def lines(self, batch: int) -> list[str]:
        """The lines of a batch's file; its sources begin at the third.

        Raises:
            CheckpointError: it cannot be read.
            CheckpointVersionError: a later Spark wrote it.
        """
        file = self.file(batch)
        try:
            lines = file.read_text(encoding="utf-8").split("\n")
        except OSError as error:
            raise CheckpointError(f"{file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{file}: not a file of Spark's offset log") from error
        if lines[0] != _VERSION:
            raise CheckpointVersionError(
                f"{file}: wanted {_VERSION} of Spark's offset log, found {lines[0][:40]!r}",
                version=lines[0][:40],
            )
        return lines

    def sources(self, batch: int) -> dict[int, str]:
        """The lines of a batch's sources that have one, by the number of the source."""
        lines = enumerate(self.lines(batch)[_HEAD_LINES:])
        return {number: line for number, line in lines if line not in {_NO_OFFSET, ""}}

    def offsets(self, batch: int) -> dict[int, Offsets]:
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
        lines = self.lines(batch)
        for number, line in sources.items():
            lines[_HEAD_LINES + number] = line
        file = self.file(batch)
        new = file.with_name(f".{batch}.kshare.tmp")
        try:
            with new.open("w", encoding="utf-8") as opened:
                opened.write("\n".join(lines))
                opened.flush()
                os.fsync(opened.fileno())
            # First the sum of what is replaced: a file without one is in order.
            checksum(file).unlink(missing_ok=True)
            new.replace(file)
        except OSError as error:
            raise CheckpointError(f"{file}: {error.strerror}") from error


def checksum(file: Path) -> Path:
    """Where Hadoop's local file system keeps the checksum of a file."""
    return file.with_name(f".{file.name}.crc")


def _local(directory: str) -> Path:
    remote = _REMOTE.match(directory)
    if remote is None:
        return Path(directory)
    if remote[1].lower() != "file":
        raise CheckpointError(
            f"{directory}: only local checkpoints are read; copy the folders offsets and commits "
            "of this one to a local directory, and name that"
        )
    return Path(unquote(urlsplit(directory).path))


def _newest(folder: Path) -> int | None:
    """The highest batch number of a log of Spark's."""
    try:
        names = [file.name for file in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CheckpointError(f"{folder}: {error.strerror}") from error
    return max((int(name) for name in names if name.isdecimal()), default=None)
