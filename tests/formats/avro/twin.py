"""The steps of an Avro program, taken in plain Python: what the kernel must find."""

import struct
from typing import Any

import numpy as np
import pyarrow as pa

from kshare.formats.avro.program import Program
from kshare.read.decode import avro_step as op

INT64 = 2**63


class BadRecordError(Exception):
    def __init__(self, code: int, value: int = 0) -> None:
        super().__init__(code, value)
        self.code, self.value = code, value


class Reader:
    """Some bytes, from one place to another."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data, self.at, self.end = data, at, end

    def number(self) -> int:
        value = 0
        for place in range(10):
            if self.at + place >= self.end:
                raise BadRecordError(op.CUT_SHORT)
            byte = self.data[self.at + place]
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                self.at += place + 1
                value &= 2**64 - 1
                return (value >> 1) ^ -(value & 1)
        raise BadRecordError(op.NUMBER)

    def take(self, size: int) -> bytes:
        if size > self.end - self.at:
            raise BadRecordError(op.CUT_SHORT)
        self.at += size
        return self.data[self.at - size : self.at]

    def length(self) -> int:
        size = self.number()
        if size < 0:
            raise BadRecordError(op.NEGATIVE, size)
        if size > self.end - self.at:
            raise BadRecordError(op.CUT_SHORT)
        return size


class Nodes:
    """What is appended to each node: values; None; of a list how many items there are by then."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self.kinds: list[pa.DataType] = []
        self.behind: list[int] = []
        self._add(kind)
        self.values: list[list[Any]] = [[] for _ in self.kinds]

    def _add(self, kind: pa.DataType) -> None:
        number = len(self.kinds)
        self.kinds.append(kind)
        self.behind.append(0)
        for below in self._below(kind):
            self._add(below)
        self.behind[number] = len(self.kinds)

    @staticmethod
    def _below(kind: pa.DataType) -> list[pa.DataType]:
        if pa.types.is_struct(kind):
            return [field.type for field in kind]
        if pa.types.is_map(kind):
            return [pa.struct([("key", kind.key_type), ("value", kind.item_type)])]
        return [kind.value_type] if pa.types.is_list(kind) else []

    def null(self, number: int) -> None:
        kind = self.kinds[number]
        if pa.types.is_map(kind) or pa.types.is_list(kind):
            self.values[number].append((None, len(self.values[number + 1])))
            return
        self.values[number].append(None)
        child = number + 1
        while child < self.behind[number]:
            self.null(child)
            child = self.behind[child]

    def close(self, number: int) -> None:
        self.values[number].append((True, len(self.values[number + 1])))

    def sizes(self) -> list[int]:
        return [len(values) for values in self.values]

    def cut(self, sizes: list[int]) -> None:
        for values, size in zip(self.values, sizes, strict=True):
            del values[size:]

    def rows(self, number: int = 0) -> list[Any]:
        """All values of a node, in the form of :func:`tests.support.plain_rows.found`."""
        kind, values = self.kinds[number], self.values[number]
        if pa.types.is_struct(kind):
            columns, child = [], number + 1
            while child < self.behind[number]:
                columns.append(self.rows(child))
                child = self.behind[child]
            return [
                None if one is None else dict(zip(kind.names, (c[n] for c in columns), strict=True))
                for n, one in enumerate(values)
            ]
        if pa.types.is_list(kind) or pa.types.is_map(kind):
            items, begin, made = self.rows(number + 1), 0, []
            if pa.types.is_map(kind):
                items = [tuple(one.values()) for one in items]
            for one, end in values:
                made.append(None if one is None else items[begin:end])
                begin = end
            return made
        return values


