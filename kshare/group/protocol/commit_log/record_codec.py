"""The bytes of the individual commit log's records, and reading those of one group.

Guarantees: ``decode(*encode(group, record)) == (group, record)``, and equal records have equal
bytes. What is no record of this log is an error that says why; it is never half read. The table of
keys and values is that of :mod:`kshare.group.protocol.commit_log.records`.
"""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kshare.core.bounded_json import (
    DAMAGE,
    JsonBounds,
    count_of,
    inflated,
    read_json,
    read_object,
)
from kshare.core.hashing import ALL_HASHES, HASH_SPACE, HashRange, KeyRanges
from kshare.core.offsets import OFFSET_MAX, START_MAX, OffsetRange, pack, unpack
from kshare.core.progress import TopicPartition
from kshare.errors import CommitLogError, LaterVersionError, OtherHashError
from kshare.group.protocol.commit_log.consumer_protocol import HASH, dumps
from kshare.group.protocol.commit_log.records import (
    OPTIONAL,
    STRETCH,
    VERSION,
    Block,
    Claim,
    Epoch,
    EpochMember,
    Key,
    Lease,
    Member,
    Record,
    Reset,
    Stable,
    key_of,
)
from kshare.group.protocol.commit_log.shared_settings import settings_of, settings_value

__all__ = [
    "LIFE_SECONDS",
    "assignment_of",
    "assignment_value",
    "decode",
    "decode_key",
    "encode",
    "encode_key",
]

LIFE_SECONDS: Final = 30.0
"""A member that has not said for so long that it is alive is dead."""

_HASHES_MAX: Final = 1 << 16
_PLAIN_MAX: Final = 256 << 10
_PACKED_MAX: Final = 4 * STRETCH
_KEY_BOUNDS: Final = JsonBounds(size=1 << 20, depth=4, containers=1 << 10)


def encode(group: str, record: Record) -> tuple[bytes, bytes]:
    """The key and the value of a record; a long value is compressed.

    Raises:
        CommitLogError: :func:`decode` would refuse them, in each member of the group.
    """
    try:
        key, fields = encode_key(group, key_of(record)), _value_of(record)
        value, parsed = dumps(fields), decode_key(key)[1]
        if not isinstance(record, Block):  # whose offsets cost as much again to unpack
            _VALUES[parsed.kind](parsed, fields)
        if len(value) > _PLAIN_MAX:
            read_object(value)
    except (TypeError, ValueError) as error:
        raise CommitLogError(f"{record!r:.300} is no record of the log: {error}") from error
    if len(value) > _PLAIN_MAX:  # an epoch of many members; 1 MB is the brokers' limit
        value = dumps({"z": b64encode(zlib.compress(value)).decode()})
    return key, value


def encode_key(group: str, key: Key) -> bytes:
    """The bytes of a key; with no value beside them, a tombstone."""
    where = () if key.partition is None else key.partition
    detail = [[part.lo, part.hi] if isinstance(part, HashRange) else part for part in key.detail]
    return dumps([VERSION, group, key.incarnation, key.kind, *where, *detail])


def decode_key(key: bytes) -> tuple[str, Key]:
    """The group and the key that some bytes say.

    Of a kind that may be passed over (:data:`.OPTIONAL`) and is not known, only the kind.

    Raises:
        LaterVersionError: A later version of kshare has written them.
        CommitLogError: They are no key of this log.
    """
    try:
        version, group, incarnation, kind, *rest = read_json(key, _KEY_BOUNDS)
    except (ValueError, TypeError):
        raise CommitLogError(f"not a key of an individual commit log: {key[:100]!r}") from None
    if type(version) is int and version > VERSION:
        raise LaterVersionError(
            f"version {version} of an individual commit log's record; this kshare reads up to "
            f"version {VERSION}: install a later one on all members of the group"
        )
    _check(version == VERSION and type(version) is int, "version", version)
    _check(isinstance(group, str), "group", group)
    _check(_is_offset(incarnation), "incarnation", incarnation)
    read = _DETAILS.get(kind) if isinstance(kind, str) else None
    if read is None:
        if isinstance(kind, str) and kind.endswith(OPTIONAL):
            return group, Key(incarnation, kind, None)
        raise CommitLogError(f"not a kind of record of an individual commit log: {kind!r:.100}")
    partition = None
    if kind not in _OF_GROUPS:
        _check(len(rest) >= 2 and _is_partition(*rest[:2]), "partition", rest[:2])
        partition = TopicPartition(rest[0], rest[1])
        rest = rest[2:]
    return group, Key(incarnation, kind, partition, read(rest))


