"""The bytes of what consumers say to each other through their group's coordinator.

The outer form is Kafka's "consumer" protocol, version 0; what later versions add behind it is
passed over::

    subscription: version (int16), topics (array of string), user data (bytes)
    assignment:   version (int16), topics with partitions (array), user data (bytes)

User data of kshare's members are JSON, plain (version 1) or compressed (version 2)::

    {"kshare": 1, "hash": ..., ...}        what every version reads
    {"kshare": 2, "z": "the same, by zlib, in base 85"}

The coordinator keeps what all members of a group say, and what they are assigned, in one record of
1 MB. Version 2 is a third as long. A group uses it whose members all say that they read it, so that
a group may be of two versions while it is upgraded.

``decode_x(encode_x(value)) == value``, for partitions in order; ``fields_of(encoded(fields)) ==
fields``, and equal fields have equal bytes.
"""

import json
import struct
import zlib
from base64 import b85decode, b85encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kshare.core.bounded_json import inflated, read_json, read_object
from kshare.core.progress import TopicPartition
from kshare.errors import ForeignMemberError

__all__ = [
    "COMPRESSED",
    "HASH",
    "PLAIN",
    "PROTOCOL_TYPE",
    "check_fields",
    "decode_partitions",
    "decode_topics",
    "dumps",
    "encode_partitions",
    "encode_topics",
    "encoded",
    "fields_of",
]

PROTOCOL_TYPE: Final = "consumer"
"""What Kafka's own consumers say, and their tools expect."""


def encode_topics(topics: Sequence[str], user_data: bytes) -> bytes:
    """The bytes of a subscription."""
    head = struct.pack(">hi", 0, len(topics))
    return b"".join([head, *map(_string, topics), _bytes(user_data)])


def decode_topics(data: bytes) -> tuple[tuple[str, ...], bytes]:
    """The topics of a subscription, and its user data.

    Raises:
        ValueError: The bytes are no subscription.
    """
    reader = _Reader(data)
    reader.version()
    topics = tuple(reader.string() for _ in range(reader.length()))
    return topics, reader.blob()


def encode_partitions(
    partitions: Iterable[TopicPartition], user_data: bytes | None = None
) -> bytes:
    """The bytes of an assignment."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    head = struct.pack(">hi", 0, len(by_topic))
    listed = (_string(topic) + _int32s(numbers) for topic, numbers in by_topic.items())
    return b"".join([head, *listed, _bytes(user_data)])


def decode_partitions(data: bytes) -> tuple[tuple[TopicPartition, ...], bytes]:
    """The partitions of an assignment, and its user data.

    Raises:
        ValueError: The bytes are no assignment.
    """
    reader = _Reader(data)
    reader.version()
    partitions: list[TopicPartition] = []
    for _ in range(reader.length()):
        topic = reader.string()
        partitions += (TopicPartition(topic, reader.int32()) for _ in range(reader.length()))
    return tuple(partitions), reader.blob()


class _Reader:
    """Reads Kafka's primitive types."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def version(self) -> None:
        version = self._number(">h", 2)
        if version < 0:
            raise ValueError(f"a version of {version}")

    def int32(self) -> int:
        return self._number(">i", 4)

    def length(self) -> int:
        """The length of an array whose elements take two bytes at least."""
        length = self.int32()
        if not 0 <= length <= len(self._data) // 2:
            raise ValueError(f"an array of {length}")
        return length

    def string(self) -> str:
        return self._take(self._number(">h", 2)).decode()

    def blob(self) -> bytes:
        length = self.int32()
        return b"" if length == -1 else self._take(length)

    def _number(self, form: str, size: int) -> int:
        number: int
        (number,) = struct.unpack(form, self._take(size))
        return number

    def _take(self, size: int) -> bytes:
        if size < 0 or self._position + size > len(self._data):
            raise ValueError("it is cut short")
        taken = self._data[self._position : self._position + size]
        self._position += size
        return taken


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _bytes(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def _int32s(numbers: Sequence[int]) -> bytes:
    return struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)


def dumps(value: Any) -> bytes:
    """A value as compact JSON in UTF-8."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


PLAIN: Final = 1
"""The version of the user data that all members read."""

COMPRESSED: Final = 2
"""The latest version that this code writes and reads."""

HASH: Final = "murmur3-x64-128/2"
"""The key hash: the first 64 bits of MurmurHash3 x64-128, seed 0, shifted right by one."""

_WORDS: Final = (
    b'"loads":[[,"tags":{,"lags":[["task_assignor":"range_assignor":"adaptive""refusal":""denied":['
    b'""ordered":false,"target":[["rack":null,"reads":2"topic_id":"","epoch":null,"host":"localhost'
    b'","individual":true,"owned":[],"owned":[["{"hash":"murmur3-x64-128/2","name":""assigned":[["'
    b',[]],["'
)
"""What is in all of them. Part of version 2: another text would be another version."""


def encoded(fields: Mapping[str, Any], *, compressed: bool) -> bytes:
    """The user data that say some fields."""
    said = {"hash": HASH, **fields}
    if not compressed:
        return dumps({"kshare": PLAIN, **said})
    deflater = zlib.compressobj(9, zdict=_WORDS)
    packed = deflater.compress(dumps(said)) + deflater.flush()
    return dumps({"kshare": COMPRESSED, "z": b85encode(packed).decode()})


def fields_of(data: bytes) -> dict[str, Any] | None:
    """The fields of user data, decompressed; None if they are not kshare's.

    Raises:
        ValueError, KeyError, TypeError: They are damaged.
    """
    try:
        fields = read_json(data)
    except ValueError:
        return None
    if not isinstance(fields, dict) or "kshare" not in fields:
        return None
    if fields["kshare"] != COMPRESSED:
        return fields
    packed = b85decode(fields["z"])
    if b85encode(packed).decode() != fields["z"]:
        # Python's decoder drops the spare bits of the last character, so damage of these passes it.
        raise ValueError("its base85 text is not the one that its bytes have")
    plain = inflated(packed, dictionary=_WORDS)
    return {**read_object(plain), "kshare": COMPRESSED}


def check_fields(fields: Mapping[str, Any], member: str) -> None:
    """Refuse another version, or another key hash.

    Args:
        fields: What the user data say.
        member: Who has written them, for the error.

    Raises:
        ForeignMemberError: It is another one.
    """
    version, hash_ = fields["kshare"], fields.get("hash")
    if type(version) is not int or version not in {PLAIN, COMPRESSED}:
        raise ForeignMemberError(
            f"the member {member} speaks version {version!r} of kshare's group protocol, this one "
            f"version {COMPRESSED}: install the same version on all members"
        )
    if hash_ != HASH:
        raise ForeignMemberError(
            f"the member {member} hashes keys by {hash_!r}, this one by {HASH!r}: the members of "
            "a group need the same hash"
        )
