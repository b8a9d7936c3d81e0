"""Columns of bytes that are put together row by row, in compiled code.

An encoder makes of each column of values a column of bytes, and joins these: of a struct one behind
the other, of a list all items of a row. So no Python runs for a record, and what is in a struct in
a list costs no more than what is in a column.

Guarantees: encoders see values that are there, never a null; each value knows its row, so a fault
names it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute

__all__ = [
    "Cells",
    "EncodeError",
    "bytes_of",
    "in_lists",
    "joined",
    "narrow",
    "prefixed",
    "rebuilt",
    "sized",
    "struct_of",
    "varints",
]

Ints: TypeAlias = npt.NDArray[np.int64]
_VARINT_BYTES: Final = 10


class EncodeError(ValueError):
    """A value that cannot be encoded.

    Attributes:
        row: The number of its row.
        field: The dotted path of its field; "" for the value as a whole.
        reason: The rest of a sentence about the field.
    """

    def __init__(self, row: int, field: str, reason: str) -> None:
        super().__init__(f"row {row}: {field or 'the value'} {reason}")
        self.row = row
        self.field = field
        self.reason = reason


@dataclass(frozen=True)
class Cells:
    """Some values of a field, none of them null unless it is said.

    Attributes:
        values: The values.
        rows: The row of each.
        path: The dotted path of the field.
    """

    values: pa.Array
    rows: Ints
    path: str = ""

    @classmethod
    def of(cls, column: pa.Array) -> "Cells":
        """The values of a column of a batch, with nulls."""
        return cls(column, np.arange(len(column)))

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def valid(self) -> npt.NDArray[np.bool_]:
        """True for each value that is there."""
        found: npt.NDArray[np.bool_] = self.values.is_valid().to_numpy(zero_copy_only=False)
        return found

    def encode(self, encode: Callable[["Cells"], pa.Array], null: bytes | None = None) -> pa.Array:
        """Encode what is there.

        Args:
            encode: Makes bytes of values that are there.
            null: What a null becomes; None: a null.
        """
        if not self.values.null_count:
            return encode(self)
        there = self.valid
        if there.any():
            made = encode(Cells(self.values.drop_null(), self.rows[there], self.path))
            column = made.take(pa.array(np.cumsum(there) - 1, mask=~there))
        else:
            column = pa.nulls(len(self), pa.binary())
        return column if null is None else column.fill_null(pa.scalar(null, column.type))

    def fields(self) -> list["Cells"]:
        """The values of each field, with nulls, of structs that are there; there are some."""
        kind = self.values.type
        return [
            Cells(child, self.rows, _below(self.path, kind[number].name))
            for number, child in enumerate(self.values.flatten())
        ]

    def items(self) -> tuple[Ints, "Cells"]:
        """Of lists that are there: how long each is, and the items, with nulls."""
        offsets, items = self._spans(self.values.values)
        return offsets, Cells(items, np.repeat(self.rows, np.diff(offsets)), self.path)

    def entries(self) -> tuple[Ints, "Cells", "Cells"]:
        """Of maps that are there: where each begins, the keys, and the values, with nulls."""
        offsets, keys = self._spans(self.values.keys)
        _, items = self._spans(self.values.items)
        rows = np.repeat(self.rows, np.diff(offsets))
        return offsets, Cells(keys, rows, self.path), Cells(items, rows, self.path)

    def _spans(self, below: pa.Array) -> tuple[Ints, pa.Array]:
        offsets = self.values.offsets.to_numpy().astype(np.int64)
        first = int(offsets[0]) if len(offsets) else 0
        last = int(offsets[-1]) if len(offsets) else 0
        return offsets - first, below.slice(first, last - first)

    def fail(self, wrong: npt.NDArray[np.bool_], reason: Callable[[Any], str]) -> None:
        """Refuse values, if there are any.

        Args:
            wrong: Which values.
            reason: Makes the rest of a sentence of the first of them.

        Raises:
            EncodeError: There are some.
        """
        if wrong.any():
            place = int(np.argmax(wrong))
            text = reason(self.values[place].as_py())
            raise EncodeError(int(self.rows[place]), self.path, text)

    def refuse_nulls(self, reason: str) -> None:
        """Refuse nulls, if there are any.

        Raises:
            EncodeError: There are some.
        """
        if self.values.null_count:
            self.fail(~self.valid, lambda _: reason)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def bytes_of(data: npt.NDArray[np.uint8], sizes: npt.NDArray[Any]) -> pa.Array:
    """A column of bytes that lie one behind the other.

    Args:
        data: The bytes.
        sizes: How many each row has.
    """
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)


def sized(numbers: npt.NDArray[Any]) -> pa.Array:
    """A column of numbers of fixed width as they lie in memory."""
    flat = np.ascontiguousarray(numbers)
    width = flat.dtype.itemsize * (flat.shape[1] if flat.ndim > 1 else 1)
    return bytes_of(flat.view(np.uint8).reshape(-1), np.full(len(flat), width))


def varints(numbers: npt.NDArray[Any]) -> pa.Array:
    """A column of numbers as varints; those that are negative have 10 bytes.

    Args:
        numbers: Of 64 bits.
    """
    rest = numbers.astype(np.int64).view(np.uint64)
    table = np.empty((len(rest), _VARINT_BYTES), np.uint8)
    sizes = np.ones(len(rest), np.int64)
    width = 0
    for place in range(_VARINT_BYTES):
        width = place + 1
        low = (rest & np.uint64(0x7F)).astype(np.uint8)
        rest = rest >> np.uint64(7)
        more = rest != 0
        table[:, place] = low | (more.astype(np.uint8) << 7)
        sizes += more
        if not more.any():
            break
    table = table[:, :width]
    return bytes_of(table[np.arange(width) < sizes[:, None]], sizes)


def joined(*pieces: pa.Array | bytes) -> pa.Array:
    """Columns, or bytes of every row, one behind the other; a null is no bytes."""
    columns = [pa.scalar(one, pa.binary()) if isinstance(one, bytes) else one for one in pieces]
    # "skip" would leave out rows of which all pieces are null, in Arrow 26.
    return compute.binary_join_element_wise(
        *columns, pa.scalar(b"", pa.binary()), null_handling="replace", null_replacement=""
    )


def prefixed(column: pa.Array, zigzag: bool = False) -> pa.Array:
    """Bytes, each behind its length."""
    sizes = compute.binary_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
    return joined(varints(sizes << 1 if zigzag else sizes), column)


def in_lists(offsets: Ints, items: pa.Array, separator: bytes = b"") -> pa.Array:
    """The items of each list, one behind the other."""
    lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), items)
    return compute.binary_join(lists, pa.scalar(separator, pa.binary()))


def struct_of(pieces: Sequence[pa.Array | bytes], rows: int) -> pa.Array:
    """Joined columns, of which there may be none."""
    if not any(isinstance(one, pa.Array) for one in pieces):
        text = b"".join(one for one in pieces if isinstance(one, bytes))
        return pa.repeat(pa.scalar(text, pa.binary()), rows)
    return joined(*pieces)


def narrow(kind: pa.DataType) -> pa.DataType:
    """A type with the usual strings and lists in place of large ones, if Spark has such."""
    if pa.types.is_large_list(kind):
        kind = pa.list_(kind.value_field)
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else rebuilt(kind, narrow)


def rebuilt(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A nested type with each type directly within it changed.

    Args:
        kind: The type; one that is not nested is returned as it is.
        change: Makes a type of one that is directly within it.
    """
    types = pa.types

    def changed(field: pa.Field) -> pa.Field:
        return field.with_type(change(field.type))

    if types.is_struct(kind):
        return pa.struct([changed(field) for field in kind])
    if types.is_list(kind):
        return pa.list_(changed(kind.value_field))
    if types.is_large_list(kind):
        return pa.large_list(changed(kind.value_field))
    if types.is_map(kind):
        return pa.map_(changed(kind.key_field), changed(kind.item_field))
    return kind
