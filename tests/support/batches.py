"""Record batches v2 in plain Python: written and read, the slow and obvious way.

The reader is the oracle of the kernels. It follows Kafka's documentation of the format
(https://kafka.apache.org/documentation/#messageformat) and what Java's ``DefaultRecordBatch`` and
``DefaultRecord`` refuse.
"""

import gzip
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from crc32c import crc32c

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HEAD = struct.Struct(">qiibIhiqqqhii")
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20
COMMIT, ABORT = struct.pack(">hh", 0, 1), struct.pack(">hh", 0, 0)

Headers = tuple[tuple[bytes, bytes | None], ...]


class DamagedError(Exception):
    """The bytes are not what the format says."""


@dataclass(frozen=True)
class Rec:
    """A record; ``delta`` is its offset less that of the batch."""

    key: bytes | None
    value: bytes | None
    delta: int = 0
    time_delta: int = 0
    headers: Headers = ()


@dataclass(frozen=True)
class Batch:
    """A record batch; ``payload`` are its records, as on the wire."""

    base: int
    payload: bytes = field(repr=False)
    count: int
    last_delta: int
    codec: str = "none"
    attributes: int = 0
    first_timestamp: int = 1_000
    max_timestamp: int = 2_000
    producer: int = -1
    checksum: int | None = None  # None: the right one
    magic: int = 2
    length: int | None = None  # None: the right one
    leader_epoch: int = 0

    def encode(self) -> bytes:
        attributes = self.attributes | CODECS.index(self.codec)
        length = HEAD.size - 12 + len(self.payload) if self.length is None else self.length
        fields = (
            *(attributes, self.last_delta, self.first_timestamp, self.max_timestamp),
            *(self.producer, 0, 0, self.count),
        )
        checked = struct.pack(">hiqqqhii", *fields) + self.payload
        checksum = crc32c(checked) if self.checksum is None else self.checksum
        head = (self.base, length, self.leader_epoch, self.magic, checksum)
        return struct.pack(">qiibI", *head) + checked


# -- written ------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    """A zigzag varint of 64 bits at most."""
    left = (number << 1 ^ number >> 63) & (1 << 64) - 1
    out = bytearray()
    while left >= 0x80:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def encode_record(record: Rec) -> bytes:
    body = b"\0" + varint(record.time_delta) + varint(record.delta)
    body += _sized(record.key) + _sized(record.value) + varint(len(record.headers))
    for key, value in record.headers:
        body += _sized(key) + _sized(value)
    return varint(len(body)) + body


def compress(data: bytes, codec: str, *, xerial: bool = False, block: int = 32 << 10) -> bytes:
    if codec == "none":
        return data
    if codec == "gzip":
        return gzip.compress(data, 1, mtime=0)
    if codec == "snappy" and xerial:
        out = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
        for at in range(0, len(data), block):
            part = pa.compress(data[at : at + block], "snappy", asbytes=True)
            out += struct.pack(">i", len(part)) + part
        return out
    return bytes(pa.compress(data, codec, asbytes=True))


def batch_of(
    records: Iterable[Rec],
    *,
    base: int = 0,
    codec: str = "none",
    xerial: bool = False,
    last_delta: int | None = None,
    **fields: Any,
) -> Batch:
    """A batch of some records, the last of which has the last offset unless another is given."""
    records = list(records)
    if last_delta is None:
        last_delta = max((record.delta for record in records), default=0)
    raw = b"".join(map(encode_record, records))
    payload = compress(raw, codec, xerial=xerial)
    return Batch(base, payload, len(records), last_delta, codec, **fields)


def numbered(records: Sequence[Rec]) -> list[Rec]:
    """The records with the deltas 0, 1, 2 and so on."""
    return [replace(record, delta=delta) for delta, record in enumerate(records)]


def control_batch(base: int, producer: int, kind: bytes, **fields: Any) -> Batch:
    """The end of a transaction: COMMIT or ABORT."""
    marker = Rec(kind, struct.pack(">hi", 0, 0))
    attributes = TRANSACTIONAL | CONTROL
    return batch_of([marker], base=base, producer=producer, attributes=attributes, **fields)


# -- read ---------------------------------------------------------------------------------------


def split_batches(data: bytes) -> tuple[list[Batch], bytes]:
    """The complete batches of a response, and the rest."""
    found: list[Batch] = []
    at, after = 0, 0
    while len(data) - at > 16:
        base, length = struct.unpack_from(">qi", data, at)
        magic = data[at + 16]
        if magic != 2:
            raise DamagedError("format")
        if length < HEAD.size - 12:
            raise DamagedError("length")
        if at + 12 + length > len(data):
            break
        fields = HEAD.unpack_from(data, at)
        _, _, _, _, checksum, attributes, last_delta, first, most, producer, _, _, count = fields
        if base < after or last_delta < 0 or base + last_delta + 1 >= 1 << 63 or count < 0:
            raise DamagedError("head")
        after = base + last_delta + 1
        number = attributes & 7
        codec = CODECS[number] if number < len(CODECS) else f"codec {number}"
        payload = data[at + HEAD.size : at + 12 + length]
        times = (first, most)
        batch = Batch(
            base, payload, count, last_delta, codec, attributes & ~7, *times, producer, checksum
        )
        found.append(batch)
        at += 12 + length
    return found, data[at:]


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise DamagedError("size")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                value &= (1 << 64) - 1
                return value >> 1 ^ -(value & 1)
        raise DamagedError("varint")

    def sized(self) -> bytes | None:
        size = self.varint()
        return None if size == -1 else self.take(size)


def java_text(data: bytes) -> str:
    """What Java's ``new String(data, UTF_8)`` makes of bytes: one U+FFFD for a surrogate."""
    return re.sub(rb"\xed[\xa0-\xbf][\x80-\xbf]", b"\xef\xbf\xbd", data).decode(errors="replace")


def java_headers(headers: Headers) -> tuple[tuple[str, bytes | None], ...]:
    """Headers as they are delivered."""
    return tuple((java_text(key), value) for key, value in headers)


def decode_records(raw: bytes, count: int, last_delta: int) -> list[Rec]:
    """The records of a batch, decompressed."""
    cursor = _Cursor(raw)
    records: list[Rec] = []
    delta = -1
    for _ in range(count):
        body = _Cursor(cursor.take(cursor.varint()))
        body.take(1)
        time_delta, before, delta = body.varint(), delta, body.varint()
        if not before < delta <= last_delta:
            raise DamagedError("offset")
        key, value = body.sized(), body.sized()
        headers = []
        many = body.varint()
        if many < 0:
            raise DamagedError("headers")
        for _ in range(many):
            name = body.sized()
            if name is None:
                raise DamagedError("header")
            headers.append((name, body.sized()))
        if body.at != len(body.data):
            raise DamagedError("record")
        records.append(Rec(key, value, delta, time_delta, tuple(headers)))
    if cursor.at != len(raw):
        raise DamagedError("batch")
    return records
