"""A writer's and the reader's schema to steps: one program for all writers of a decoder."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from kshare.formats.avro.defaults import encoded
from kshare.formats.avro.program import Incompatible, Program
from kshare.formats.avro.resolution import branch, fields, mismatch
from kshare.formats.avro.schema import (
    NO_DEFAULT,
    Array,
    Enum,
    Field,
    Fixed,
    Logical,
    Map,
    Primitive,
    Record,
    Schema,
    Union,
    described,
)
from kshare.formats.avro.skipping import Skipping
from kshare.formats.avro.types import is_split, members
from kshare.read.decode import avro_step

__all__ = ["Node", "compile_writer", "nodes_of"]

_VALUE_BYTES: Final = 8  # of offsets, and of what else a value takes besides its own bytes
_DEFAULT_TIMES: Final = 64  # how much larger a default may be in the output than in its own bytes


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the output.

    Attributes:
        number: Its number, in preorder.
        kind: Its type.
        below: The fields of a struct by name; of a list ``element``; of a map ``key``, ``value``.
        size: About how many bytes a value takes, with all below it but lists, strings and binaries.
        behind: The number of the node behind it and all below it.
    """

    number: int
    kind: pa.DataType
    below: dict[str, "Node"] = field(default_factory=dict)
    size: int = _VALUE_BYTES
    behind: int = 0


def nodes_of(kind: pa.DataType, number: int = 0) -> Node:
    """Return the nodes of a type, as :class:`kshare.read.decode.output.Output` numbers them."""
    if pa.types.is_struct(kind):
        listed = [(one.name, one.type) for one in kind]
    elif pa.types.is_list(kind):
        listed = [("element", kind.value_type)]
    elif pa.types.is_map(kind):
        listed = [("key", kind.key_type), ("value", kind.item_type)]
    else:
        size = 16 if pa.types.is_decimal(kind) else _VALUE_BYTES
        return Node(number, kind, {}, size, number + 1)
    behind = number + 1 + pa.types.is_map(kind)  # the entries of a map are a node of their own
    below = {}
    for name, one in listed:
        below[name] = nodes_of(one, behind)
        behind = below[name].behind
    inner = sum(one.size for one in below.values()) if pa.types.is_struct(kind) else _VALUE_BYTES
    return Node(number, kind, below, max(inner, 1), behind)


def compile_writer(program: Program, writer: Schema, reader: Schema, root: Node) -> None:
    """Add a writer's steps to a program; if it is incompatible, a step at which records are bad."""
    program.begin()
    first, first_jump = program.next, len(program.jumps)
    try:
        _Compiler(program).compile(writer, reader, root)
    except Incompatible as error:
        program.cut(first)
        program.refuse(error)
    program.straighten(first, first_jump)


def _path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


