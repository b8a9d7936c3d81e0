"""Kernels that run on another processor, which qemu plays, called as those of this one are.

Who calls a kernel has memory in this process, and the kernel sees a copy: each call takes along
what its addresses point to, and brings back what has changed.
"""

import ctypes
import shutil
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from kshare.read.decode import avro_step, json_kind, message_table, node_kind
from kshare.read.decode.kernels.targets import Target
from kshare.read.decode.layout import (
    BATCH,
    COPY_SLACK,
    ENUM_NAME,
    FAULT,
    FRAME,
    JSON_FIELD,
    JSON_LEVEL,
    JSON_STEP,
    MESSAGE,
    MESSAGE_ENUM,
    MESSAGE_FIELD,
    NODE,
    SIGNATURES,
    STEP,
    VARIANT_FIELD,
    VARIANT_KEY,
    VARIANT_LEVEL,
    AvroState,
    BinaryColumn,
    HeaderSizes,
    JsonState,
    MessageDecoding,
    RowDecoding,
    ScanState,
    VariantState,
    Wanted,
)

__all__ = ["KERNELS", "SOURCE", "OtherProcessor", "built_driver", "emulator"]

SOURCE = Path(__file__).with_name("kernel_driver.c")
KERNELS = tuple(sorted(SIGNATURES))
"""Those that the driver can call, by its numbers: all there are."""

# Tables whose size no state has: kshare.formats.json.steps, kshare.formats.protobuf.decoder and
# kshare.formats.avro.decoder make them.
_POWERS_OF_FIVE, _POWERS_OF_TEN = 651, 23
_NAME_SLACK = 8  # behind the names of JSON
_GROUPS = 100
_AVRO_FRAME = 32


def emulator(machine: str) -> str:
    """The program that plays a processor.

    Raises:
        FileNotFoundError: It is not installed.
    """
    for name in (f"qemu-{machine}", f"qemu-{machine}-static"):
        if found := shutil.which(name):
            return found
    raise FileNotFoundError(
        f"there is no qemu-{machine}, which runs the kernels of that processor: "
        "apt-get install qemu-user"
    )