class Twin:
    """Decodes payloads as ``decode_avro`` does.

    Args:
        program: The steps.
        kind: The type of the rows.
        least_output: Bytes that the items of a record may take, whatever its size.
    """

    def __init__(self, program: Program, kind: pa.DataType, least_output: int) -> None:
        self._program = program
        self._least_output = least_output
        self._constants = bytes(program.constants)
        self.nodes = Nodes(kind)
        self.faults: list[tuple[int, int, int, int]] = []

    def decode(self, data: bytes, starts: list[int], ends: list[int], writers: list[int]) -> None:
        for row, (start, end, writer) in enumerate(zip(starts, ends, writers, strict=True)):
            if start < 0:
                self.nodes.null(0)
                continue
            sizes = self.nodes.sizes()
            self._number = 0
            try:
                if not start <= end <= len(data) or not 0 <= writer < len(self._program.entries):
                    raise BadRecordError(op.OUTSIDE)
                self._row(Reader(data, start, end), self._program.entries[writer])
            except BadRecordError as bad:
                self.nodes.cut(sizes)
                self.nodes.null(0)
                self.faults.append((row, self._number, bad.code, bad.value))

    def _row(self, reader: Reader, first: int) -> None:
        size = reader.end - reader.at
        self._budget = max(self._least_output, 32 * size)
        self._stack: list[Any] = []
        self._reader, self._number = reader, first
        while True:
            operation, node, follows, one, two = self._program.steps[self._number]
            if operation == op.END:
                return
            if operation <= op.LAST_VARINT:
                self.nodes.values[node].append(self._varint(operation, node))
            elif operation <= op.LAST_BYTES:
                self.nodes.values[node].append(self._bytes(operation, one, two, node))
            elif operation == op.NULL:
                self.nodes.null(node)
            elif operation == op.STRUCT:
                self.nodes.values[node].append(True)
            elif operation <= op.LAST_SKIP:
                self._skip(operation, one)
            else:
                follows = self._flow(operation, node, follows, one, two)
            self._number = follows

    def _varint(self, operation: int, node: int) -> Any:
        before = self._reader.at
        value = self._reader.number()
        self._reader.at, behind = before, self._reader.at
        if operation == op.MILLIS:
            if abs(value) > (INT64 - 1) // 1000:
                raise BadRecordError(op.TIME, value)
            made: Any = value * 1000
        elif operation == op.NANOS:
            made = value // 1000
        elif operation == op.LONG_TO_FLOAT:
            made = float(np.float32(value))
        elif operation == op.LONG_TO_DOUBLE:
            made = float(value)
        elif operation == op.LONG:
            made = value
        elif not -(2**31) <= value < 2**31:
            raise BadRecordError(op.INT_RANGE, value)
        elif operation == op.INT_TO_FLOAT:
            made = float(np.float32(value))
        else:
            made = float(value) if operation == op.INT_TO_DOUBLE else value
        self._reader.at = behind
        return made

    def _bytes(self, operation: int, one: int, two: int, node: int) -> Any:
        reader = self._reader
        if operation in (op.FLOAT, op.FLOAT_TO_DOUBLE):
            return struct.unpack("<f", reader.take(4))[0]
        if operation == op.DOUBLE:
            return struct.unpack("<d", reader.take(8))[0]
        if operation == op.BOOLEAN:
            (byte,) = reader.take(1)
            if byte > 1:
                raise BadRecordError(op.NO_BOOLEAN, byte)
            return bool(byte)
        if operation == op.ENUM:
            return self._enum(one, two)
        if operation == op.FIXED or (operation == op.DECIMAL and one >= 0):
            data = reader.take(one)
        else:
            data = reader.take(reader.length())
        if operation == op.DECIMAL:
            value = int.from_bytes(data, "big", signed=True)
            limit = int.from_bytes(self._constants[two : two + 16], "little")
            if not data or abs(value) >= limit:
                raise BadRecordError(op.DIGITS)
            return value
        if operation == op.STRING or self.nodes.kinds[node] == pa.string():
            try:
                return data.decode()
            except UnicodeDecodeError:
                raise BadRecordError(op.NO_TEXT) from None
        return data

    def _enum(self, one: int, two: int) -> str:
        symbol = self._reader.number()
        if not 0 <= symbol < two:
            raise BadRecordError(op.NO_SYMBOL, symbol)
        place, size = struct.unpack_from("<qq", self._constants, one + 16 * symbol)
        if place < 0:
            raise BadRecordError(op.OTHER_SYMBOL, symbol)
        return self._constants[place : place + size].decode()

    def _skip(self, operation: int, one: int) -> None:
        if operation == op.SKIP_NUMBER:
            self._reader.number()
        else:
            self._reader.take(one if operation == op.SKIP_FIXED else self._reader.length())

    def _flow(self, operation: int, node: int, follows: int, one: int, two: int) -> int:
        if operation == op.UNION:
            branch = self._reader.number()
            if not 0 <= branch < two:
                raise BadRecordError(op.NO_BRANCH, branch)
            return self._program.jumps[one + branch]
        if operation == op.ITEM:
            return self._item(node, follows, one, two)
        if operation == op.REFUSE:
            raise BadRecordError(op.REFUSED)
        if operation in (op.RETURN, op.RESUME):
            kept = self._stack.pop()
            if operation == op.RETURN:
                assert isinstance(kept, int)
                return kept
            self._reader = kept
            return follows
        if len(self._stack) >= op.STACK:
            raise BadRecordError(op.TOO_DEEP)
        if operation == op.LIST:
            self._stack.append([0])
        elif operation == op.CALL:
            self._stack.append(follows)
            return one
        else:
            assert operation == op.DEFAULT
            self._stack.append(self._reader)
            self._reader = Reader(self._constants, one, one + two)
        return follows

    def _item(self, node: int, follows: int, one: int, two: int) -> int:
        left = self._stack[-1]
        while left[0] <= 0:
            left[0] = self._block(node)
            if left[0] == 0:
                if node >= 0:
                    self.nodes.close(node)
                self._stack.pop()
                return one
        left[0] -= 1
        self._budget -= two
        if self._budget < 0:
            raise BadRecordError(op.TOO_MANY)
        return follows

    def _block(self, node: int) -> int:
        count = self._reader.number()
        if count == -INT64:
            raise BadRecordError(op.NUMBER)
        if count >= 0:
            return count
        size = self._reader.length()
        if node < 0:
            self._reader.take(size)
            return -1
        return -count
