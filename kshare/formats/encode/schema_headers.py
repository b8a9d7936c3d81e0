"""The headers of records that name schemas, as a sink writes them.

A record that is encoded anew has the header of its new schema, or none: a header that came with the
row from another topic names the schema of before, and readers believe it first.

Cost: a few passes of numpy; nothing where rows have no headers, and none is written.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.formats.header_ids import schema_header

__all__ = ["with_schema_header"]

_HEADERS: Final = "headers"
_ENTRY: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])


def with_schema_header(batch: pa.RecordBatch, column: str, value: bytes) -> pa.RecordBatch:
    """Return a batch whose rows name a schema in a header.

    Args:
        batch: The rows, of which a column is encoded.
        column: The column, ``key`` or ``value``.
        value: The header's value; empty: rows name none. A row whose column is null has none.
    """
    name = schema_header(column)
    place = batch.schema.get_field_index(_HEADERS)
    if place < 0 and not value:
        return batch
    rows, entries = np.zeros(0, np.int64), pa.array([], _ENTRY)
    if place >= 0:
        rows, entries = _others(batch.column(place), name)
    if value:
        named = np.flatnonzero(batch.column(column).is_valid().to_numpy(zero_copy_only=False))
        own = pa.array([{"key": name, "value": value}], _ENTRY)
        entries = pa.concat_arrays([entries, own])
        which = np.concatenate([np.arange(len(rows)), np.full(len(named), len(rows))])
        rows = np.concatenate([rows, named])
        order = np.argsort(rows, kind="stable")  # behind the row's own
        rows, entries = rows[order], entries.take(pa.array(which[order]))
    offsets = np.zeros(batch.num_rows + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=batch.num_rows), out=offsets[1:])
    made = pa.ListArray.from_arrays(pa.array(offsets), entries)
    if place < 0:
        return batch.append_column(_HEADERS, made)
    return batch.set_column(place, _HEADERS, made)


def _others(headers: pa.Array, name: str) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """The headers of other names, and the row of each."""
    from pyarrow import compute  # noqa: PLC0415 - 9 MB, which consumers do without

    lengths = compute.fill_null(compute.list_value_length(headers), 0)
    rows = np.repeat(np.arange(len(headers)), lengths.to_numpy(zero_copy_only=False))
    entries = headers.flatten()
    entries = pa.StructArray.from_arrays(
        [entries.field(0).cast(pa.string()), entries.field(1).cast(pa.binary())],
        fields=list(_ENTRY),
        mask=entries.is_null(),
    )
    kept = compute.fill_null(compute.not_equal(entries.field(0), name), True)
    return rows[kept.to_numpy(zero_copy_only=False)], entries.filter(kept)