def built_driver(target: Target, code: bytes, folder: Path) -> Path:
    """The program that calls kernels, linked with their object file; it needs no C library."""
    kernels, driver = folder / "kernels.o", folder / "driver"
    kernels.write_bytes(code)
    command = [
        *(sys.executable, "-P", "-m", "ziglang", "cc", "-static", "-O1", "-fno-builtin", "-Wall"),
        *("-target", f"{target.machine}-linux-musl", "-o", str(driver)),
        *(str(SOURCE), str(kernels)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"zig (make wheels installs it) fails: {done.stderr}"
    return driver


def _place(structure: type[ctypes.Structure], name: str) -> int:
    """Where a field is in a structure."""
    return int(getattr(structure, name).offset)


def _table(address: int, kind: np.dtype[Any], first: int, behind: int) -> npt.NDArray[np.void]:
    """Some entries of a table, as they are now."""
    data = ctypes.string_at(address + kind.itemsize * first, kind.itemsize * (behind - first))
    return np.frombuffer(data, kind)


class _Memory:
    """The memory of one call: pieces of it, and where one points to another."""

    def __init__(self) -> None:
        self.regions: list[tuple[int, int]] = []
        self.pointers: list[tuple[int, int, int]] = []

    @classmethod
    def of_state(cls, state: ctypes.Structure, sizes: Mapping[str, int]) -> "_Memory":
        """That of a kernel which gets a state alone.

        Args:
            state: The state.
            sizes: How many bytes there are at each address in it.
        """
        memory = cls()
        own = memory.add(ctypes.addressof(state), ctypes.sizeof(state), -1, 0)
        for name, size in sizes.items():
            memory.add(getattr(state, name), size, own, _place(type(state), name))
        return memory

    def add(self, address: int, size: int, owner: int, place: int) -> int:
        """A piece that a number is the address of: an argument (owner -1), or a word of a piece."""
        self.regions.append((address, size))
        self.pointers.append((owner, place, len(self.regions) - 1))
        return len(self.regions) - 1

    def add_column(self, column: BinaryColumn, owner: int, at: int, rows: int) -> None:
        """What a column points to, if it is one."""
        if column.offsets:
            self.add(column.offsets, 4 * (rows + 1), owner, at + _place(BinaryColumn, "offsets"))
            data = column.capacity + COPY_SLACK
            self.add(column.data, data, owner, at + _place(BinaryColumn, "data"))
            self.add(column.validity, (rows >> 3) + 1, owner, at + _place(BinaryColumn, "validity"))

    def add_wanted(self, wanted: Wanted, owner: int, at: int) -> None:
        """What the records that are wanted point to."""
        ranges = _word(wanted.range_counts + 8 * wanted.bands)
        sizes = {
            "starts": 8 * wanted.bands,
            "ends": 8 * wanted.bands,
            "range_counts": 8 * (wanted.bands + 1),
            "lows": 8 * ranges,
            "lasts": 8 * ranges,
            "key_hashes": 8 * wanted.keys,
            "key_ends": 8 * (wanted.keys + 1),
            "key_bytes": _word(wanted.key_ends + 8 * wanted.keys),
            "last_bytes": 256,
        }
        for name, size in sizes.items():
            self.add(getattr(wanted, name), size, owner, at + _place(Wanted, name))

    def add_rows(self, rows: RowDecoding, at: int) -> None:
        """What a decoding of payloads points to, which is in the first region."""
        sizes = {
            "source": rows.size,
            "starts": 8 * rows.rows,
            "ends": 8 * rows.rows,
            "faults": FAULT.itemsize * rows.rows,
        }
        for name, size in sizes.items():
            self.add(getattr(rows, name), size, 0, at + _place(RowDecoding, name))
        size = NODE.itemsize * rows.node_count
        nodes = self.add(rows.nodes, size, 0, at + _place(RowDecoding, "nodes"))
        for number, node in enumerate(_table(rows.nodes, NODE, 0, rows.node_count)):
            self.add_node(node, nodes, NODE.itemsize * number)

    def add_node(self, node: np.void, owner: int, at: int) -> None:
        """What a node of an output points to."""
        values = int(node["capacity"])
        bits = values + 7 >> 3
        data = int(node["width"]) * values or bits
        if node["kind"] == node_kind.BINARY:
            data = int(node["bytes_capacity"]) + COPY_SLACK
        places = NODE.fields
        assert places is not None
        for name, size in {"data": data, "offsets": 4 * (values + 1), "validity": bits}.items():
            if address := int(node[name]):
                self.add(address, size, owner, at + places[name][1])


class OtherProcessor:
    """A program that calls kernels, as long as the context lasts.

    Args:
        command: What starts it.
    """

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._headers = 0

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input is its end

    def kernel(self, name: str) -> Callable[..., int]:
        """A kernel, as :mod:`kshare.read.decode.compiled` calls it."""
        return lambda *arguments: self._call(name, arguments)

    def _call(self, name: str, arguments: tuple[Any, ...]) -> int:
        memory: _Memory = getattr(self, f"_of_{name}")(*arguments)
        before = [ctypes.string_at(address, size) for address, size in memory.regions]
        numbers = [each if isinstance(each, int) else 0 for each in arguments]
        counts = (len(numbers), len(before), len(memory.pointers))
        parts = [struct.pack("=4q", KERNELS.index(name), *counts)]
        for data in before:
            parts += [struct.pack("=q", len(data)), data]
        parts += [struct.pack("=3q", *pointer) for pointer in memory.pointers]
        parts.append(struct.pack(f"={len(numbers)}q", *numbers))
        assert self._process.stdin is not None
        self._process.stdin.write(b"".join(parts))
        self._process.stdin.flush()
        (result,) = struct.unpack("=q", self._got(8))
        places = defaultdict(list)
        for owner, place, _ in memory.pointers:
            places[owner].append(place)
        for region, ((address, size), old) in enumerate(zip(memory.regions, before, strict=True)):
            new = bytearray(self._got(size))
            for place in places[region]:
                new[place : place + 8] = old[place : place + 8]
            if new != old:
                ctypes.memmove(address, bytes(new), size)
        if name == "measure_headers":
            self._headers = arguments[3].headers
        return int(result)

    def _got(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        assert len(data) == size, f"the kernel has died: {self._process.wait()}"
        return data

    def _of_scan(self, state: ScanState) -> _Memory:
        memory, rows = _Memory(), state.max_rows
        own = memory.add(ctypes.addressof(state), ctypes.sizeof(state), -1, 0)
        memory.add(state.source, state.size, own, _place(ScanState, "source"))
        table = BATCH.itemsize * state.batch_count
        memory.add(state.batches, table, own, _place(ScanState, "batches"))
        memory.add_wanted(state.wanted, own, _place(ScanState, "wanted"))
        for name, width in (("offsets", 8), ("timestamps", 8), ("timestamp_types", 4)):
            if address := getattr(state, name):
                memory.add(address, width * rows, own, _place(ScanState, name))
        for name in ("keys", "values", "headers"):
            column = getattr(state, name)
            memory.add_column(column, own, _place(ScanState, name), rows)
        return memory

    def _of_decode_avro(self, state: AvroState) -> _Memory:
        steps, jumps = _reached(state)
        sizes = {
            "writers": 4 * state.rows.rows,
            "entries": 8 * state.writer_count,
            "steps": STEP.itemsize * steps,
            "jumps": 8 * jumps,
            "constants": state.constants_size,
            "stack": _AVRO_FRAME * avro_step.STACK,
        }
        memory = _Memory.of_state(state, sizes)
        memory.add_rows(state.rows, _place(AvroState, "rows"))
        return memory

    def _of_decode_json(self, state: JsonState) -> _Memory:
        nodes = state.rows.node_count
        steps = _table(state.steps, JSON_STEP, 0, nodes)
        structs = steps[steps["kind"] == json_kind.STRUCT]
        count = int((structs["first"] + structs["second"]).max())
        fields = _table(state.fields, JSON_FIELD, 0, count)
        sizes = {
            "steps": JSON_STEP.itemsize * nodes,
            "fields": JSON_FIELD.itemsize * count,
            "names": int((fields["name"] + fields["size"]).max(initial=0)) + _NAME_SLACK,
            "levels": JSON_LEVEL.itemsize * state.max_depth,
            "powers": 16 * _POWERS_OF_FIVE,
            "tens": 8 * _POWERS_OF_TEN,
            "zone_changes": 16 * state.zone_change_count,
        }
        memory = _Memory.of_state(state, sizes)
        memory.add_rows(state.rows, _place(JsonState, "rows"))
        return memory

    def _of_decode_messages(self, state: MessageDecoding) -> _Memory:
        messages = fields = enums = depth = 0
        to_do = [(0, 1)]
        while to_do:
            number, level = to_do.pop()
            (message,) = _table(state.messages, MESSAGE, number, number + 1)
            messages, depth = max(messages, number + 1), max(depth, level)
            first, behind = int(message["first"]), int(message["behind"])
            fields = max(fields, behind)
            for field in _table(state.fields, MESSAGE_FIELD, first, behind):
                below = int(field["below"])
                if field["kind"] == message_table.MESSAGE:
                    to_do.append((below, level + 1))
                elif field["kind"] == message_table.ENUM:
                    enums = max(enums, below + 1)
        names = int(_table(state.enums, MESSAGE_ENUM, 0, enums)["behind"].max(initial=0))
        sizes = {
            "messages": MESSAGE.itemsize * messages,
            "fields": MESSAGE_FIELD.itemsize * fields,
            "enums": MESSAGE_ENUM.itemsize * enums,
            "names": ENUM_NAME.itemsize * names,
            "texts": state.texts_size,
            "stack": FRAME.itemsize * depth,
            "groups": 8 * _GROUPS,
        }
        memory = _Memory.of_state(state, sizes)
        memory.add_rows(state.rows, _place(MessageDecoding, "rows"))
        return memory

    def _of_decode_variant(self, state: VariantState) -> _Memory:
        sizes = {
            "keys": VARIANT_KEY.itemsize * state.key_capacity,
            "slots": 4 * (state.slot_mask + 1),
            "names": state.names_capacity + COPY_SLACK,
            "ids": 4 * state.key_capacity,
            "fields": VARIANT_FIELD.itemsize * state.field_capacity,
            "levels": VARIANT_LEVEL.itemsize * state.max_depth,
            "powers": 16 * _POWERS_OF_FIVE,
            "tens": 8 * _POWERS_OF_TEN,
        }
        memory = _Memory.of_state(state, sizes)
        memory.add_rows(state.rows, _place(VariantState, "rows"))
        return memory

    def _of_index(self, source: int, size: int, table: int, room: int, found: Any) -> _Memory:
        memory = _Memory()
        memory.add(source, size, -1, 0)
        memory.add(table, BATCH.itemsize * room, -1, 2)
        memory.add(ctypes.addressof(found), ctypes.sizeof(found), -1, 4)
        return memory

    def _of_find_marks(self, source: int, size: int, *rest: int) -> _Memory:
        _, batches, counts = rest[:3]
        memory = _Memory()
        memory.add(source, size, -1, 0)
        memory.add(counts, 8 * batches, -1, 4)
        return memory

    def _of_measure_headers(
        self, offsets: int, data: int, rows: int, sizes: HeaderSizes
    ) -> _Memory:
        memory = self._of_raw(offsets, data, rows)
        memory.add(ctypes.addressof(sizes), ctypes.sizeof(sizes), -1, 3)
        return memory

    def _of_copy_headers(
        self, offsets: int, data: int, rows: int, lists: int, *columns: BinaryColumn
    ) -> _Memory:
        memory = self._of_raw(offsets, data, rows)
        memory.add(lists, 4 * (rows + 1), -1, 3)
        for argument, column in enumerate(columns, 4):
            own = memory.add(ctypes.addressof(column), ctypes.sizeof(column), -1, argument)
            memory.add_column(column, own, 0, self._headers)
        return memory

    def _of_raw(self, offsets: int, data: int, rows: int) -> _Memory:
        memory = _Memory()
        memory.add(offsets, 4 * (rows + 1), -1, 0)
        memory.add(data, ctypes.c_int32.from_address(offsets + 4 * rows).value, -1, 1)
        return memory


def _reached(state: AvroState) -> tuple[int, int]:
    """The last step of a program that a record may get to, and the last jump, counted from 1."""
    to_do = [_word(state.entries + 8 * writer) for writer in range(state.writer_count)]
    seen: set[int] = set()
    jumps = 0
    while to_do:
        number = to_do.pop()
        if number in seen:
            continue
        seen.add(number)
        (step,) = _table(state.steps, STEP, number, number + 1)
        operation, one, two = (int(step[name]) for name in ("operation", "one", "two"))
        if operation == avro_step.UNION:
            jumps = max(jumps, one + two)
            to_do += [_word(state.jumps + 8 * (one + branch)) for branch in range(two)]
        elif operation not in (avro_step.END, avro_step.RETURN, avro_step.REFUSE):
            to_do.append(int(step["next"]))
        if operation in (avro_step.ITEM, avro_step.CALL):
            to_do.append(one)
    return max(seen, default=-1) + 1, jumps


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value
