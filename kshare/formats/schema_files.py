"""Registered schemas that the processes of a query on this host have asked for, as files.

So a registry is asked once for each id and host, and known ids go on while it is down, in new
Python workers, too. Each ``load()`` has a folder of its own: a registry that was made anew under
the same address gives ids to other schemas.

What a registry has answered is kept for a month, too, by the address: for queries that start
while it does not answer (:class:`LastAnswers`). For nothing else: see above.

Guarantees: only files of this user are read, from a folder that nobody else can write to. Without
such a folder each process asks for itself. Cost: a file of some KB for each id; folders that no
task has used for a day are removed with the next one that is made.
"""

import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from kshare.core.bounded_json import count_of, list_of, read_object, text_of
from kshare.operating_system import this_system
from kshare.options.typed_rows import RegistryConfig

__all__ = ["GlobalId", "LastAnswers", "RegisteredSchema", "SchemaFiles", "SchemaNumber"]

_log = logging.getLogger("kshare.formats")

_UNUSED_SECONDS: Final = 86_400.0
_LAST: Final = "last-"
_LAST_UNUSED_SECONDS: Final = 30 * 86_400.0
_LOCK_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class GlobalId:
    """An id of Apicurio's own: of a version of a subject.

    What its API that is Confluent's calls an id is another number, of a schema: subjects with the
    same schema share it.

    Attributes:
        number: The number.
    """

    number: int

    def __str__(self) -> str:
        return f"global id {self.number}"


SchemaNumber: TypeAlias = int | str | GlobalId
"""Records name schemas by these: an id, a GUID as 36 characters, or an id of Apicurio's own."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as the registry has it.

    Attributes:
        id: Its id; or its GUID or global id, of one that was asked for by that.
        kind: ``AVRO``, ``JSON`` or ``PROTOBUF``.
        text: The schema.
        subject: The subject that it was asked for by; None if by its id.
        version: Its version there.
        references: The schemas that it refers to: name and text, in the order in which they are
            needed.
        guid: Its GUID; None if the registry has not said one.
    """

    id: SchemaNumber
    kind: str
    text: str
    subject: str | None = None
    version: int | None = None
    references: tuple[tuple[str, str], ...] = ()
    guid: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        if isinstance(self.id, GlobalId):
            return str(self.id)
        if isinstance(self.id, str):
            return f"GUID {self.id}"
        if self.subject is None:
            return f"id {self.id}"
        return f"id {self.id} (version {self.version} of {self.subject})"


class SchemaFiles:
    """The schemas of one ``load()``, by id.

    Args:
        token: The name of the folder; letters and digits.
        root: Where folders are; None for the temporary folder.
    """

    def __init__(self, token: str, root: Path | None = None) -> None:
        if root is None:
            root = Path(tempfile.gettempdir()) / f"kshare-schemas-{os.geteuid()}"
        self._root = root
        self._folder = root / token

    def get(self, number: SchemaNumber) -> RegisteredSchema | None:
        """The schema with an id; None if it is not here."""
        schema = self.read(_file_name(number))
        return schema if schema is not None and schema.id == number else None

    def put(self, schema: RegisteredSchema) -> None:
        """Keep a schema for others; they do without if that fails."""
        self.write(_file_name(schema.id), schema)

    def read(self, name: str) -> RegisteredSchema | None:
        """The schema that was written by a name; None if it is not here."""
        try:
            if not self._is_private():
                return None
            schema = _decoded((self._folder / f"{name}.json").read_bytes())
        except (OSError, ValueError, TypeError, KeyError):
            return None
        with suppress(OSError):
            os.utime(self._folder)
        return schema

    def write(self, name: str, schema: RegisteredSchema) -> None:
        """Keep a schema by a name; others do without if that fails."""
        try:
            if not self._made():
                return
            handle, made = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(asdict(schema), file)
            Path(made).replace(self._folder / f"{name}.json")
        except OSError as error:
            _log.debug("schema %s is not kept for others: %s", schema.id, error)

    @contextmanager
    def asking(self, number: SchemaNumber) -> Iterator[None]:
        """The block in which one process of the host asks for an id, and others wait a little.

        They go on by themselves if that process is not done soon: the registry may be down.
        """
        try:
            handle = self._lock_file(number)
        except OSError:
            yield
            return
        try:
            deadline = time.monotonic() + _LOCK_SECONDS
            while not this_system().try_lock(handle) and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
            yield
        finally:
            os.close(handle)

    def _lock_file(self, number: SchemaNumber) -> int:
        if not self._made():
            raise OSError("no folder of this user's own")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        return os.open(self._folder / f"{_file_name(number)}.lock", flags, 0o600)

    def _made(self) -> bool:
        """Make the folders if they are not there; True if they are this user's own."""
        if not self._folder.exists():
            self._root.mkdir(mode=0o700, exist_ok=True)
            if not _is_own(self._root):
                return False
            self._remove_unused()
            self._folder.mkdir(mode=0o700, exist_ok=True)
        return self._is_private()

    def _is_private(self) -> bool:
        return _is_own(self._root) and _is_own(self._folder)

    def _remove_unused(self) -> None:
        for folder in self._root.iterdir():
            kept = _LAST_UNUSED_SECONDS if folder.name.startswith(_LAST) else _UNUSED_SECONDS
            with suppress(OSError):
                if folder.lstat().st_mtime < time.time() - kept:
                    shutil.rmtree(folder, ignore_errors=True)


class LastAnswers:
    """The answers of a registry on this host, by question, for when it does not answer.

    Args:
        config: How the registry is reached.
        root: Where folders are; None for the temporary folder.
    """

    def __init__(self, config: RegistryConfig, root: Path | None = None) -> None:
        where = [config.url, config.properties.get("bearer.auth.logical.cluster")]
        self._files = SchemaFiles(f"{_LAST}{_digest(repr(where))}", root)

    def get(self, question: str) -> RegisteredSchema | None:
        """The last answer to a question; None if nobody has asked it."""
        return self._files.read(_digest(question))

    def put(self, question: str, answer: RegisteredSchema) -> None:
        """Keep an answer."""
        self._files.write(_digest(question), answer)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _file_name(number: SchemaNumber) -> str:
    return f"global-{number.number}" if isinstance(number, GlobalId) else str(number)


def _decoded_id(found: object) -> SchemaNumber:
    if isinstance(found, dict):
        return GlobalId(count_of(found["number"]))
    return text_of(found) if isinstance(found, str) else count_of(found)


def _decoded(data: bytes) -> RegisteredSchema:
    found = read_object(data)
    subject, version = found["subject"], found["version"]
    return RegisteredSchema(
        _decoded_id(found["id"]),
        text_of(found["kind"]),
        text_of(found["text"]),
        None if subject is None else text_of(subject),
        None if version is None else count_of(version),
        tuple((text_of(name), text_of(text)) for name, text in list_of(found["references"])),
        None if found["guid"] is None else text_of(found["guid"]),
    )


def _is_own(folder: Path) -> bool:
    """True if it is a folder that only this user can write to, and no link to one."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    is_own = found.st_uid == os.geteuid() and not found.st_mode & 0o022
    return stat.S_ISDIR(found.st_mode) and is_own
