"""Rows as JSON, as Spark's ``to_json`` writes them without options.

Guarantees: fields that are null are left out, null items and values of maps stay; binary is base64;
times are in the session's time zone, to the millisecond (after 2037 without summer time, as Arrow
follows its rules no further: the instant is the same, as of a zone that Arrow does not know, whose
times are in UTC); what is no number (``NaN``, ``Infinity``) is a string. Numbers may be written
otherwise than Java does (``1e+30``, ``1.0E30``), and are equal.
"""

from functools import partial

import numpy as np
import pyarrow as pa
from pyarrow import compute, types

from kshare.formats.encode.parts import Cells, in_lists, joined, struct_of
from kshare.formats.encode.texts import quoted
from kshare.formats.encode.variant import is_variant, variant_texts
from kshare.formats.encode.variant_scalars import binary_texts
from kshare.formats.encode.zones import in_known_zones

__all__ = ["JsonEncoder"]


class JsonEncoder:
    """Makes JSON of structs, lists, maps and variants.

    Args:
        kind: The type of the rows.

    Raises:
        ValueError: It cannot be written as JSON; the text says which field.
    """

    def __init__(self, kind: pa.DataType) -> None:
        if not (types.is_struct(kind) or types.is_list(kind) or types.is_map(kind)):
            raise ValueError(f"is of type {kind}, and JSON is made of structs, lists and maps")
        _check(kind, "")

    def encode(self, column: pa.Array) -> pa.Array:
        """Return a column of bytes; null stays null."""
        return Cells.of(in_known_zones(column)).encode(_text).cast(pa.binary())


def _check(kind: pa.DataType, path: str) -> None:
    """See that a type can be written.

    Raises:
        ValueError: It cannot.
    """
    if is_variant(kind):
        return
    if types.is_struct(kind):
        for field in kind:
            _check(field.type, f"{path}.{field.name}".removeprefix("."))
    elif types.is_list(kind):
        _check(kind.value_type, path)
    elif types.is_map(kind):
        _check(kind.item_type, path)
        if not (types.is_string(kind.key_type) or types.is_integer(kind.key_type)):
            raise ValueError(f"has a map {path} with keys of type {kind.key_type}")
    elif not (
        *(types.is_boolean(kind), types.is_integer(kind), types.is_floating(kind)),
        *(types.is_decimal(kind), types.is_string(kind), types.is_binary(kind)),
        *(types.is_date32(kind), types.is_timestamp(kind), types.is_null(kind)),
    ).count(True):
        raise ValueError(f"has field {path} of type {kind}, which JSON does not have")


def _text(cells: Cells) -> pa.Array:
    """JSON of values that are there."""
    kind = cells.values.type
    if is_variant(kind):
        return variant_texts(cells)
    if types.is_struct(kind):
        return _object(cells)
    if types.is_list(kind):
        offsets, items = cells.items()
        return joined(b"[", in_lists(offsets, items.encode(_text, b"null"), b","), b"]")
    if types.is_map(kind):
        offsets, keys, values = cells.entries()
        names = quoted(keys.values.cast(pa.string()))
        entries = joined(names, b":", values.encode(_text, b"null"))
        return joined(b"{", in_lists(offsets, entries, b","), b"}")
    return _leaf(cells.values).cast(pa.binary())


def _object(cells: Cells) -> pa.Array:
    members = []
    begun = np.zeros(len(cells), np.bool_)
    # Names are the type's: one with a dot cannot be told from a path.
    for kind, field in zip(cells.values.type, cells.fields(), strict=True):
        name = joined(quoted(pa.array([kind.name])), b":")[0].as_py()
        heads = pa.array([name, b"," + name], pa.binary())
        begins = heads.take(pa.array(begun[field.valid].astype(np.int8)))
        members.append(field.encode(partial(_member, begins)))
        begun |= field.valid
    return struct_of([b"{", *members, b"}"], len(cells))


def _member(begins: pa.Array, cells: Cells) -> pa.Array:
    return joined(begins, _text(cells))


def _leaf(values: pa.Array) -> pa.Array:
    kind = values.type
    if types.is_string(kind):
        return quoted(values)
    if types.is_binary(kind):
        return binary_texts(values)
    if types.is_timestamp(kind):
        return joined(b'"', _time(values).cast(pa.binary()), b'"')
    text = values.cast(pa.string())
    if types.is_date32(kind):
        return joined(b'"', text.cast(pa.binary()), b'"')
    if types.is_floating(kind):
        return _float(values, text)
    return text


def _float(values: pa.Array, text: pa.Array) -> pa.Array:
    """Text of numbers, and of what is none as Java names it."""
    finite = compute.is_finite(values)
    if compute.all(finite).as_py() is not False:
        return text
    names = compute.if_else(
        compute.is_nan(values),
        '"NaN"',
        compute.if_else(compute.greater(values, 0.0), '"Infinity"', '"-Infinity"'),
    )
    return compute.if_else(finite, text, names)


def _time(values: pa.Array) -> pa.Array:
    """``yyyy-MM-dd'T'HH:mm:ss.SSS`` and, of a time with a zone, ``XXX``."""
    micros = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64()).to_numpy()
    millis = pa.array(micros // 1000).cast(pa.timestamp("ms", values.type.tz))
    text = compute.strftime(millis, format="%Y-%m-%dT%H:%M:%S")
    if values.type.tz is None:
        return text
    local = compute.local_timestamp(millis).cast(pa.int64()).to_numpy()
    seconds, which = np.unique(local // 1000 - micros // 1_000_000, return_inverse=True)
    zones = pa.array([_zone(int(one)) for one in seconds], pa.string())
    return compute.binary_join_element_wise(text, zones.take(pa.array(which)), "")


def _zone(seconds: int) -> str:
    """The difference to UTC; before there were time zones, it had seconds."""
    if not seconds:
        return "Z"
    minutes, rest = divmod(abs(seconds), 60)
    sign = "-" if seconds < 0 else "+"
    return f"{sign}{minutes // 60:02}:{minutes % 60:02}" + (f":{rest:02}" if rest else "")