class _Compiler:
    """The steps of one writer."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._skipping = Skipping(program)

    def compile(self, writer: Schema, reader: Schema, root: Node) -> None:
        self._value(writer, reader, root, "")
        self._program.add(avro_step.END, "")
        self._skipping.finish()

    def _value(self, writer: Schema, reader: Schema, node: Node, path: str) -> None:
        if isinstance(writer, Union):
            self._writer_union(writer, reader, node, path)
            return
        if isinstance(reader, Union):
            self._reader_union(writer, reader, node, path)
            return
        reason = mismatch(writer, reader)
        if reason is not None:
            raise Incompatible(path, reason)
        if isinstance(writer, Record) and isinstance(reader, Record):
            self._record(writer, reader, node, path)
        elif isinstance(writer, Array) and isinstance(reader, Array):
            self._array(writer, reader, node, path)
        elif isinstance(writer, Map) and isinstance(reader, Map):
            self._map(writer, reader, node, path)
        elif isinstance(writer, Enum) and isinstance(reader, Enum):
            self._enum(writer, reader, node, path)
        elif isinstance(writer, Primitive | Fixed) and isinstance(reader, Primitive | Fixed):
            self._leaf(writer, reader, node, path)

    def _writer_union(self, writer: Union, reader: Schema, node: Node, path: str) -> None:
        def value(one: Schema) -> None:
            begin = self._program.next
            try:
                self._value(one, reader, node, path)
            except Incompatible as error:
                # It may never be met.
                self._program.cut(begin)
                self._skipping.cut(begin)
                self._program.refuse(error)

        self._skipping.union(writer, path, value)

    def _reader_union(self, writer: Schema, reader: Union, node: Node, path: str) -> None:
        number = branch(writer, reader)
        if number is None:
            wanted = " or ".join(map(described, reader.branches)) or "nothing"
            raise Incompatible(path, f"is {described(writer)} where {wanted} is wanted")
        chosen, kinds = reader.branches[number], members(reader)
        if chosen.kind == "null":
            self._program.add(avro_step.NULL, path, node.number)
        elif not is_split(reader):
            self._value(writer, chosen, node, path)
        else:
            own = f"member{[one is chosen for one in kinds].index(True)}"
            for name, child in node.below.items():
                if name != own:
                    self._program.add(avro_step.NULL, path, child.number)
            if own in node.below:
                self._value(writer, chosen, node.below[own], _path(path, own))
            else:
                self._skipping.skip(writer, path)
            self._program.add(avro_step.STRUCT, path, node.number)

    def _record(self, writer: Record, reader: Record, node: Node, path: str) -> None:
        found = fields(writer, reader)
        unread: list[Field] = []
        for one in writer.fields:
            wanted = found.get(one.name)
            if wanted is None or wanted.name not in node.below:
                unread.append(one)
                continue
            self._skip_all(unread, path)
            unread = []
            inner = _path(path, wanted.name)
            self._value(one.type, wanted.type, node.below[wanted.name], inner)
        self._skip_all(unread, path)
        present = {one.name for one in found.values()}
        for one in reader.fields:
            if one.name in node.below and one.name not in present:
                self._default(one, node.below[one.name], _path(path, one.name))
        self._program.add(avro_step.STRUCT, path, node.number)

    def _skip_all(self, unread: Sequence[Field], path: str) -> None:
        self._skipping.skip_all([(one.type, _path(path, one.name)) for one in unread])

    def _default(self, wanted: Field, node: Node, path: str) -> None:
        if wanted.default is NO_DEFAULT:
            raise Incompatible(path, "has no default, and its writer's schema lacks it")
        if wanted.default is None and _takes_null(wanted.type):
            self._program.add(avro_step.NULL, path, node.number)
            return
        try:
            data = encoded(wanted.default, wanted.type)
        except (ValueError, RecursionError) as error:
            raise Incompatible(path, f"has a default that is none of its type: {error}") from None
        place = self._program.constant(data)
        self._program.add(avro_step.DEFAULT, path, one=place, two=len(data))
        self._value(wanted.type, wanted.type, node, path)
        self._program.add(avro_step.RESUME, path)

    def _array(self, writer: Array, reader: Array, node: Node, path: str) -> None:
        element = node.below["element"]
        item = self._begin_items(node, path)
        self._value(writer.items, reader.items, element, path)
        self._end_items(item, element.size)

    def _map(self, writer: Map, reader: Map, node: Node, path: str) -> None:
        key, value = node.below["key"], node.below["value"]
        item = self._begin_items(node, path)
        self._program.add(avro_step.STRING, path, key.number)
        self._value(writer.values, reader.values, value, path)
        self._program.add(avro_step.STRUCT, path, node.number + 1)
        self._end_items(item, key.size + value.size)

    def _begin_items(self, node: Node, path: str) -> int:
        self._program.add(avro_step.LIST, path, node.number)
        return self._program.add(avro_step.ITEM, path, node.number)

    def _end_items(self, item: int, size: int) -> None:
        """End the steps of an item, which takes that many bytes besides defaults and symbols."""
        program = self._program
        for operation, _, _, _, two in program.steps[item:]:
            if operation == avro_step.DEFAULT:
                size += _DEFAULT_TIMES * two
        symbols = [program.details[n] for n in range(item, program.next) if n in program.details]
        size += sum(max(map(len, one), default=0) for one in symbols if isinstance(one, tuple))
        program.steps[item][4] = size
        program.follow(program.add(avro_step.JUMP, program.places[item]), item)
        program.set_one(item, program.next)

    def _enum(self, writer: Enum, reader: Enum, node: Node, path: str) -> None:
        program = self._program
        table = []
        for symbol in writer.symbols:
            text = symbol if symbol in reader.symbols else reader.default
            data = (text or "").encode()
            table += [-1, 0] if text is None else [program.constant(data), len(data)]
        place = program.constant(struct.pack(f"<{len(table)}q", *table))
        count, symbols = len(writer.symbols), writer.symbols
        program.add(avro_step.ENUM, path, node.number, place, count, detail=symbols)

    def _leaf(
        self, writer: Primitive | Fixed, reader: Primitive | Fixed, node: Node, path: str
    ) -> None:
        add, kind = self._program.add, node.kind
        size = writer.size if isinstance(writer, Fixed) else -1
        if pa.types.is_decimal(kind):
            self._decimal(writer, reader, node, path)
        elif kind == pa.string():
            add(avro_step.STRING, path, node.number)
        elif kind == pa.binary():
            add(avro_step.FIXED if size >= 0 else avro_step.BYTES, path, node.number, size)
        elif pa.types.is_timestamp(kind):
            add(_time(writer.logical or reader.logical), path, node.number)
        else:
            add(_NUMBERS[writer.kind, _PLAIN.get(kind, reader.kind)], path, node.number)

    def _decimal(
        self, writer: Primitive | Fixed, reader: Primitive | Fixed, node: Node, path: str
    ) -> None:
        wrote, wanted = writer.logical, reader.logical
        assert wanted is not None
        if wrote is not None and wrote.name == "decimal" and wrote.scale != wanted.scale:
            # Java's Avro would take one for the other, and numbers would be wrong by powers of ten.
            raise Incompatible(path, f"has {_digits(wrote)} where {_digits(wanted)} is wanted")
        if writer.kind != reader.kind:
            raise Incompatible(path, f"is {described(writer)} where a decimal is wanted")
        size = writer.size if isinstance(writer, Fixed) else -1
        limit = (10**wanted.precision).to_bytes(16, "little")
        place = self._program.constant(limit)
        self._program.add(avro_step.DECIMAL, path, node.number, size, place, detail=node.kind)


def _digits(logical: Logical) -> str:
    return f"decimal({logical.precision},{logical.scale})"


def _takes_null(schema: Schema) -> bool:
    kinds = schema.branches if isinstance(schema, Union) else (schema,)
    return any(one.kind == "null" for one in kinds)


def _time(logical: Logical | None) -> int:
    """The step of a timestamp in the unit of a logical type: the writer's, if it has one."""
    name = logical.name if logical is not None else ""
    if name.endswith("-millis"):
        return avro_step.MILLIS
    return avro_step.NANOS if name.endswith("-nanos") else avro_step.LONG


_PLAIN: Final = {pa.int64(): "long", pa.float64(): "double"}
"""The types of unions of two kinds of numbers: not what the reader's type alone says."""

_NUMBERS: Final = {
    ("null", "null"): avro_step.NULL,
    ("boolean", "boolean"): avro_step.BOOLEAN,
    ("int", "int"): avro_step.INT,
    ("int", "long"): avro_step.INT,
    ("int", "float"): avro_step.INT_TO_FLOAT,
    ("int", "double"): avro_step.INT_TO_DOUBLE,
    ("long", "long"): avro_step.LONG,
    ("long", "float"): avro_step.LONG_TO_FLOAT,
    ("long", "double"): avro_step.LONG_TO_DOUBLE,
    ("float", "float"): avro_step.FLOAT,
    ("float", "double"): avro_step.FLOAT_TO_DOUBLE,
    ("double", "double"): avro_step.DOUBLE,
}
"""The step of a number, by what was written and what the node holds."""
