"""The check if the installed Spark keeps a planned read with its scan, or with the whole source.

Spark 4.1 to 4.3 keep what a Python source has planned with the source of the DataFrame
(``PythonDataSourceV2.setReadInfo``), for every scan of it. A plan that leaves out the rows that one
query's filters exclude would then be read by other queries. Later versions keep the plan in
``PythonScan``.

Only Spark's class files can prove that a plan is kept with its scan: what cannot be found, read or
understood is no proof. Cost: three small classes of one jar, once a process.
"""

import os
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pyspark

__all__ = ["filters_may_be_pushed", "installed_jars", "kept_with_scan", "scans_keep_read_info"]

_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"
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
_TWO_ENTRIES: Final = (5, 6)
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
    """A field or method, with its type and generic type as in the class file."""

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


def filters_may_be_pushed() -> bool:
    """True if Spark has started this process to push filters, and keeps the plan with the scan.

    Spark refuses a query whose reader takes filters while
    ``spark.sql.python.filterPushdown.enabled`` is off. That setting cannot be seen here. But where
    it is on and the query has filters, Spark plans in a worker of a module of its own.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    started = _PUSHING in sys.modules or getattr(spec, "name", None) == _PUSHING
    return started and scans_keep_read_info()


@cache
def scans_keep_read_info() -> bool:
    """True if each scan of the installed Spark has its own planned read."""
    jars = installed_jars()
    return bool(jars) and all(kept_with_scan(jar) for jar in jars)


def installed_jars() -> list[Path]:
    """Return the jars that the JVM that started this process may use.

    They are those in SPARK_HOME, which the JVM passes on, and those beside this PySpark. If they
    differ, one of them is the JVM's.
    """
    home = os.environ.get("SPARK_HOME")
    folders = [Path(pyspark.__file__).parent, *([Path(home)] if home else [])]
    jars = {
        jar.resolve() for folder in folders for jar in (folder / "jars").glob("spark-sql_*.jar")
    }
    return sorted(jars)


def kept_with_scan(jar: Path) -> bool:
    """True if this jar proves that a planned read belongs to one scan.

    It does if the scan and the scan builder have a field for the read info, and the source has
    neither a method that takes one nor a method that returns one and that the builder may call.
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
    """Parse a class file.

    Raises:
        ValueError, LookupError, struct.error: It is not a class file, or of an unknown version.
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
        self._position = 0

    def take(self, form: str) -> tuple[int, ...]:
        values: tuple[int, ...] = struct.unpack_from(form, self._content, self._position)
        self._position += struct.calcsize(form)
        return values

    def number(self) -> int:
        return self.take(">H")[0]

    def skip(self, count: int) -> None:
        self._position += count

    def text(self, length: int) -> str:
        self._position += length
        return self._content[self._position - length : self._position].decode("utf-8", "replace")


def _texts(reader: _Reader) -> dict[int, str]:
    texts = {}
    count, index = reader.number(), 1
    while index < count:
        (tag,) = reader.take(">B")
        if tag == _TEXT:
            texts[index] = reader.text(reader.number())
        else:
            reader.skip(_CONSTANTS[tag])
        index += 2 if tag in _TWO_ENTRIES else 1
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
