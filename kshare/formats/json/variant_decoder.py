"""JSON to variants, with the meaning of Spark's ``parse_json``.

Guarantees: whatever the bytes are, a row comes of each payload, and memory is at most some times
the size of the largest one besides the output. A record is bad or good by itself alone.

Cost: some 260 ns for a record of 155 bytes and 8 fields; 40 us for one that the plain reader has to
read: a number of more than 19 digits, bytes that are not UTF-8, a name that is there twice, half a
surrogate pair. Other bad records cost no more than good ones, and 2 us for their texts.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.formats.decoder import Decoded, Fault
from kshare.formats.json.plain_variant import OPTIONS, PlainVariant, too_large
from kshare.formats.json.reasons import grammar_reason
from kshare.formats.json.steps import powers_of_five_and_ten
from kshare.formats.payloads import Payloads, payload_of
from kshare.formats.variant_type import VARIANT
from kshare.read.decode import compiled, json_kind, status, variant_kind
from kshare.read.decode.layout import (
    COPY_SLACK,
    VARIANT_FIELD,
    VARIANT_KEY,
    VARIANT_LEVEL,
    VariantState,
)
from kshare.read.decode.output import Output

__all__ = ["VariantDecoder"]

_KEYS: Final = 1 << 8
_NAMES: Final = 1 << 13
_FIELDS: Final = 1 << 10


class VariantDecoder:
    """Reads records of JSON, of any kind, as Spark's ``parse_json`` does."""

    @property
    def type(self) -> pa.StructType:
        """Spark's VARIANT, as Arrow has it."""
        return VARIANT

    def decode(self, payloads: Payloads) -> Decoded:
        """Make variants of payloads.

        Returns:
            The variants; null where a record is bad.

        Raises:
            OverflowError: The variants have more than 2^31 - 1 bytes.
        """
        output, found = _read(payloads)
        values = output.finish()
        reread = {
            int(row): PlainVariant(payload_of(payloads, row)).read()
            for row in found["row"][found["code"] == json_kind.HARD]
        }
        if reread:
            values = _with_reread(values, reread)
        return Decoded(values, tuple(_faults(found, reread)))


class _Tables:
    """The memory that a decoding works with.

    Args:
        state: What works with it; it keeps addresses.
    """

    def __init__(self, state: VariantState) -> None:
        self._state = state
        self._levels = np.zeros(OPTIONS.max_depth, VARIANT_LEVEL)
        self._powers = powers_of_five_and_ten()
        state.levels = compiled.address(self._levels, VARIANT_LEVEL)
        state.max_depth = len(self._levels)
        state.powers = compiled.address(self._powers[0], np.uint64)
        state.tens = compiled.address(self._powers[1], np.float64)
        self._make_keys(_KEYS, _NAMES)
        self._make_fields(_FIELDS)

    def grow(self) -> None:
        """Make room for what found none: forget the names of former records, or take more."""
        state = self._state
        state.same_count = -1
        if state.lacking == variant_kind.LACKS_FIELDS:
            self._make_fields(2 * state.field_capacity)
        elif state.lacking == variant_kind.LACKS_KEYS:
            # Names of former records are forgotten; if those of this one are most, it needs more.
            times = 2 if 2 * state.id_count >= state.key_count else 1
            self._make_keys(times * state.key_capacity, times * state.names_capacity)

    def _make_keys(self, keys: int, names: int) -> None:
        state = self._state
        self._keys = np.empty(keys, VARIANT_KEY)
        self._ids = np.empty(keys, np.int32)
        self._slots = np.zeros(2 * keys, np.int32)
        self._names = np.empty(names + COPY_SLACK, np.uint8)
        state.keys = compiled.address(self._keys, VARIANT_KEY)
        state.ids = compiled.address(self._ids, np.int32)
        state.slots = compiled.address(self._slots, np.int32)
        state.names = compiled.address(self._names, np.uint8)
        state.key_capacity, state.slot_mask, state.names_capacity = keys, 2 * keys - 1, names
        state.key_count = state.names_used = 0
        state.same_count = -1

    def _make_fields(self, fields: int) -> None:
        self._fields = np.empty(fields, VARIANT_FIELD)
        self._state.fields = compiled.address(self._fields, VARIANT_FIELD)
        self._state.field_capacity = fields


def _read(payloads: Payloads) -> tuple[Output, npt.NDArray[np.void]]:
    """Run the compiled reader; return its output, and faults of FAULT."""
    starts = np.ascontiguousarray(payloads.starts, np.int64)
    ends = np.ascontiguousarray(payloads.ends, np.int64)
    data = np.ascontiguousarray(payloads.data, np.uint8)
    state, rows = VariantState(), len(starts)
    sizes = np.where(starts >= 0, ends - starts, 0).clip(0)
    # The last records need more room than they use in the end.
    output = Output(VARIANT, rows, int(sizes.sum()) + 4 * int(sizes.max(initial=0)) + _NAMES)
    state.rows.source, state.rows.size = compiled.address(data, np.uint8), len(data)
    state.rows.starts = compiled.address(starts, np.int64)
    state.rows.ends = compiled.address(ends, np.int64)
    state.rows.rows, state.max_size = rows, variant_kind.SIZE_MAX
    faults = output.begin(state.rows)
    tables = _Tables(state)
    while compiled.decode_variant(state) == status.FULL:
        if state.lacking == variant_kind.LACKS_OUTPUT:
            output.grow()
            state.same_count = -1
        else:
            tables.grow()
    return output, faults[: state.rows.fault_count]


def _with_reread(values: pa.Array, reread: dict[int, tuple[bytes, bytes] | str]) -> pa.Array:
    """Put the rows of the plain reader into their places."""
    kept = [None if isinstance(each, str) else each for each in reread.values()]
    rows = list(reread)
    made = pa.array([each and {"value": each[0], "metadata": each[1]} for each in kept], VARIANT)
    places = np.arange(len(values))
    places[rows] = len(values) + np.arange(len(rows))
    return pa.concat_arrays([values, made]).take(pa.array(places))


def _faults(
    found: npt.NDArray[np.void], reread: dict[int, tuple[bytes, bytes] | str]
) -> Iterator[Fault]:
    for row, _, code, at in found.tolist():
        if code == json_kind.HARD:
            fault = reread[row]
            if isinstance(fault, str):
                yield Fault(row, "", fault)
        else:
            yield Fault(row, "", _reason(code, at))


def _reason(code: int, at: int) -> str:
    if code == json_kind.EMPTY:
        return "is empty"
    if code == json_kind.TOO_LARGE:
        return too_large()
    return grammar_reason(code, at, OPTIONS.max_depth)