def decode(key: bytes, value: bytes) -> tuple[str, Record]:
    """The group and the record that some bytes say.

    Raises:
        LaterVersionError: A later version of kshare has written them.
        OtherHashError: Their key hashes are those of another hash function.
        CommitLogError: They are no record of this log; the text says why.
    """
    group, parsed = decode_key(key)
    try:
        return group, _VALUES[parsed.kind](parsed, _plain(read_object(value)))
    except DAMAGE as error:
        raise CommitLogError(
            f"the value of {key[:200]!r} cannot be read: {error!r:.300}"
        ) from error


def _plain(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a value, also if it is compressed."""
    if fields.keys() != {"z"}:
        return fields
    return read_object(inflated(b64decode(fields["z"], validate=True)))


# -- values --------------------------------------------------------------------------------------


def _value_of(record: Record) -> dict[str, Any]:  # noqa: PLR0911
    match record:
        case Claim():
            return {
                "hash": HASH,
                "hashes": record.hashes.pairs,
                "epoch": record.epoch,
                "transactional_id": record.transactional_id,
                **({"self_fencing": True} if record.self_fencing else {}),
                **({"shared": True} if record.shared else {}),
            }
        case Lease():
            return {"offsets": [record.offsets.start, record.offsets.end]}
        case Block():
            packed = pack(record.bounds, record.stretch * STRETCH)
            return {"o": b64encode(packed).decode()}
        case Stable():
            return {
                "offset": record.offset,
                "leader_epoch": record.leader_epoch,
                "metadata": record.metadata,
            }
        case Reset():
            return {"hash": HASH, "offset": record.offset}
        case Member():
            return {
                "host": record.host,
                "seen_ms": record.seen_ms,
                **({} if record.reads == VERSION else {"reads": record.reads}),
                **settings_value(record.settings),
            }
        case Epoch():
            return {
                "generation": record.generation,
                "leader": record.leader,
                "members": [
                    [each.name, each.member_id, each.host, assignment_value(each.assigned)]
                    for each in record.members
                ],
            }


def _claim(key: Key, fields: Mapping[str, Any]) -> Claim:
    _check_hash(key, fields)
    hashes = _hashes_of(fields["hashes"])
    _check(len(hashes) <= _HASHES_MAX, "number of hash ranges", len(hashes))
    epoch, transactional_id = fields["epoch"], fields["transactional_id"]
    _check(epoch is None or _is_offset(epoch), "epoch", epoch)
    is_id = transactional_id is None or isinstance(transactional_id, str)
    _check(is_id, "transactional_id", transactional_id)
    assert key.partition is not None
    fences, shares = fields.get("self_fencing", False), fields.get("shared", False)
    _check(type(fences) is bool, "self_fencing", fences)
    _check(type(shares) is bool, "shared", shares)
    return Claim(key.partition, key.detail[0], hashes, epoch, transactional_id, fences, shares)


def _check_hash(key: Key, fields: Mapping[str, Any]) -> None:
    """Refuse hashes of another hash function; records of earlier versions do not name theirs."""
    hash_ = fields.get("hash", HASH)
    if hash_ != HASH:
        raise OtherHashError(
            f"{key.partition}: its {key.kind} is of key hashes by {hash_!r:.100}, and this kshare "
            f"hashes keys by {HASH!r}"
        )


def _lease(key: Key, fields: Mapping[str, Any]) -> Lease:
    start, end = fields["offsets"]
    _check(_is_offset(start) and _is_offset(end) and start < end, "offsets", [start, end])
    assert key.partition is not None
    author, number = key.detail
    return Lease(key.partition, key.incarnation, author, number, OffsetRange(start, end))


def _block(key: Key, fields: Mapping[str, Any]) -> Block:
    author, hashes, stretch = key.detail
    first = stretch * STRETCH
    packed = b64decode(fields["o"], validate=True)
    if len(packed) > _PACKED_MAX:
        raise ValueError(f"offsets in {len(packed)} bytes; wanted at most {_PACKED_MAX}")
    bounds = unpack(packed, first)
    if bounds[-1] > first + STRETCH:
        raise ValueError(f"offset {bounds[-1]} is behind the end of stretch {stretch}")
    assert key.partition is not None
    return Block(key.partition, key.incarnation, author, hashes, stretch, bounds)


def _stable(key: Key, fields: Mapping[str, Any]) -> Stable:
    offset, leader_epoch, metadata = fields["offset"], fields["leader_epoch"], fields["metadata"]
    _check(_is_offset(offset) and offset <= START_MAX, "offset", offset)
    _check(leader_epoch is None or _is_offset(leader_epoch), "leader_epoch", leader_epoch)
    _check(isinstance(metadata, str), "metadata", metadata)
    assert key.partition is not None
    return Stable(key.partition, key.incarnation, offset, leader_epoch, metadata, *key.detail)


def _reset(key: Key, fields: Mapping[str, Any]) -> Reset:
    _check_hash(key, fields)
    offset = fields["offset"]
    _check(_is_offset(offset) and offset <= START_MAX, "offset", offset)
    assert key.partition is not None
    return Reset(key.partition, key.incarnation, offset, *key.detail)


def _member(key: Key, fields: Mapping[str, Any]) -> Member:
    host, seen_ms = fields["host"], fields["seen_ms"]
    _check(isinstance(host, str), "host", host)
    _check(_is_offset(seen_ms), "seen_ms", seen_ms)
    reads = fields.get("reads", VERSION)
    _check(_is_offset(reads), "reads", reads)
    return Member(key.detail[0], host, seen_ms, reads, settings_of(fields))


def _epoch(_: Key, fields: Mapping[str, Any]) -> Epoch:
    generation, leader = fields["generation"], fields["leader"]
    _check(_is_offset(generation), "generation", generation)
    _check(isinstance(leader, str), "leader", leader)
    members = []
    for name, member_id, host, assigned in fields["members"]:
        for text in (name, member_id, host):
            _check(isinstance(text, str), "member of an epoch", text)
        members.append(EpochMember(name, member_id, host, assignment_of(assigned)))
    return Epoch(generation, leader, tuple(members))


def assignment_value(
    assigned: Iterable[tuple[TopicPartition, KeyRanges]],
) -> list[list[Any]]:
    """Key hashes by partition, for JSON: ``[topic, partition, [[lo, hi], ...]]``; [] for all."""
    assigned = tuple(assigned)
    assert all(hashes for _, hashes in assigned)  # no hashes would read as all
    return [[*tp, [] if hashes.is_all else hashes.pairs] for tp, hashes in assigned]


def assignment_of(value: Any) -> tuple[tuple[TopicPartition, KeyRanges], ...]:
    """Key hashes by partition, from JSON.

    Raises:
        CommitLogError, TypeError, ValueError: It is something else.
    """
    assigned = []
    for topic, number, ranges in value:
        _check(_is_partition(topic, number), "partition", [topic, number])
        # All: by far the most of a group with many partitions.
        hashes = ALL_HASHES if ranges == [] else _hashes_of(ranges) or ALL_HASHES
        assigned.append((TopicPartition(topic, number), hashes))
    return tuple(assigned)


def _hashes_of(pairs: Any) -> KeyRanges:
    return KeyRanges.checked(HashRange(count_of(lo), count_of(hi, HASH_SPACE)) for lo, hi in pairs)


_VALUES: Final[dict[str, Callable[[Key, Mapping[str, Any]], Record]]] = {
    "claim": _claim,
    "lease": _lease,
    "block": _block,
    "stable": _stable,
    "reset": _reset,
    "member": _member,
    "epoch": _epoch,
}
_OF_GROUPS: Final = {"member", "epoch"}
"""Kinds of records that speak of no partition."""


# -- keys ----------------------------------------------------------------------------------------


def _no_detail(rest: list[Any]) -> tuple[Any, ...]:
    _check(not rest, "key", rest)
    return ()


def _member_id(rest: list[Any]) -> tuple[Any, ...]:
    _check(len(rest) == 1 and isinstance(rest[0], str), "member", rest)
    return (rest[0],)


def _author_and_number(rest: list[Any]) -> tuple[Any, ...]:
    fits = len(rest) == 2 and isinstance(rest[0], str) and _is_offset(rest[1])
    _check(fits, "author and number", rest)
    return tuple(rest)


def _author_hashes_and_stretch(rest: list[Any]) -> tuple[Any, ...]:
    try:
        author, (lo, hi), stretch = rest
        hashes = HashRange(lo, hi)
    except (ValueError, TypeError):
        raise CommitLogError(f"author, hashes and stretch of a block: found {rest!r}") from None
    _check(isinstance(author, str), "member", author)
    _check(type(lo) is int and type(hi) is int, "hashes", rest[0])
    _check(_is_offset(stretch) and stretch <= OFFSET_MAX // STRETCH, "stretch", stretch)
    return (author, hashes, stretch)


_DETAILS: Final[dict[str, Callable[[list[Any]], tuple[Any, ...]]]] = {
    "claim": _member_id,
    "lease": _author_and_number,
    "block": _author_hashes_and_stretch,
    "stable": _member_id,
    "reset": _author_and_number,
    "member": _member_id,
    "epoch": _no_detail,
}


def _is_offset(value: Any) -> bool:
    return type(value) is int and 0 <= value <= OFFSET_MAX


def _is_partition(topic: Any, number: Any) -> bool:
    return isinstance(topic, str) and type(number) is int and 0 <= number < 2**31


def _check(fits: bool, what: str, found: Any) -> None:
    if not fits:
        raise CommitLogError(f"{what} of an individual commit log's record: found {found!r:.100}")
