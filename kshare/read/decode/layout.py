"""The memory that Python and the compiled code share.

The formats: https://kafka.apache.org/documentation/#recordbatch and #record.
"""

import ctypes
from typing import Final, TypeVar

import numpy as np

__all__ = [
    "BATCH",
    "COPY_SLACK",
    "ENUM_NAME",
    "FAULT",
    "FRAME",
    "JSON_FIELD",
    "JSON_LEVEL",
    "JSON_STEP",
    "MESSAGE",
    "MESSAGE_ENUM",
    "MESSAGE_FIELD",
    "NODE",
    "SIGNATURES",
    "STEP",
    "VARIANT_FIELD",
    "VARIANT_KEY",
    "VARIANT_LEVEL",
    "AvroState",
    "BatchCount",
    "BinaryColumn",
    "HeaderSizes",
    "JsonState",
    "MessageDecoding",
    "RowDecoding",
    "ScanState",
    "VariantState",
    "Wanted",
]

COPY_SLACK: Final = 16
"""Bytes behind the capacity of a column, which copies may write to."""

BATCH: Final = np.dtype(
    [
        ("start", np.int64),  # of the records, in the buffer
        ("end", np.int64),
        ("base_offset", np.int64),
        ("last_delta", np.int64),  # of the batch's last offset
        ("records", np.int64),
        ("attributes", np.int64),
        ("first_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("producer_id", np.int64),
        ("checksum", np.int64),
    ]
)
"""The head of a record batch; ``index`` writes a table of them, and ``scan`` reads it."""

NODE: Final = np.dtype(
    [
        ("kind", np.int64),  # of kshare.read.decode.node_kind
        ("width", np.int64),  # bytes of a value, of a node of fixed width
        ("next", np.int64),  # the node behind it and all below it
        ("data", np.int64),  # address of the values' bytes, or bits
        ("offsets", np.int64),  # address of the 32-bit offsets of a list, map, string or binary
        ("validity", np.int64),  # address of the validity bits; those behind ``used`` are set
        ("used", np.int64),  # number of values so far
        ("capacity", np.int64),  # number of values that fit
        ("bytes_used", np.int64),  # of a string or binary
        ("bytes_capacity", np.int64),
        ("nulls", np.int64),
        ("kept", np.int64),  # while a row is taken away
        ("needed", np.int64),  # after FULL: number of values
        ("bytes_needed", np.int64),  # after FULL
    ]
)
"""One array of the output under construction: an Arrow type's nodes lie in preorder. The entries
of a map are a node of their own, a struct."""

FAULT: Final = np.dtype(
    [
        ("row", np.int64),
        ("place", np.int64),  # where in the format's table, such as a step of Avro's
        ("code", np.int64),  # the format's own
        ("value", np.int64),  # what was found, where the code says so
    ]
)
"""The reason why a row cannot be decoded."""

MESSAGE: Final = np.dtype(
    [
        ("first", np.int64),  # its first field in the table of fields
        ("behind", np.int64),  # the field behind its last one
        ("node", np.int64),  # the output's node of it, a struct
        ("values", np.int64),  # number of nodes that get a value each time
    ]
)
"""A message of Protobuf, or an entry of a map; number 0 is a row."""

MESSAGE_FIELD: Final = np.dtype(
    [
        ("number", np.int64),  # ascending within a message
        ("kind", np.int64),  # of kshare.read.decode.message_table, as the flags
        ("wire_type", np.int64),
        ("flags", np.int64),
        ("node", np.int64),  # the output's node of the value, or of an item
        ("holder", np.int64),  # the node of the list, or that of the value
        ("below", np.int64),  # the message or enum
        ("oneof", np.int64),  # the next member of its oneof, round and round; itself: none other
        ("default", np.int64),  # the value, or the position of the bytes
        ("default_size", np.int64),
    ]
)
"""A field of a MESSAGE."""

MESSAGE_ENUM: Final = np.dtype(
    [
        ("first", np.int64),  # its first value in the table of names
        ("behind", np.int64),
        ("unknown", np.int64),  # position of what a number without a name is called, before it
        ("unknown_size", np.int64),
    ]
)
"""An enum of Protobuf."""

ENUM_NAME: Final = np.dtype([("number", np.int64), ("position", np.int64), ("size", np.int64)])
"""A value of a MESSAGE_ENUM, ascending within it: the number, and where its name is."""

FRAME: Final = np.dtype([("end", np.int64), ("message", np.int64), ("next_field", np.int64)])
"""A message that is being read, in the stack of :class:`MessageDecoding`."""

STEP: Final = np.dtype(
    [
        ("operation", np.int64),  # of kshare.read.decode.avro_step, which says what the rest is
        ("node", np.int64),
        ("next", np.int64),  # the number of the step that follows
        ("one", np.int64),
        ("two", np.int64),
    ]
)
"""The next thing that ``decode_avro`` does."""

JSON_STEP: Final = np.dtype(
    [
        ("kind", np.int64),  # of kshare.read.decode.json_kind
        # The first of a struct's fields in their table and their number; an integer's least and
        # greatest value; a decimal's precision and scale; the first step of a pattern and their
        # number, 0 where the plain reader alone knows it.
        ("first", np.int64),
        ("second", np.int64),
    ]
)
"""The reading of a node of the output from JSON: there is one for each, in their order."""

JSON_FIELD: Final = np.dtype(
    [
        ("node", np.int64),
        ("name", np.int64),  # where it begins in the names' bytes
        ("size", np.int64),
        ("word", np.int64),  # its first 8 bytes, the first one lowest, zeros behind
    ]
)
"""A field of a struct, by its name."""

JSON_LEVEL: Final = np.dtype(
    [
        ("step", np.int64),  # the node; -1: nothing is taken; -2: all of it is a text
        ("is_object", np.int64),
        ("kept", np.int64),  # a struct: of how many the node was before it; a text: its address
        ("guess", np.int64),  # a struct: the field that may come next
        ("found", np.int64),  # a struct: how many fields were found
        ("current", np.int64),  # the node of the value that is being read
    ]
)
"""An object or array that is being read; they lie on a stack."""

VARIANT_KEY: Final = np.dtype(
    [
        ("word", np.int64),  # its first 8 bytes, the first one lowest, zeros behind
        ("order", np.int64),  # the same, so that a lower number is what Java sorts first
        ("name", np.int64),  # where it begins in the names' bytes
        ("size", np.int64),
        ("stamp", np.int64),  # of the record that had it last
        ("id", np.int64),  # in that record
        ("following", np.int64),  # the key that came behind it last; -1: none yet
    ]
)
"""A name of a field. Those of earlier records are kept, as the next ones mostly have them, too."""

VARIANT_FIELD: Final = np.dtype([("key", np.int32), ("offset", np.int32)])
"""A value of an object or array that is being read: its key, and where it is among the values."""

VARIANT_LEVEL: Final = np.dtype(
    [
        ("is_object", np.int64),
        ("first", np.int64),  # its first VARIANT_FIELD
        ("start", np.int64),  # where it begins in the output: an address
        ("reserved", np.int64),  # bytes that are kept free for its head
        ("header", np.int64),  # bytes of the head of the last one at this depth
    ]
)
"""An object or array that is being read; they lie on a stack."""


_Structure = TypeVar("_Structure", bound=type[ctypes.Structure])


def _laid_out(structure: _Structure) -> _Structure:
    """Lay a structure out as annotated: 64-bit integers, and other structures, in their order."""
    kinds = structure.__annotations__.items()
    structure._fields_ = [(name, ctypes.c_int64 if kind is int else kind) for name, kind in kinds]
    return structure


@_laid_out
class BatchCount(ctypes.Structure):
    """The result of ``index``.

    Attributes:
        batches: Number of complete batches.
        end: Where the last one ends.
        next_offset: The offset after it (0: there is none); after a fault that of the bad batch.
    """

    batches: int
    end: int
    next_offset: int


@_laid_out
class Wanted(ctypes.Structure):
    """The records that ``scan`` looks for. All but the first three are addresses.

    Attributes:
        floor: Offsets below it are passed over.
        bands: Number of bands.
        keys: Number of wanted keys; 0: all are wanted.
        starts: The first offset of each band.
        ends: The end of each band.
        range_counts: Number of hash ranges before those of each band, and of all; a band with none
            wants all hashes.
        lows: The first hash of each range.
        lasts: The last hash of each range.
        key_hashes: The hash of each wanted key, ascending.
        key_ends: Number of bytes before each wanted key, and of all.
        key_bytes: The wanted keys, one after the other.
        last_bytes: 256 flags: whether a wanted key ends with that byte (0, if it is empty).
    """

    floor: int
    bands: int
    keys: int
    starts: int
    ends: int
    range_counts: int
    lows: int
    lasts: int
    key_hashes: int
    key_ends: int
    key_bytes: int
    last_bytes: int


@_laid_out
class BinaryColumn(ctypes.Structure):
    """A binary column under construction. The first three are addresses.

    Attributes:
        offsets: 32-bit offsets into the data; 0: there is no such column.
        data: The bytes.
        validity: Validity bits, all set at first.
        capacity: Number of bytes that fit.
        used: Number of bytes so far.
        needed: After FULL: number of bytes with the next value.
        nulls: Number of rows that are null.
    """

    offsets: int
    data: int
    validity: int
    capacity: int
    used: int
    needed: int
    nulls: int


@_laid_out
class ScanState(ctypes.Structure):
    """The state of ``scan``: where it stands, what is wanted, and the columns.

    Attributes:
        source: Address of the buffer that the records are in.
        size: Its size.
        batches: Address of the table of batches.
        batch_count: Number of batches.
        batch: The batch where the scan stands.
        record: The record in it.
        position: The record's position in the buffer, unless it is the batch's first.
        delta: The offset delta of the record before it.
        band: The first band that does not end before it.
        wanted: Which records to take.
        counting: Not 0: records are only counted.
        rows: Number of rows so far.
        max_rows: Maximum number of rows.
        max_bytes: Maximum size of all columns together; a single row may be larger.
        end_offset: The offset after the last row.
        offsets: Address of the column of offsets; 0: there is no such column.
        timestamps: The same of timestamps.
        timestamp_types: The same of timestamp types.
        keys: The column of keys.
        values: The column of values.
        headers: The column of headers, as on the wire.
    """

    source: int
    size: int
    batches: int
    batch_count: int
    batch: int
    record: int
    position: int
    delta: int
    band: int
    wanted: Wanted
    counting: int
    rows: int
    max_rows: int
    max_bytes: int
    end_offset: int
    offsets: int
    timestamps: int
    timestamp_types: int
    keys: BinaryColumn
    values: BinaryColumn
    headers: BinaryColumn


@_laid_out
class RowDecoding(ctypes.Structure):
    """Payloads that are decoded to rows: where they lie, where the decoding stands, the output.

    Attributes:
        source: Address of the bytes that the payloads lie in.
        size: Their number.
        starts: Address of the payloads' begins, int64; negative: there is nothing to decode.
        ends: Address of their ends, int64.
        rows: Number of payloads.
        row: The one where the decoding stands, and so the number of rows in the output.
        nodes: Address of the output's nodes, of NODE.
        node_count: Number of nodes.
        faults: Address of the faults, of FAULT; there is room for one a payload.
        fault_count: Number of faults so far.
    """

    source: int
    size: int
    starts: int
    ends: int
    rows: int
    row: int
    nodes: int
    node_count: int
    faults: int
    fault_count: int


@_laid_out
class MessageDecoding(ctypes.Structure):
    """Messages of Protobuf that are decoded to rows.

    Attributes:
        rows: The payloads and the output.
        messages: Address of the table of MESSAGE.
        fields: Address of the table of MESSAGE_FIELD.
        enums: Address of the table of MESSAGE_ENUM.
        names: Address of the table of ENUM_NAME.
        texts: Address of the names' bytes.
        texts_size: Their number.
        stack: Address of a FRAME for each message that may be in another.
        groups: Address of the numbers of open groups, int64; there is room for 100.
        most_values: Maximum number of values of a row.
        values: Number of values of the row so far.
        depth: The message where the decoding stands, in the stack.
        first: Its first field.
        behind: The field behind its last one.
        node: Its node.
        next_field: The field that is probably next.
        result: Why the row ended.
        place: The field of a fault; -1: the value as a whole.
        found: What was found.
    """

    rows: RowDecoding
    messages: int
    fields: int
    enums: int
    names: int
    texts: int
    texts_size: int
    stack: int
    groups: int
    most_values: int
    values: int
    depth: int
    first: int
    behind: int
    node: int
    next_field: int
    result: int
    place: int
    found: int


@_laid_out
class AvroState(ctypes.Structure):
    """The state of ``decode_avro``.

    Attributes:
        rows: The payloads, and the output.
        writers: Address of the number of each payload's writer, int32.
        entries: Address of each writer's first step, int64.
        writer_count: Number of writers.
        steps: Address of the steps, of STEP.
        jumps: Address of the numbers of steps that UNION chooses of, int64.
        constants: Address of what ``one`` and ``two`` of some steps are the places of.
        constants_size: Number of bytes there.
        stack: Address of room for 4 numbers in each of the levels that may lie in each other.
        least_output: Bytes of output that the items of a record may take, whatever its size.
    """

    rows: RowDecoding
    writers: int
    entries: int
    writer_count: int
    steps: int
    jumps: int
    constants: int
    constants_size: int
    stack: int
    least_output: int


@_laid_out
class JsonState(ctypes.Structure):
    """The state of ``decode_json``.

    Attributes:
        rows: The payloads, and the output.
        steps: Address of one of JSON_STEP for each node.
        fields: Address of all structs' fields, of JSON_FIELD.
        names: Address of the bytes of their names.
        levels: Address of ``max_depth`` of JSON_LEVEL.
        powers: Address of 128 bits of each power of five from -342 to 308; the upper 64 first.
        tens: Address of the powers of ten from 0 to 22, as doubles.
        zone_changes: Address of the changes of the zone of timestamps that name none: from which
            local time on, in microseconds, and how many of these to the east, int64 both; the last
            one is the end of what is known.
        zone_change_count: Number of changes.
        patterns: Address of the steps of patterns of times, of JSON_STEP with the kinds of
            kshare.read.decode.pattern_step.
        moment: Address of an int64 for each of these kinds, to note what a text has.
        max_depth: Objects and arrays in each other, at most.
        max_nulls: Fields that are missing in a record, at most.
        flags: NO_SINGLE_QUOTES and the like.
        wrong_node: The first value of another type, of the record that is being read: its node, or
            -1.
        wrong_at: The address of that value.
    """

    rows: RowDecoding
    steps: int
    fields: int
    names: int
    levels: int
    powers: int
    tens: int
    zone_changes: int
    zone_change_count: int
    patterns: int
    moment: int
    max_depth: int
    max_nulls: int
    flags: int
    wrong_node: int
    wrong_at: int


@_laid_out
class VariantState(ctypes.Structure):
    """The state of ``decode_variant``. Keys are numbered in their table.

    Attributes:
        rows: The payloads, and the output: a struct of two binaries, value and metadata.
        keys: Address of the keys, of VARIANT_KEY.
        key_count: Number of keys.
        key_capacity: Number of keys that fit.
        slots: Address of the hash table: int32 each, a key's number and 1, or 0.
        slot_mask: Number of slots, which is a power of two, less 1.
        names: Address of the bytes of the keys' names.
        names_used: Number of bytes.
        names_capacity: Number of bytes that fit, besides COPY_SLACK.
        stamp: Of the record that is being read.
        last_key: The key that was seen last; -1: none.
        ids: Address of the keys of this record by their ids, int32; as many fit as keys.
        id_count: Number of ids.
        is_same: Not 0: these are those of the record before, so far.
        same_count: Number of ids of the record before; -1: there is none.
        same_at: Where its metadata begins in the output.
        same_size: Its size.
        fields: Address of the values of all open objects and arrays, of VARIANT_FIELD.
        field_count: Number of values.
        field_capacity: Number of values that fit.
        levels: Address of ``max_depth`` of VARIANT_LEVEL.
        max_depth: Objects and arrays in each other, at most.
        max_size: Bytes of a value, and of its metadata, at most.
        powers: As in :class:`JsonState`.
        tens: As in :class:`JsonState`.
        lacking: After FULL, what has no room, of kshare.read.decode.variant_kind.
    """

    rows: RowDecoding
    keys: int
    key_count: int
    key_capacity: int
    slots: int
    slot_mask: int
    names: int
    names_used: int
    names_capacity: int
    stamp: int
    last_key: int
    ids: int
    id_count: int
    is_same: int
    same_count: int
    same_at: int
    same_size: int
    fields: int
    field_count: int
    field_capacity: int
    levels: int
    max_depth: int
    max_size: int
    powers: int
    tens: int
    lacking: int


@_laid_out
class HeaderSizes(ctypes.Structure):
    """Room for some headers.

    Attributes:
        headers: Number of headers.
        key_bytes: Size of their keys.
        value_bytes: Size of their values.
    """

    headers: int
    key_bytes: int
    value_bytes: int


SIGNATURES: Final[dict[str, tuple[type, ...]]] = {
    "copy_headers": (int, int, int, int, BinaryColumn, BinaryColumn),
    "decode_avro": (AvroState,),
    "decode_json": (JsonState,),
    "decode_messages": (MessageDecoding,),
    "decode_variant": (VariantState,),
    "find_marks": (int, int, int, int, int, int, int),
    "index": (int, int, int, int, BatchCount),
    "measure_headers": (int, int, int, HeaderSizes),
    "scan": (ScanState,),
}
"""The arguments of each kernel: integers, which may be addresses, and pointers to structures."""
