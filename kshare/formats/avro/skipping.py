"""The steps that pass over what a writer has written and nobody wants."""

from collections.abc import Callable, Sequence
from typing import Final

from kshare.formats.avro.program import Program
from kshare.formats.avro.schema import Array, Fixed, Map, Record, Schema, Union
from kshare.read.decode import avro_step

__all__ = ["Skipping"]

_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class Skipping:
    """The skipping steps of one writer.

    A record that has itself among its fields is passed over by steps that are called, and all
    others where they are met.

    Args:
        program: Gets the steps.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._calls: dict[Record, list[int]] = {}
        self._recursive: dict[Record, bool] = {}

    def skip(self, schema: Schema, path: str) -> None:
        """Pass over a value of a schema."""
        self.skip_all([(schema, path)])

    def skip_all(self, schemas: Sequence[tuple[Schema, str]]) -> None:
        """Pass over values that follow each other, each with its field's path."""
        size, begin = 0, ""
        for schema, path in schemas:
            fixed = _size(schema)
            if fixed is not None:
                begin = begin if size else path
                size += fixed
                continue
            self._skip_fixed(size, begin)
            size = 0
            self._skip(schema, path)
        self._skip_fixed(size, begin)

    def _skip_fixed(self, size: int, path: str) -> None:
        if size:
            self._program.add(avro_step.SKIP_FIXED, path, one=size)

    def _skip(self, schema: Schema, path: str) -> None:
        if isinstance(schema, Record):
            self._skip_record(schema, path)
        elif isinstance(schema, Union):
            self.union(schema, path, lambda one: self.skip(one, path))
        elif isinstance(schema, Array | Map):
            self._skip_items(schema, path)
        elif schema.kind in ("bytes", "string"):
            self._program.add(avro_step.SKIP_BYTES, path)
        else:
            self._program.add(avro_step.SKIP_NUMBER, path)

    def union(self, schema: Union, path: str, value: Callable[[Schema], None]) -> None:
        """Add the steps of a union.

        Args:
            schema: The union.
            path: Its field's path.
            value: Adds the steps of one of its types.
        """
        program, count = self._program, len(schema.branches)
        place = len(program.jumps)
        program.jumps += [0] * count
        program.add(avro_step.UNION, path, one=place, two=count)
        ends = []
        for number, one in enumerate(schema.branches):
            program.jumps[place + number] = program.next
            value(one)
            ends.append(program.add(avro_step.JUMP, path))
        for end in ends:
            program.follow(end, program.next)

    def _skip_items(self, schema: Array | Map, path: str) -> None:
        program = self._program
        program.add(avro_step.LIST, path)
        item = program.add(avro_step.ITEM, path, avro_step.NO_NODE, two=1)
        if isinstance(schema, Map):
            program.add(avro_step.SKIP_BYTES, path)
        self.skip(schema.items if isinstance(schema, Array) else schema.values, path)
        program.follow(program.add(avro_step.JUMP, path), item)
        program.set_one(item, program.next)

    def _skip_record(self, schema: Record, path: str) -> None:
        if self._is_recursive(schema):
            self._calls.setdefault(schema, []).append(self._program.add(avro_step.CALL, path))
            return
        self.skip_all([(one.type, f"{path}.{one.name}") for one in schema.fields])

    def _is_recursive(self, schema: Record) -> bool:
        if schema not in self._recursive:
            self._recursive[schema] = schema in _reached(schema)
        return self._recursive[schema]

    def cut(self, number: int) -> None:
        """Forget the steps from a number on."""
        self._calls = {
            schema: [call for call in calls if call < number]
            for schema, calls in self._calls.items()
        }

    def finish(self) -> None:
        """Add the steps that are called."""
        done: dict[Record, int] = {}
        while missing := [one for one, calls in self._calls.items() if calls and one not in done]:
            for schema in missing:
                done[schema] = self._program.next
                self.skip_all([(one.type, one.name) for one in schema.fields])
                self._program.add(avro_step.RETURN, "")
        for schema, calls in self._calls.items():
            for call in calls:
                self._program.set_one(call, done[schema])


def _size(schema: Schema) -> int | None:
    """The bytes of each value of a schema, if they are always as many."""
    return schema.size if isinstance(schema, Fixed) else _SIZES.get(schema.kind)


def _reached(schema: Record) -> set[Record]:
    """All records in the fields of a record, and in theirs."""
    found: set[Record] = set()
    left: list[Schema] = [one.type for one in schema.fields]
    while left:
        one = left.pop()
        if isinstance(one, Union):
            left += one.branches
        elif isinstance(one, Array):
            left.append(one.items)
        elif isinstance(one, Map):
            left.append(one.values)
        elif isinstance(one, Record) and one not in found:
            found.add(one)
            left += [inner.type for inner in one.fields]
    return found
