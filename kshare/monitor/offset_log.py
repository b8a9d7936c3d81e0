"""Spark's offset log, as files in a query's checkpoint directory: read and replaced.

A file ``offsets/N`` holds the version, a line of metadata, and a line for each source: where
batch N ends. In version 1 that is JSON, in the order of the sources. Version 2, which Spark 4.2
writes if sources have names (``readStream.name("orders")``), has the name and a colon before it.
Sources are numbered here: those with names in the order of their names in the newest batch.
``commits/N`` says that the batch is done. Spark reads a hidden ``.N.crc`` beside a local file, if
there is one, and refuses a file that does not match it.

The directory is local, or in a store that fsspec knows (``s3://``, ``abfss://`` ...). fsspec is an
extra (``kshare[remote]``), and takes the packages of the stores besides: s3fs, adlfs, gcsfs; for
HDFS pyarrow and libhdfs.

Guarantees: a local file is replaced at once and durably, and keeps its mode and, if this user may
say so, its owner. An object of a store is replaced by one request, in HDFS by writing it anew.
Cost: reading takes two listings and three files; in a store each is a request.
"""

import logging
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from kshare.core.bounded_json import read_object
from kshare.core.checkpoint import EXTRA_KEY, BatchOffsets, decode
from kshare.errors import CheckpointError, CheckpointVersionError

__all__ = ["Folder", "LocalFolder", "OffsetLog", "RemoteFolder", "open_folder"]

_log = logging.getLogger(__name__)

_NO_OFFSET: Final = "-"
_UNNAMED: Final = "v1"
_NAMED: Final = "v2"
_HEAD_LINES: Final = 2
_URI: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):/")
_SAME_STORES: Final = {"s3n": "s3", "s3a": "s3", "wasbs": "abfs", "wasb": "abfs"}


class Folder(Protocol):
    """Access to a checkpoint's directory, by names with slashes. CheckpointError: it failed."""

    def exists(self, name: str = "") -> bool: ...  # noqa: D102
    def names(self, name: str) -> list[str]: ...  # noqa: D102
    def read(self, name: str) -> str: ...  # noqa: D102
    def replace(self, name: str, text: str) -> None: ...  # noqa: D102
    def remove(self, name: str) -> None: ...  # noqa: D102
    def copy(self, name: str, to: str) -> None: ...  # noqa: D102
    def written_at(self, name: str) -> float: ...  # noqa: D102
    def place(self, name: str) -> Path | str: ...  # noqa: D102


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
            CheckpointError: There is no checkpoint, or no batch was planned yet.
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

    @property
    def batch_seconds(self) -> float:
        """Seconds between the newest two planned batches; 0 if that is not known."""
        before = self.folder.written_at(_file(self.planned - 1)) if self.planned else 0.0
        return max(self.folder.written_at(_file(self.planned)) - before, 0.0) if before else 0.0

    @property
    def watermark_ms(self) -> int:
        """The watermark of the newest planned batch, in milliseconds since 1970; 0 if none."""
        return self._fact("batchWatermarkMs")

    @property
    def planned_ms(self) -> int:
        """When the newest batch was planned, in milliseconds since 1970; 0 if that is not known."""
        return self._fact("batchTimestampMs")

    def _fact(self, name: str) -> int:
        """An integer in the metadata of the newest planned batch; 0 if it is not there."""
        try:
            found = read_object(self._lines(self.planned)[1]).get(name)
        except (ValueError, IndexError):
            return 0
        return found if isinstance(found, int) else 0

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
            CheckpointError: It cannot be read.
            CheckpointVersionError: A later Spark wrote it.
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
            CheckpointError: As :meth:`_lines`, or the batches before are of the other version.
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
            CheckpointError: One of kshare cannot be read.
            CheckpointVersionError: A later kshare wrote one.
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
            CheckpointError: The file cannot be written.
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
            CheckpointError: It cannot be copied.
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


