"""Scalars of variants as Spark's ``to_json`` writes them, column by column.

Guarantees: numbers are as Java writes them (``1.0E7``), decimals without zeros behind; a number
that is none is a string; times are in UTC, without zeros behind.
"""

import base64
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute

from kshare.formats.encode.parts import Ints, joined
from kshare.read.decode import variant_kind as kinds

__all__ = ["SIZES", "binary_texts", "scalar_texts"]

_WORDS: Final = {kinds.NULL: b"null", kinds.TRUE: b"true", kinds.FALSE: b"false"}
_INTEGERS: Final = {kinds.INT8: 1, kinds.INT16: 2, kinds.INT32: 4, kinds.INT64: 8}
_DECIMALS: Final = {
    kinds.DECIMAL4: kinds.DECIMAL4_MAX,
    kinds.DECIMAL8: kinds.DECIMAL8_MAX,
    kinds.DECIMAL16: kinds.DECIMAL16_MAX,
}
SIZES: Final = {
    **dict.fromkeys(_WORDS, 0),
    **_INTEGERS,
    kinds.DOUBLE: 8,
    kinds.FLOAT: 4,
    kinds.DECIMAL4: 5,
    kinds.DECIMAL8: 9,
    kinds.DECIMAL16: 17,
    kinds.DATE: 4,
    kinds.TIMESTAMP: 8,
    kinds.TIMESTAMP_NTZ: 8,
}
"""The bytes behind the first one, of each kind that always has as many."""

_PLAIN: Final = (1e-3, 1e7)  # between these, Java writes no exponent
_NUMBER: Final = r"^(?P<sign>-?)(?P<whole>\d+)(?:\.(?P<part>\d+))?(?:e(?P<exponent>[+-]\d+))?$"
_DAYS: Final = (-719_528, 2_932_896)  # of the years 0 to 9999
_MICROS_A_DAY: Final = 86_400_000_000
_YEARS: Final = "has a time that is not within the years 0 to 9999"

Need = Callable[[npt.NDArray[np.bool_], str], None]
"""Refuses values that are not fine, with a reason."""


def scalar_texts(kind: int, content: npt.NDArray[np.uint8], need: Need) -> pa.Array:
    """The texts of scalars of a kind.

    Args:
        kind: The kind, of :data:`SIZES`.
        content: The bytes of each, a row of the table.
        need: Refuses some.
    """
    if kind in _WORDS:
        return pa.repeat(pa.scalar(_WORDS[kind], pa.binary()), len(content))
    if kind in _INTEGERS:
        return _bytes(pa.array(_integers(content)).cast(pa.string()))
    if kind in _DECIMALS:
        return _decimals(content, _DECIMALS[kind], need)
    if kind in {kinds.DOUBLE, kinds.FLOAT}:
        width = np.dtype("<f8" if kind == kinds.DOUBLE else "<f4")
        return _floats(np.ascontiguousarray(content).view(width)[:, 0])
    if kind == kinds.DATE:
        days = _integers(content)
        need((days >= _DAYS[0]) & (days <= _DAYS[1]), _YEARS)
        return _in_quotes(pa.array(days.astype(np.int32)).cast(pa.date32()).cast(pa.string()))
    return _times(_integers(content), need, b"+00:00" if kind == kinds.TIMESTAMP else b"")


def binary_texts(values: pa.Array) -> pa.Array:
    """Binary values in base 64, in quotes."""
    encoded = pa.array(map(base64.b64encode, values.to_pylist()), pa.binary())
    return joined(b'"', encoded, b'"')


def _bytes(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.binary())


def _in_quotes(texts: pa.Array) -> pa.Array:
    return joined(b'"', _bytes(texts), b'"')


def _integers(content: npt.NDArray[np.uint8]) -> Ints:
    """Numbers of 1, 2, 4 or 8 bytes with a sign."""
    flat = np.ascontiguousarray(content)
    return flat.view(np.dtype(f"<i{content.shape[1]}"))[:, 0].astype(np.int64)


# -- decimals -------------------------------------------------------------------------------------


