"""Nested Arrow arrays that kernels append rows to: the output of the formats of values.

The kernels' side is :mod:`kshare.read.decode.kernels.output`. A decoding goes on until it is done;
whenever it says FULL, :meth:`Output.grow` makes room and it is called again, for the row that
found none.

Cost: memory that is handed over to Arrow without a copy; 5 us a node.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.read.decode import columns, node_kind
from kshare.read.decode.layout import COPY_SLACK, FAULT, NODE, RowDecoding

__all__ = ["Output"]

_MOST: Final = 2**31 - 1  # what 32-bit offsets can count
_WIDTHS: Final = (1, 2, 4, 8, 16)


def _below(kind: pa.DataType) -> list[pa.DataType]:
    """The types of the nodes right below one of a type."""
    if pa.types.is_struct(kind):
        return [field.type for field in kind]
    if pa.types.is_map(kind):
        return [pa.struct([kind.key_field, kind.item_field])]
    return [kind.value_type] if pa.types.is_list(kind) else []


def _kind(kind: pa.DataType) -> tuple[int, int]:
    """What a node of a type holds, and the width of its values, 0 where that is not fixed.

    Raises:
        TypeError: Kernels make no such array.
    """
    if pa.types.is_null(kind):
        return node_kind.NULL, 0
    if pa.types.is_struct(kind):
        return node_kind.STRUCT, 0
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return node_kind.LIST, 0
    if pa.types.is_boolean(kind):
        return node_kind.BOOLEAN, 0
    if kind in (pa.string(), pa.binary()):
        return node_kind.BINARY, 0
    width = kind.bit_width // 8 if pa.types.is_primitive(kind) or _is_fixed(kind) else 0
    if width in _WIDTHS:
        return node_kind.FIXED, width
    raise TypeError(f"no array of {kind} can be made")


def _is_fixed(kind: pa.DataType) -> bool:
    """Return whether values are of fixed width, and Arrow does not call them primitive."""
    return bool(pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind))


class _Node:
    """The memory of one node.

    Args:
        kind: Its type.
        seen: What the kernels see of it: an element of NODE's table, with kind and width.
        values: How many values fit at first.
        size: How many bytes fit at first, of a string or binary.
        pool: Whose memory it takes; None for Arrow's default pool.
    """

    def __init__(
        self, kind: pa.DataType, seen: np.void, values: int, size: int, pool: pa.MemoryPool | None
    ) -> None:
        self.kind = kind
        self._seen = seen
        self._pool = pool
        self._data: Any = None
        self._offsets: Any = None
        self._validity: Any = None
        self._reserve_values(max(values, 8))
        if seen["kind"] == node_kind.BINARY:
            self._reserve_bytes(size)

    def _wider(self, old: pa.Buffer | None, used: int, size: int) -> Any:
        """Memory of a size that begins with what is used of the old."""
        made = columns.allocate(size, self._pool)
        if old is not None:
            np.frombuffer(made, np.uint8, used)[:] = np.frombuffer(old, np.uint8, used)
        return made

    def _reserve_values(self, values: int) -> None:
        seen, used = self._seen, int(self._seen["used"])
        kind = int(seen["kind"])
        if kind != node_kind.NULL:
            filled = used + 7 >> 3
            self._validity = self._wider(self._validity, filled, values + 7 >> 3)
            np.frombuffer(self._validity, np.uint8)[filled:] = 0xFF
            seen["validity"] = self._validity.address
        if kind in (node_kind.LIST, node_kind.BINARY):
            begun = self._offsets is not None
            self._offsets = self._wider(self._offsets, 4 * (used + 1), 4 * (values + 1))
            if not begun:
                np.frombuffer(self._offsets, np.int32, 1)[0] = 0
            seen["offsets"] = self._offsets.address
        elif kind in (node_kind.FIXED, node_kind.BOOLEAN):
            self._data = self._wider(self._data, self._size(used), self._size(values))
            seen["data"] = self._data.address
        seen["capacity"] = values

    def _reserve_bytes(self, size: int) -> None:
        seen = self._seen
        self._data = self._wider(self._data, int(seen["bytes_used"]), size + COPY_SLACK)
        seen["data"], seen["bytes_capacity"] = self._data.address, size

    def _size(self, values: int) -> int:
        """The bytes of some values of fixed width, or bits."""
        return int(self._seen["width"]) * values or values + 7 >> 3

    def grow(self) -> None:
        """Make room for what found none, and at least twice as much as before.

        Raises:
            OverflowError: 32-bit offsets do not count as far.
        """
        seen = self._seen
        values, size = int(seen["needed"]), int(seen["bytes_needed"])
        if max(values, size) > _MOST:
            raise OverflowError(f"the rows have more than {_MOST} bytes or items of a field")
        if values > seen["capacity"]:
            self._reserve_values(min(max(values, 2 * int(seen["capacity"])), _MOST))
        if size > seen["bytes_capacity"]:
            self._reserve_bytes(min(max(size, 2 * int(seen["bytes_capacity"])), _MOST))
        seen["needed"] = seen["bytes_needed"] = 0

    def finish(self, children: list[pa.Array]) -> pa.Array:
        """Hand the node over; the object is of no use afterwards.

        Args:
            children: The arrays right below it.
        """
        seen = self._seen
        used, nulls, kind = int(seen["used"]), int(seen["nulls"]), int(seen["kind"])
        if kind == node_kind.NULL:
            return pa.nulls(used)
        buffers = [columns.shrink(self._validity, used + 7 >> 3) if nulls else None]
        if kind in (node_kind.LIST, node_kind.BINARY):
            buffers.append(columns.shrink(self._offsets, 4 * (used + 1)))
        if kind == node_kind.BINARY:
            buffers.append(columns.shrink(self._data, int(seen["bytes_used"])))
        elif kind in (node_kind.FIXED, node_kind.BOOLEAN):
            buffers.append(columns.shrink(self._data, self._size(used)))
        return pa.Array.from_buffers(self.kind, used, buffers, nulls, children=children or None)


class Output:
    """An array under construction.

    Args:
        kind: Its type: structs, lists, maps, strings, binaries, booleans, nulls, and all whose
            values have 1, 2, 4, 8 or 16 bytes.
        rows: How many rows there will be.
        size: How many bytes of strings and binaries there may be, as a first guess.

    Attributes:
        nodes: What the kernels see, of NODE: the type's nodes in preorder.

    Raises:
        TypeError: Kernels make no array of this type.
    """

    def __init__(self, kind: pa.DataType, rows: int, size: int) -> None:
        kinds = _preorder(kind)
        self.nodes: npt.NDArray[np.void] = np.zeros(len(kinds), NODE)
        for number, one in enumerate(kinds):
            self.nodes[number]["kind"], self.nodes[number]["width"] = _kind(one)
        self._lists = np.full(len(kinds), -1, np.int64)
        self._link(0, kind, -1)
        binaries = int(np.count_nonzero(self.nodes["kind"] == node_kind.BINARY))
        share = size // max(binaries, 1) + 64
        pool = pa.system_memory_pool() if rows <= columns.SMALL_ROWS else None
        self._nodes = [
            _Node(one, self.nodes[number], rows, share, pool) for number, one in enumerate(kinds)
        ]

    def _link(self, number: int, kind: pa.DataType, above: int) -> int:
        """Write which node is behind each; return that behind this one and all below it.

        Args:
            number: The node.
            kind: Its type.
            above: The list that it is in; -1: none.
        """
        self._lists[number] = above
        if self.nodes[number]["kind"] == node_kind.LIST:
            above = number
        behind = number + 1
        for one in _below(kind):
            behind = self._link(behind, one, above)
        self.nodes[number]["next"] = behind
        return behind

    def begin(self, rows: RowDecoding) -> npt.NDArray[np.void]:
        """Let a decoding write here, from its first row on.

        Args:
            rows: What the kernel works on, with the payloads. It keeps addresses: this object, and
                the result, must live as long as the decoding goes on.

        Returns:
            The table of FAULT, with room for one a payload; ``rows.fault_count`` is its length.
        """
        faults = np.empty(rows.rows, FAULT)
        rows.row = rows.fault_count = 0
        rows.nodes, rows.node_count = pa.py_buffer(self.nodes).address, len(self.nodes)
        rows.faults = pa.py_buffer(faults).address
        return faults

    def grow(self) -> None:
        """Make room after FULL.

        All fields of a list's items get the room that one of them has not found: they have as many
        values each. One by one, a row with a list of wide structs would be read again for each.

        Raises:
            OverflowError: A field of these rows has more than 2^31 - 1 bytes or items.
        """
        needed = self.nodes["needed"]
        for number in np.flatnonzero(needed):
            alike = self._lists == self._lists[number]
            needed[alike] = np.maximum(needed[alike], needed[number])
        for node in self._nodes:
            node.grow()

    def finish(self) -> pa.Array:
        """Hand the array over; the object is of no use afterwards."""
        return self._finish(0)

    def _finish(self, number: int) -> pa.Array:
        children, child = [], number + 1
        while child < self.nodes[number]["next"]:
            children.append(self._finish(child))
            child = int(self.nodes[child]["next"])
        return self._nodes[number].finish(children)


def _preorder(kind: pa.DataType) -> list[pa.DataType]:
    """The types of all nodes."""
    return [kind, *(node for one in _below(kind) for node in _preorder(one))]
