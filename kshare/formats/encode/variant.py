"""Variants to JSON, as Spark's ``to_json`` writes them, of a whole column at once.

::

    level 0   the values of the rows
    level 1   the values within them, one behind the other      top down: where each value lies
    ...                                                         bottom up: its text, of those below

Guarantees: what is no variant is refused by its row, before it costs more than some times its size:
values that lie in each other, as in no variant of Spark's, are damage.

Cost: some passes of numpy and Arrow for each level of the deepest row. No Python for a row.
"""

from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.formats.encode.parts import Cells, EncodeError, Ints, bytes_of, in_lists, joined
from kshare.formats.encode.texts import quoted
from kshare.formats.encode.variant_scalars import SIZES, binary_texts, scalar_texts
from kshare.formats.framing import bytes_of as bytes_of_column
from kshare.formats.variant_type import VARIANT
from kshare.read.decode import variant_kind as kinds

__all__ = ["is_variant", "variant_texts"]

_MOST_DEPTH: Final = 1_000
_MOST_NAMES: Final = 128 << 20
"""Bytes of names in the text of a row: a name of the metadata may be there many times."""
_PAD: Final = 32
_DAMAGED: Final = "is no variant: it is damaged"


def is_variant(kind: pa.DataType) -> bool:
    """True if a type is Spark's VARIANT."""
    if not pa.types.is_struct(kind) or kind.names != VARIANT.names:
        return False
    marks = kind.field("metadata").metadata or {}
    return bool(marks.get(b"variant") == b"true")


def variant_texts(cells: Cells) -> pa.Array:
    """JSON of variants that are there.

    Raises:
        EncodeError: One is damaged, or has a value that JSON does not have.
    """
    if not len(cells):
        return pa.array([], pa.binary())
    return _Tree(cells).texts()


@dataclass(frozen=True, slots=True)
class _Level:
    """Some values.

    Attributes:
        rows: The row of each, as a number of the column.
        at: Where each begins.
        heads: The first bytes.
        holders: The places of the objects and arrays among them.
        is_object: Of each of these, whether it is an object.
        counts: The number of values in each.
        is_large: Whether that number has four bytes.
    """

    rows: Ints
    at: Ints
    heads: Ints
    holders: Ints
    is_object: npt.NDArray[np.bool_]
    counts: Ints
    is_large: Ints


@dataclass(slots=True)
class _Bytes:
    """The bytes of a column, with some behind that are zero."""

    data: npt.NDArray[np.uint8]
    starts: Ints
    ends: Ints

    @classmethod
    def of(cls, column: pa.Array) -> "_Bytes":
        data, starts, ends = bytes_of_column(column)
        first, last = int(starts[0]), int(ends[-1])
        padded = np.concatenate((data[first:last], np.zeros(_PAD, np.uint8)))
        return cls(padded, starts - first, ends - first)

    def unsigned(self, at: Ints, width: Ints | int) -> Ints:
        """Numbers of 1 to 4 bytes, little end first."""
        found = self.data[at].astype(np.int64)
        for place in range(1, int(np.max(width, initial=1))):
            byte = self.data[at + place].astype(np.int64) << 8 * place
            found |= byte if isinstance(width, int) else np.where(place < width, byte, 0)
        return found


