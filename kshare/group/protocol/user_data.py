"""The user data of members: JSON, plain (version 1) or compressed (version 2).

::

    {"kshare": 1, "hash": ..., ...}        what every version reads
    {"kshare": 2, "z": "the same, by zlib, in base 85"}

The coordinator keeps what all members of a group say, and what they are assigned, in one record of
1 MB. Version 2 is a third as long. A group uses it whose members all say that they read it, so that
a group may be of two versions while it is upgraded.

``fields_of(encoded(fields)) == fields``, and equal fields have equal bytes.
"""

import json
import zlib
from base64 import b85decode, b85encode
from collections.abc import Mapping
from typing import Any, Final

from kshare.errors import ForeignMemberError
from kshare.group.protocol.json_fields import dumps

__all__ = [
    "COMPRESSED",
    "HASH",
    "PLAIN",
    "check_fields",
    "encoded",
    "fields_of",
]

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

_INFLATED_MAX: Final = 64 << 20


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
        ValueError, KeyError, TypeError, zlib.error: They are damaged.
    """
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or "kshare" not in fields:
        return None
    if fields["kshare"] != COMPRESSED:
        return fields
    inflater = zlib.decompressobj(zdict=_WORDS)
    plain = inflater.decompress(b85decode(fields["z"]), _INFLATED_MAX)
    if not inflater.eof:
        raise ValueError(f"it is cut short, or longer than {_INFLATED_MAX} bytes")
    return {**json.loads(plain), "kshare": COMPRESSED}


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
