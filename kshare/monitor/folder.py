"""A checkpoint's directory: local, or in a store that fsspec knows (``s3://``, ``abfss://`` ...).

Names are relative to the directory, with slashes. fsspec is an extra (``kshare[remote]``), and
takes the packages of the stores besides: s3fs, adlfs, gcsfs; for HDFS pyarrow and libhdfs.

Guarantees: a local file is replaced at once and durably. An object of a store is replaced by one
request, in HDFS by writing it anew.

Cost: a request for each call.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from kshare.errors import CheckpointError

__all__ = ["Folder", "LocalFolder", "RemoteFolder", "open_folder"]

_URI: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):/")
_SAME_STORES: Final = {"s3n": "s3", "s3a": "s3", "wasbs": "abfs", "wasb": "abfs"}


class Folder(Protocol):
    """Access to a checkpoint's directory. CheckpointError: it failed."""

    def exists(self, name: str = "") -> bool: ...  # noqa: D102
    def names(self, name: str) -> list[str]: ...  # noqa: D102
    def read(self, name: str) -> str: ...  # noqa: D102
    def replace(self, name: str, text: str) -> None: ...  # noqa: D102
    def remove(self, name: str) -> None: ...  # noqa: D102
    def copy(self, name: str, to: str) -> None: ...  # noqa: D102
    def written_at(self, name: str) -> float: ...  # noqa: D102
    def place(self, name: str) -> Path | str: ...  # noqa: D102


def open_folder(directory: str) -> Folder:
    """Return the directory that a path or URI names.

    Raises:
        CheckpointError: fsspec or the package of the store is not installed.
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
        """Replace a file, at once and durably."""
        file = self.place(name)
        new = file.with_name(f".{file.name}.kshare.tmp")
        with _faults(file):
            with new.open("w", encoding="utf-8") as opened:
                opened.write(text)
                opened.flush()
                os.fsync(opened.fileno())
            new.replace(file)

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        with _faults(self.place(name)):
            self.place(name).unlink(missing_ok=True)

    def copy(self, name: str, to: str) -> None:
        """Copy a file, into a directory that is made if need be."""
        with _faults(self.place(to)):
            self.place(to).parent.mkdir(exist_ok=True)
            shutil.copy2(self.place(name), self.place(to))

    def written_at(self, name: str) -> float:
        """Return when a file was written, in seconds since 1970; 0 if it is not there."""
        with _faults(self.place(name)):
            return self.place(name).stat().st_mtime if self.exists(name) else 0.0

    def place(self, name: str) -> Path:
        """The path or URL of a file."""
        return self.root / name


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