class _Tree:
    """The values of a column, level by level.

    Args:
        cells: The variants, none of which is null.
    """

    def __init__(self, cells: Cells) -> None:
        value, metadata = (cells.values.field(name) for name in VARIANT.names)
        self._cells = cells
        self._value = _Bytes.of(value)
        self._names, self._first_names, self._name_counts = self._read_names(metadata)
        self._used = np.zeros(len(cells), np.int64)  # bytes of each row that values have taken
        self._named = np.zeros(len(cells), np.int64)  # bytes of names in each text

    def _fail(self, rows: Ints, reason: str = _DAMAGED) -> NoReturn:
        raise EncodeError(int(self._cells.rows[rows[0]]), self._cells.path, reason)

    def _need(self, fine: npt.NDArray[np.bool_], rows: Ints, reason: str = _DAMAGED) -> None:
        """Refuse rows where something is not fine."""
        if not fine.all():
            self._fail(rows[~fine], reason)

    # -- names ------------------------------------------------------------------------------------

    def _read_names(self, column: pa.Array) -> tuple[pa.Array, Ints, Ints]:
        """The names of all metadata, quoted; of each row, where its own begin, and their number."""
        encoded = column.dictionary_encode()
        which = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        found = _Bytes.of(encoded.dictionary)
        # Of each distinct one, the row that has it.
        rows = np.zeros(len(encoded.dictionary), np.int64)
        rows[which[::-1]] = np.arange(len(which))[::-1]
        size = found.ends - found.starts
        self._need(size >= 3, rows)
        head = found.unsigned(found.starts, 1)
        self._need(head & 0x0F == kinds.VERSION, rows, "is a variant of another version than 1")
        width = (head >> 6) + 1
        counts = found.unsigned(found.starts + 1, width)
        begin = (counts + 2) * width + 1  # of the names
        self._need(begin <= size, rows)
        of, number = _spread(counts + 1)
        offsets = found.unsigned(found.starts[of] + 1 + (number + 1) * width[of], width[of])
        self._need(begin[of] + offsets <= size[of], rows[of])
        is_name = number < counts[of]
        first, last = offsets[is_name], offsets[np.flatnonzero(is_name) + 1]
        self._need(first <= last, rows[of[is_name]])
        names = _gathered(found.data, (found.starts + begin)[of[is_name]] + first, last - first)
        text = joined(quoted(self._utf8(names, rows[of[is_name]])), b":")
        firsts = np.cumsum(counts) - counts
        return text, firsts[which], counts[which]

    def _utf8(self, column: pa.Array, rows: Ints) -> pa.Array:
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid:
            wrong = [not _is_utf8(each) for each in column.to_pylist()]  # once, and then it fails
            self._fail(rows[np.array(wrong)], "has a text that is no UTF-8")

    # -- down -------------------------------------------------------------------------------------

    def texts(self) -> pa.Array:
        """The texts of the rows."""
        rows = np.arange(len(self._cells))
        self._need(self._value.ends > self._value.starts, rows)
        levels: list[tuple[_Level, Ints]] = []
        at = self._value.starts
        while len(rows):
            level = self._level(rows, at)
            if len(levels) == _MOST_DEPTH and len(level.holders):
                deep = f"has more than {_MOST_DEPTH:,} objects and arrays in each other"
                self._fail(rows[level.holders], deep)
            rows, at, names = self._within(level)
            levels.append((level, names))
        below = pa.array([], pa.binary())
        for level, names in reversed(levels):
            if (named := names >= 0).any():
                below = joined(self._names.take(pa.array(names, mask=~named)), below)
            below = self._texts_of(level, below)
        return below

    def _level(self, rows: Ints, at: Ints) -> _Level:
        """Look at some values."""
        heads = self._value.unsigned(at, 1)
        basic = heads & 3
        holders = np.flatnonzero(basic >= kinds.OBJECT)
        self._take(rows, np.ones(len(rows), np.int64))
        is_object = basic[holders] == kinds.OBJECT
        info = heads[holders] >> 2
        large = (info >> np.where(is_object, 4, 2)) & 1
        counts = self._value.unsigned(at[holders] + 1, 1 + 3 * large)
        return _Level(rows, at, heads, holders, is_object, counts, large)

    def _take(self, rows: Ints, sizes: Ints) -> None:
        """Count bytes that values have; no two have the same ones."""
        self._used += np.bincount(rows, sizes, len(self._used)).astype(np.int64)
        has = self._value.ends - self._value.starts
        self._need(self._used <= has, np.arange(len(has)))

    def _within(self, level: _Level) -> tuple[Ints, Ints, Ints]:
        """The values in objects and arrays: row, place, and number of a name; -1: in an array."""
        rows, at = level.rows[level.holders], level.at[level.holders]
        info = level.heads[level.holders] >> 2
        ids_width = np.where(level.is_object, ((info >> 2) & 3) + 1, 0)
        width = (info & 3) + 1
        ids = at + 2 + 3 * level.is_large
        offsets = ids + level.counts * ids_width
        begin = offsets + (level.counts + 1) * width
        self._need(begin <= self._value.ends[rows], rows)
        of, number = _spread(level.counts)
        rows = rows[of]
        places = begin[of] + self._value.unsigned(offsets[of] + number * width[of], width[of])
        self._need(places < self._value.ends[rows], rows)
        names = np.full(len(of), -1, np.int64)
        named = level.is_object[of]
        if named.any():
            its, own = of[named], rows[named]
            found = self._value.unsigned(ids[its] + number[named] * ids_width[its], ids_width[its])
            self._need(found < self._name_counts[own], own)
            names[named] = self._first_names[own] + found
            sizes = _sizes(self._names)[names[named]]
            self._named += np.bincount(own, sizes, len(self._named)).astype(np.int64)
            self._need(
                self._named <= _MOST_NAMES,
                np.arange(len(self._named)),
                f"has more than {_MOST_NAMES >> 20} MiB of names",
            )
        return rows, places, names

    # -- up ---------------------------------------------------------------------------------------

    def _texts_of(self, level: _Level, below: pa.Array) -> pa.Array:
        """The texts of a level, of those of the values in it."""
        is_scalar = np.ones(len(level.rows), np.bool_)
        is_scalar[level.holders] = False
        scalars = np.flatnonzero(is_scalar)
        places, texts = [level.holders], [self._texts_of_holders(level, below)]
        if len(scalars):
            for own, text in self._scalars(level, scalars):
                places.append(own)
                texts.append(text)
        order = np.empty(len(level.rows), np.int64)
        order[np.concatenate(places)] = np.arange(len(level.rows))
        return pa.concat_arrays(texts).take(pa.array(order))

    def _texts_of_holders(self, level: _Level, below: pa.Array) -> pa.Array:
        if not len(level.holders):
            return pa.array([], pa.binary())
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(level.counts)))
        which = pa.array(level.is_object.astype(np.int8))
        opening, closing = (pa.array(signs, pa.binary()).take(which) for signs in _SIGNS)
        return joined(opening, in_lists(offsets, below, b","), closing)

    def _scalars(self, level: _Level, places: Ints) -> list[tuple[Ints, pa.Array]]:
        """The texts of scalars, kind by kind, with their places."""
        rows, at, heads = level.rows[places], level.at[places], level.heads[places]
        is_short = heads & 3 == kinds.SHORT_STRING
        kind = np.where(is_short, kinds.LONG_STRING, heads >> 2)
        found = []
        for each in np.unique(kind).tolist():
            own = np.flatnonzero(kind == each)
            found.append((places[own], self._of_kind(each, rows[own], at[own], heads[own])))
        return found

    def _of_kind(self, kind: int, rows: Ints, at: Ints, heads: Ints) -> pa.Array:
        if kind in {kinds.LONG_STRING, kinds.BINARY}:
            column = self._strings(rows, at, heads & 3 == kinds.SHORT_STRING, heads >> 2)
            return (
                binary_texts(column) if kind == kinds.BINARY else quoted(self._utf8(column, rows))
            )
        size = SIZES.get(kind)
        if size is None:
            self._fail(rows, f"has a value of kind {kind}, which JSON does not have")
        self._need(at + 1 + size <= self._value.ends[rows], rows)
        content = self._value.data[at[:, None] + 1 + np.arange(size)]
        return scalar_texts(kind, content, lambda fine, why: self._need(fine, rows, why))

    def _strings(
        self, rows: Ints, at: Ints, is_short: npt.NDArray[np.bool_], short_sizes: Ints
    ) -> pa.Array:
        """The bytes of strings, and of binary values."""
        ends = self._value.ends[rows]
        begin = at + np.where(is_short, 1, 5)
        self._need(begin <= ends, rows)
        sizes = np.where(is_short, short_sizes, self._value.unsigned(at + 1, 4))
        self._need(begin + sizes <= ends, rows)
        self._take(rows, sizes)
        return _gathered(self._value.data, begin, sizes)


_SIGNS: Final = ((b"[", b"{"), (b"]", b"}"))


def _spread(counts: Ints) -> tuple[Ints, Ints]:
    """Of as many items as are counted, whose each is, and its number there."""
    of = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    return of, np.arange(len(of)) - np.repeat(ends - counts, counts)


def _gathered(data: npt.NDArray[np.uint8], starts: Ints, sizes: Ints) -> pa.Array:
    """A column of bytes that lie here and there."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    return bytes_of(data[np.arange(total) + np.repeat(starts - (ends - sizes), sizes)], sizes)


def _sizes(column: pa.Array) -> Ints:
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    return offsets[1:].astype(np.int64) - offsets[:-1]


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
