"""Ids of schemas in headers, where some serializers put them, of a whole column.

::

    confluent   __value_schema_id         00    id: 4 bytes, big-endian    indexes, of Protobuf
                __key_schema_id           01    GUID: 16 bytes             indexes, of Protobuf
    apicurio    apicurio.value.globalId   global id: 8 bytes, big-endian   (.key. the same)
                apicurio.value.contentId  id: 8 bytes, big-endian

A record that has such a header has nothing in front of its payload. Of several, the last counts, as
in Java; if that has no value, there is none. A global id counts before an id.

Cost: a few passes of numpy over the names of headers; Python for each distinct value alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.formats.framing import bytes_of
from kshare.formats.protobuf.indexes import read_indexes
from kshare.formats.schema_files import GlobalId, SchemaNumber
from kshare.options.typed_rows import Framing, RowFormat

__all__ = [
    "HeaderId",
    "NamedRows",
    "header_value",
    "may_be_named",
    "rows_by_header",
    "schema_header",
]

_GLOBAL, _CONTENT = "apicurio.{}.globalId", "apicurio.{}.contentId"
_NAMES: Final[Mapping[Framing, tuple[str, ...]]] = {
    "confluent": ("__{}_schema_id",),
    "apicurio": (_GLOBAL, _CONTENT),
}
_ID, _GUID = 0, 1
_ID_END, _GUID_END = 5, 17
_APICURIOS_BYTES: Final = 8
_MOST_BYTES: Final = 1_200
"""Of a header: a GUID, and the indexes of 100 messages that are in one another."""


@dataclass(frozen=True, slots=True)
class HeaderId:
    """A schema that a header names.

    Attributes:
        number: The id of a schema, its GUID as 36 characters, or Apicurio's own id.
        path: The message, of Protobuf; None of others.
    """

    number: SchemaNumber
    path: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class NamedRows:
    """Rows that have the same header.

    Attributes:
        rows: Their numbers.
        named: What it names; or why it names nothing, as a clause.
    """

    rows: npt.NDArray[np.int64]
    named: HeaderId | str


def schema_header(column: str) -> str:
    """The name of the header in which Confluent's serializers name a column's schema."""
    return _NAMES["confluent"][0].format(column)


def header_value(number: int, guid: str | None, indexes: bytes = b"") -> bytes:
    """The value of such a header: the GUID, or the id, of a registry without GUIDs.

    Args:
        number: The schema's id.
        guid: Its GUID; None if the registry gives none.
        indexes: Of Protobuf, the message's indexes.
    """
    if guid is not None:
        return bytes([_GUID]) + UUID(guid).bytes + indexes
    return bytes([_ID]) + number.to_bytes(4, "big") + indexes


def may_be_named(form: RowFormat) -> bool:
    """True if headers may name the schema of a row."""
    return form.framing in _NAMES


def rows_by_header(
    headers: pa.Array,
    column: Literal["key", "value"],
    framing: Framing = "confluent",
    *,
    indexed: bool,
) -> list[NamedRows]:
    """The rows whose headers name a schema, by what they name.

    Args:
        headers: The column of headers.
        column: Whose schema.
        framing: Whose headers.
        indexed: Whether message indexes are behind the id.
    """
    made: list[NamedRows] = []
    taken = np.zeros(0, np.int64)
    for name in _NAMES[framing]:
        header = name.format(column)
        rows, found = _last_values(headers, header.encode())
        if len(taken):
            others = ~np.isin(rows, taken)
            rows, found = rows[others], found.filter(pa.array(others))
        taken = np.union1d(taken, rows)
        parse = partial(_apicurios, name) if framing == "apicurio" else partial(_parsed, indexed)
        made += _grouped(rows, found, header, parse)
    return made


def _grouped(
    rows: npt.NDArray[np.int64],
    found: pa.Array,
    header: str,
    parse: Callable[[bytes], HeaderId | str],
) -> list[NamedRows]:
    """The rows of each value of a header."""
    if not len(rows):
        return []
    encoded = found.dictionary_encode()
    which = encoded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(which, kind="stable")
    cuts = np.flatnonzero(np.diff(which[order])) + 1
    made = [
        NamedRows(rows[part], parse(encoded.dictionary[which[part[0]]].as_py()))
        for part in np.split(order, cuts)
    ]
    return [
        each
        if isinstance(each.named, HeaderId)
        else NamedRows(each.rows, f"has a header {header} that {each.named}")
        for each in made
    ]


def _last_values(headers: pa.Array, name: bytes) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """The rows that have a header of a name, and the value of the last one of each."""
    entries, count = headers.values, len(headers)
    none = np.zeros(0, np.int64), pa.array([], pa.binary())
    if not count or not len(entries):
        return none
    data, starts, ends = bytes_of(entries.field(0))
    places = np.flatnonzero((starts >= 0) & (ends - starts == len(name)))
    for number, byte in enumerate(name):
        if not len(places):
            return none
        places = places[data[starts[places] + number] == byte]
    bounds = np.frombuffer(headers.buffers()[1], np.int32, count + 1, headers.offset * 4)
    places = places[(places >= bounds[0]) & (places < bounds[-1])]
    rows = np.searchsorted(bounds, places, side="right") - 1
    is_last = np.append(rows[1:] != rows[:-1], True)[: len(rows)]
    values = entries.field(1)
    rows, places = rows[is_last], places[is_last]
    if values.null_count:
        there = bytes_of(values)[1][places] >= 0
        rows, places = rows[there], places[there]
    return rows.astype(np.int64), values.take(pa.array(places))


def _apicurios(name: str, value: bytes) -> HeaderId | str:
    if len(value) != _APICURIOS_BYTES:
        return f"has {len(value)} bytes, where {_APICURIOS_BYTES} are wanted"
    number = int.from_bytes(value, "big")
    return HeaderId(GlobalId(number) if name == _GLOBAL else number)


def _parsed(indexed: bool, value: bytes) -> HeaderId | str:
    kind = value[0] if value else None
    end = {_ID: _ID_END, _GUID: _GUID_END}.get(-1 if kind is None else kind)
    if end is None:
        return "is empty" if kind is None else f"begins with 0x{kind:02x}, where 0x00 or 0x01 is"
    if len(value) < end:
        return f"has {len(value)} bytes, where {end} are needed"
    if len(value) > _MOST_BYTES:
        return f"has more than {_MOST_BYTES} bytes"
    number = int.from_bytes(value[1:end], "big") if kind == _ID else str(UUID(bytes=value[1:end]))
    if not indexed:
        return HeaderId(number)
    try:
        path, _ = read_indexes(value[end:])
    except ValueError as error:
        return f"has no message indexes behind the id: {error}"
    return HeaderId(number, path)