def _decimals(content: npt.NDArray[np.uint8], most: int, need: Need) -> pa.Array:
    scales, digits = content[:, 0].astype(np.int64), content[:, 1:]
    need(scales <= most, f"has a decimal of a scale of more than {most}")
    sign = np.where(digits[:, -1:] >> 7, 0xFF, 0).astype(np.uint8)
    wide = np.concatenate((digits, np.repeat(sign, 16 - digits.shape[1], axis=1)), axis=1)
    buffer = pa.py_buffer(np.ascontiguousarray(wide))
    numbers = pa.Array.from_buffers(pa.decimal128(38, 0), len(wide), [None, buffer])
    text = numbers.cast(pa.string(), safe=False)
    negative = compute.starts_with(text, "-")
    plain = compute.utf8_ltrim(text, "-")
    size = compute.utf8_length(plain).to_numpy()
    need(size <= most, f"has a decimal of more than {most} digits")
    places: list[Ints] = []
    parts: list[pa.Array] = []
    for scale in np.unique(scales).tolist():
        own = np.flatnonzero(scales == scale)
        places.append(own)
        parts.append(_with_point(plain.take(pa.array(own)), scale))
    order = np.empty(len(wide), np.int64)
    order[np.concatenate(places)] = np.arange(len(wide))
    signs = compute.if_else(negative, "-", "")
    return _bytes(
        compute.binary_join_element_wise(signs, pa.concat_arrays(parts).take(pa.array(order)), "")
    )


def _with_point(digits: pa.Array, scale: int) -> pa.Array:
    """Numbers with a point before as many digits, without zeros behind it."""
    if not scale:
        return digits
    padded = compute.utf8_lpad(digits, scale + 1, "0")
    part = compute.utf8_rtrim(compute.utf8_slice_codeunits(padded, -scale), "0")
    point = compute.if_else(compute.equal(part, ""), "", ".")
    whole = compute.utf8_slice_codeunits(padded, 0, -scale)
    return compute.binary_join_element_wise(whole, point, part, "")


# -- floats ---------------------------------------------------------------------------------------


def _floats(values: npt.NDArray[np.float64] | npt.NDArray[np.float32]) -> pa.Array:
    """Numbers as Java writes them; what is none, in quotes."""
    array = pa.array(values)
    text = array.cast(pa.string())
    size = np.abs(values.astype(np.float64))
    is_plain = (size == 0) | ((size >= _PLAIN[0]) & (size < _PLAIN[1]))
    finite = np.isfinite(values)
    whole = compute.invert(compute.match_substring(text, "."))
    text = compute.binary_join_element_wise(text, compute.if_else(whole, ".0", ""), "")
    if is_plain.all():
        return _bytes(text)
    rest = np.flatnonzero(finite & ~is_plain)
    names = np.where(np.isnan(values), '"NaN"', np.where(values > 0, '"Infinity"', '"-Infinity"'))
    text = compute.if_else(pa.array(finite), text, pa.array(names))
    if not len(rest):
        return _bytes(text)
    places = np.arange(len(values))
    places[rest] = len(values) + np.arange(len(rest))
    scientific = _scientific(array.take(pa.array(rest)).cast(pa.string()))
    return _bytes(pa.concat_arrays([text, scientific]).take(pa.array(places)))


def _scientific(texts: pa.Array) -> pa.Array:
    """Numbers in Java's way with an exponent, of the shortest digits."""
    found = compute.extract_regex(texts, _NUMBER)
    sign, whole, part, exponent = (
        found.field(name) for name in ("sign", "whole", "part", "exponent")
    )
    written = compute.binary_join_element_wise(whole, part, "")
    digits = compute.utf8_ltrim(written, "0")
    zeros = compute.utf8_length(written).to_numpy() - compute.utf8_length(digits).to_numpy()
    given = compute.if_else(compute.equal(exponent, ""), "0", compute.utf8_ltrim(exponent, "+"))
    power = compute.utf8_length(whole).to_numpy() - 1 - zeros
    power = power + given.cast(pa.int64()).to_numpy()
    behind = compute.utf8_rtrim(compute.utf8_slice_codeunits(digits, 1), "0")
    behind = compute.if_else(compute.equal(behind, ""), "0", behind)
    first = compute.utf8_slice_codeunits(digits, 0, 1)
    number = compute.binary_join_element_wise(first, behind, ".")
    return compute.binary_join_element_wise(
        compute.binary_join_element_wise(sign, number, ""), pa.array(power).cast(pa.string()), "E"
    )


# -- times ----------------------------------------------------------------------------------------


def _times(micros: Ints, need: Need, zone: bytes) -> pa.Array:
    """``yyyy-MM-dd HH:mm:ss``, and a fraction without zeros behind."""
    days = micros // _MICROS_A_DAY
    need((days >= _DAYS[0]) & (days <= _DAYS[1]), _YEARS)
    seconds = pa.array(micros // 1_000_000).cast(pa.timestamp("s"))
    text = compute.strftime(seconds, format="%Y-%m-%d %H:%M:%S")
    fraction = micros % 1_000_000
    if fraction.any():
        digits = compute.utf8_lpad(pa.array(fraction).cast(pa.string()), 6, "0")
        digits = compute.utf8_rtrim(digits, "0")
        point = compute.if_else(compute.equal(digits, ""), "", ".")
        text = compute.binary_join_element_wise(text, point, digits, "")
    return joined(b'"', _bytes(text), zone, b'"')