def open_folder(directory: str) -> Folder:
    """Return the directory that a path or URI names.

    Raises:
        CheckpointError: The package fsspec, or that of the store, is not installed.
    """
    uri = _URI.match(directory)
    if uri is None:
        return LocalFolder(Path(directory))
    if uri[1].lower() == "file":
        return LocalFolder(Path(unquote(urlsplit(directory).path)))
    scheme, rest = uri[1].lower(), directory[uri.end(1) :]
    try:
        if not rest.startswith("://"):
            raise ValueError("without //")
        from fsspec.core import url_to_fs  # noqa: PLC0415 - an extra

        system, root = url_to_fs(_SAME_STORES.get(scheme, scheme) + rest)
    except Exception as error:  # stores have errors of their own
        raise CheckpointError(
            f"{directory}: cannot be opened ({_reason(error)}). {scheme}:// needs kshare[remote] "
            "and fsspec's package of that store. Or copy the folders offsets and commits to a "
            "local directory, and name that"
        ) from error
    return RemoteFolder(system, root, directory)


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """A local directory."""

    root: Path

    def exists(self, name: str = "") -> bool:
        """True if there is a file or directory of that name."""
        with _faults(self.place(name)):
            return self.place(name).exists()

    def names(self, name: str) -> list[str]:
        """Return what is in a directory; nothing if it is not there."""
        with _faults(self.place(name)):
            try:
                return os.listdir(self.place(name))  # noqa: PTH208 - only the names
            except (FileNotFoundError, NotADirectoryError):
                return []

    def read(self, name: str) -> str:
        """Return a file's text."""
        with _faults(self.place(name)):
            return self.place(name).read_text(encoding="utf-8")

    def replace(self, name: str, text: str) -> None:
        """Replace a file, at once and durably; who could read it still can."""
        file = self.place(name)
        new = file.with_name(f".{file.name}.kshare.tmp")
        with _faults(file):
            old = file.stat()
            new.unlink(missing_ok=True)  # of a command that has died
            try:
                with new.open("x", encoding="utf-8") as opened:
                    opened.write(text)
                    opened.flush()
                    is_kept = _keep_access(opened.fileno(), old)
                    os.fsync(opened.fileno())
                new.replace(file)
            finally:
                new.unlink(missing_ok=True)
        if not is_kept:
            _log.warning(
                "%s belonged to user %d, group %d, and now to user %d: the query may be unable to "
                "read it; give it back (chown)",
                *(file, old.st_uid, old.st_gid, os.geteuid()),
            )

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        with _faults(self.place(name)):
            self.place(name).unlink(missing_ok=True)

    def copy(self, name: str, to: str) -> None:
        """Copy a file, into a directory that is made if need be; who may read it may read that."""
        file, copy = self.place(name), self.place(to)
        with _faults(copy):
            if not copy.parent.exists():
                copy.parent.mkdir(exist_ok=True)
                _keep_access(copy.parent, file.parent.stat())
            shutil.copy2(file, copy)
            _keep_access(copy, file.stat())

    def written_at(self, name: str) -> float:
        """Return when a file was written, in seconds since 1970; 0 if it is not there."""
        with _faults(self.place(name)):
            return self.place(name).stat().st_mtime if self.exists(name) else 0.0

    def place(self, name: str) -> Path:
        """The path or URL of a file."""
        return self.root / name


def _keep_access(new: Path | int, old: os.stat_result) -> bool:
    """Give what is new the mode and the owner of what is old: its readers may be other users.

    Args:
        new: A path, or the descriptor of an open file.
        old: What ``stat`` says of the old one.

    Returns:
        False if the owner or the group is another one, as not everybody may change them.
    """
    with suppress(OSError):  # a file system without modes
        os.chmod(new, stat.S_IMODE(old.st_mode))  # noqa: PTH101 - of a descriptor, too
    with suppress(OSError):
        os.chown(new, old.st_uid, old.st_gid)
    found = os.stat(new)  # noqa: PTH116 - as above
    return (found.st_uid, found.st_gid) == (old.st_uid, old.st_gid)


@dataclass(frozen=True, slots=True)
class RemoteFolder:
    """A directory of a file system of fsspec's; methods as those of :class:`LocalFolder`."""

    system: Any
    root: str
    uri: str

    def exists(self, name: str = "") -> bool:  # noqa: D102
        with _faults(self.place(name)):
            return bool(self.system.exists(self._path(name)))

    def names(self, name: str) -> list[str]:  # noqa: D102
        with _faults(self.place(name)):
            # What a listing has kept may be old: the query may be running.
            self.system.invalidate_cache()
            try:
                found = self.system.ls(self._path(name), detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
            return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def read(self, name: str) -> str:  # noqa: D102
        with _faults(self.place(name)):
            content: bytes = self.system.cat_file(self._path(name))
            return content.decode()

    def replace(self, name: str, text: str) -> None:  # noqa: D102
        with _faults(self.place(name)):
            self.system.pipe_file(self._path(name), text.encode())

    def remove(self, name: str) -> None:  # noqa: D102
        with _faults(self.place(name)):
            if self.system.exists(self._path(name)):
                self.system.rm_file(self._path(name))

    def copy(self, name: str, to: str) -> None:  # noqa: D102
        with _faults(self.place(to)):
            folder = self._path(to).rpartition("/")[0]
            self.system.makedirs(folder, exist_ok=True)
            self.system.pipe_file(self._path(to), self.system.cat_file(self._path(name)))

    def written_at(self, name: str) -> float:  # noqa: D102
        with _faults(self.place(name)):
            if not self.system.exists(self._path(name)):
                return 0.0
            try:
                return float(self.system.modified(self._path(name)).timestamp())
            except NotImplementedError:
                return 0.0

    def place(self, name: str) -> str:  # noqa: D102
        return f"{self.uri.rstrip('/')}/{name}"

    def _path(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}" if name else self.root


@contextmanager
def _faults(place: Path | str) -> Iterator[None]:
    """Raise what goes wrong as a CheckpointError that names the place."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{place}: not a file of Spark's offset log") from error
    except CheckpointError:
        raise
    except Exception as error:  # stores have errors of their own
        raise CheckpointError(f"{place}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The first line of an error; HDFS's has a hundred."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0][:200]
