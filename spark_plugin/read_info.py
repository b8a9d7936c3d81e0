"""Where the Spark that is installed keeps a planned read: with its scan, or with the whole source.

Law: a safe place is proved from Spark's class files; what cannot be found, read or understood is
not safe. Cost: three small classes of one jar, once a process.

Spark 4.1 to 4.3 keep what a Python source has planned with the source of the DataFrame
(``PythonDataSourceV2.setReadInfo``), for all that is made of it. A plan without the rows that one
query's filters exclude would then be read by other queries. Later ones carry it in ``PythonScan``.
"""

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pyspark

__all__ = ["installed_jars", "kept_with_scan", "scans_keep_read_info"]

_FOLDER: Final = "org/apache/spark/sql/execution/datasources/v2/python"
_INFO: Final = f"L{_FOLDER}/PythonDataSourceReadInfo;"
_PRIVATE: Final = 0x0002
_MAGIC: Final = 0xCAFEBABE
# Bytes after the tag of a constant (the Java virtual machine specification, 4.4); 1 is text.
_CONSTANTS: Final = {
    **dict.fromkeys((7, 8, 16, 19, 20), 2),
    15: 3,
    **dict.fromkeys((3, 4, 9, 10, 11, 12, 17, 18), 4),
    **dict.fromkeys((5, 6), 8),
}
_TEXT: Final = 1
_TWO_PLACES: Final = (5, 6)
_UNREADABLE: Final = (
    OSError,
    LookupError,
    ValueError,
    RuntimeError,  # encrypted, or compressed in a way that is not known
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True, slots=True)
class _Member:
    """A field or method: its name, and its type or generic type as the class file spells it."""

    private: bool
    name: str
    descriptor: str
    signature: str

    @property
    def has_info(self) -> bool:
        return _INFO in self.descriptor or _INFO in self.signature

    @property
    def takes_info(self) -> bool:
        return any(_INFO in text.partition(")")[0] for text in (self.descriptor, self.signature))


@dataclass(frozen=True, slots=True)
class _Class:
    texts: frozenset[str]
    fields: tuple[_Member, ...]
    methods: tuple[_Member, ...]


@cache
def scans_keep_read_info() -> bool:
    """Whether each scan of the installed Spark has a planned read of its own."""
    jars = installed_jars()
    return bool(jars) and all(kept_with_scan(jar) for jar in jars)


def installed_jars() -> list[Path]:
    """Spark's jars of the JVM that has started this process, as far as can be told from here.

    That is what SPARK_HOME has, which the JVM passes on, and what lies beside this PySpark. If they
    differ, one of them is the JVM's.
    """
    home = os.environ.get("SPARK_HOME")
    folders = [Path(pyspark.__file__).parent, *([Path(home)] if home else [])]
    found = {
        jar.resolve() for folder in folders for jar in (folder / "jars").glob("spark-sql_*.jar")
    }
    return sorted(found)


def kept_with_scan(jar: Path) -> bool:
    """Whether this jar proves that a read that is planned with filters is its scan's alone.

    It does if scan and scan builder have a field for it, and if the source has neither a method
    that takes one nor a method about one that the builder may call.
    """
    try:
        with zipfile.ZipFile(jar) as archive:
            source, builder, scan = (
                _parsed(archive.read(f"{_FOLDER}/{name}.class"))
                for name in ("PythonDataSourceV2", "PythonScanBuilder", "PythonScan")
            )
    except _UNREADABLE:
        return False
    if not all(any(field.has_info for field in owner.fields) for owner in (scan, builder)):
        return False
    shared = [method for method in source.methods if method.has_info and not method.private]
    return not any(method.takes_info or method.name in builder.texts for method in shared)


def _parsed(content: bytes) -> _Class:
    """A class file's texts and members.

    Raises:
        ValueError, LookupError, struct.error: it is none, or of a kind that is not known.
    """
    reader = _Reader(content)
    magic, _, _ = reader.take(">IHH")
    if magic != _MAGIC:
        raise ValueError("not a class file")
    texts = _texts(reader)
    reader.take(">HHH")  # access, this class, its superclass
    reader.skip(2 * reader.number())  # interfaces
    fields = tuple(_members(reader, texts))
    methods = tuple(_members(reader, texts))
    return _Class(frozenset(texts.values()), fields, methods)


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def take(self, form: str) -> tuple[int, ...]:
        values: tuple[int, ...] = struct.unpack_from(form, self._content, self._at)
        self._at += struct.calcsize(form)
        return values

    def number(self) -> int:
        return self.take(">H")[0]

    def skip(self, count: int) -> None:
        self._at += count

    def text(self, length: int) -> str:
        self._at += length
        return self._content[self._at - length : self._at].decode("utf-8", "replace")


def _texts(reader: _Reader) -> dict[int, str]:
    texts = {}
    count, index = reader.number(), 1
    while index < count:
        (tag,) = reader.take(">B")
        if tag == _TEXT:
            texts[index] = reader.text(reader.number())
        else:
            reader.skip(_CONSTANTS[tag])
        index += 2 if tag in _TWO_PLACES else 1
    return texts


def _members(reader: _Reader, texts: dict[int, str]) -> Iterator[_Member]:
    for _ in range(reader.number()):
        access, name, descriptor = reader.take(">HHH")
        signature = ""
        for _ in range(reader.number()):
            attribute, length = reader.take(">HI")
            if texts[attribute] == "Signature":
                signature = texts[reader.number()]
            else:
                reader.skip(length)
        yield _Member(bool(access & _PRIVATE), texts[name], texts[descriptor], signature)
