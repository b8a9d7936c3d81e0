"""The offset dict that Spark writes into the checkpoint, and back.

Guarantees: ``decode(encode(x)) == x``, also through JSON text, and equal values have equal text.
Whatever the dict, the outcome is a value or a CheckpointError that names the field. Of a text, a
topic, a partition or a field that is there twice is such an error, too.
Cost: linear in the gaps; 2 integers a gap, in base64 about 2.7 bytes while gaps are short.

A partition whose key hashes all stand at one offset is written as Spark's kafka source writes it,
``{"topic": {"0": 123}}``. What is more than that is under one extra key::

    {"topic": {"0": 100},                                the stable offset
     "@kshare": {"v": 1,
       "ic": {"topic": {"0": [{"h": [lo, hi], "o": "AAoFBQ=="}]}},
       "limits": {"topic": {"0": [{"h": [[lo, hi], ...], "e": 200, "n": 50}]}},
       "committed": true,
       "start": {"topic": {"0": 90}}}}

``schemas``: the reader schemas of typed rows, by column: ``{"value": "avro id:7"}``. A dict with
these has version 2: an older kshare would deliver bytes where the query wants columns.
``open``: the batch has no end yet (:mod:`kshare.core.open_entry`). A dict with it has version 3: an
older kshare would take where its partitions begin for where they end.
``ic``: individual commits, a stripe for each ``h``; ``o`` holds the bounds of its offsets, each as
the difference to the one before (the first one's to the stable offset), as LEB128 in base64.
``limits``: see :class:`RangeLimit`. ``committed``, ``start``: see :class:`BatchOffsets`. What is
empty or false is left out.
A later version may say more: then ``v`` is greater, and this code refuses to guess.
"""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, TypeVar

from kshare.core.bounded_json import JsonBounds, read_json, read_without
from kshare.core.checkpoint_fields import (
    EXTRA_KEY,
    decode_base64,
    decode_fields,
    decode_integer,
    decode_list,
    decode_nested,
    decode_offset,
    decode_range,
    expect,
    fault,
    refuse,
)
from kshare.core.hashing import HashRange, KeyRanges
from kshare.core.offsets import Bounds, pack, unpack
from kshare.core.open_entry import OpenBatch, decode_open, encode_open
from kshare.core.progress import Progress, Stripe, TopicPartition
from kshare.errors import CheckpointError, CheckpointVersionError

__all__ = [
    "EXTRA_KEY",
    "OPEN_VERSION",
    "TYPED_VERSION",
    "VERSION",
    "BatchOffsets",
    "RangeLimit",
    "by_topic",
    "decode",
    "decode_stable",
    "encode",
]

VERSION: Final = 1
"""The version of what is under :data:`EXTRA_KEY`."""
TYPED_VERSION: Final = 2
"""The version where reader schemas are under it, too."""
OPEN_VERSION: Final = 3
"""The version where an open batch is under it, too."""

# A dict that no planner writes is refused before it costs memory.
_TEXT_MAX: Final = 256 << 20
_BOUNDS: Final = JsonBounds(size=_TEXT_MAX, depth=16, containers=1 << 22)
_PARTS: Final = {"v", "ic", "limits", "committed", "start"}
_ADDED: Final = {VERSION: set[str](), TYPED_VERSION: {"schemas"}, OPEN_VERSION: {"schemas", "open"}}
_SCHEMA_MAX: Final = 1_000

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class RangeLimit:
    """The part of a batch with record limits that one task reads.

    Attributes:
        hashes: The key hashes; at least one.
        end: Only offsets below this one are read.
        records: Maximum number of records, the first ones that are pending; at least 1.

    Raises:
        ValueError: There are no hashes, ``end`` is negative, or ``records`` is below 1.
    """

    hashes: KeyRanges
    end: int
    records: int

    def __post_init__(self) -> None:
        if not self.hashes or self.end < 0 or self.records < 1:
            raise ValueError(
                f"wanted hashes, end >= 0 and records >= 1, found {len(self.hashes)} hash ranges, "
                f"end {self.end}, records {self.records}"
            )


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """The content of one offset dict.

    Attributes:
        progress: How far each partition is: where its batch begins if it has limits or is open,
            otherwise where its batch ends.
        started: Where partitions start that have no entry in the dict before this one: all of them
            in batch 0, later those that are new.
        limits: What the batch reads of partitions with record limits, ascending by the first hash.
            No hash is in two limits of one partition; a partition without a limit has no entry.
        read_committed: Whether the records of the limits were counted with ``read_committed``. A
            query that is started again may have another level, and would count other records.
        schemas: The reader schema of each column that is typed, as a short text.
        open: What the batch reads if it has no end yet; it has no limits then. None if it has one.
    """

    progress: Mapping[TopicPartition, Progress]
    started: Mapping[TopicPartition, int] = field(default_factory=dict)
    limits: Mapping[TopicPartition, tuple[RangeLimit, ...]] = field(default_factory=dict)
    read_committed: bool = False
    schemas: Mapping[str, str] = field(default_factory=dict)
    open: OpenBatch | None = None


def encode(offsets: BatchOffsets) -> dict[str, Any]:
    """Make the offset dict, ready for ``json.dumps``.

    Returns:
        Topics sorted by name, partitions by number. Just ``{"topic": {"0": 123}}`` if every
        partition is level, none has just started, none has limits, and the batch has an end.
    """
    encoded: dict[str, Any] = by_topic(
        {tp: reached.stable for tp, reached in offsets.progress.items()}
    )
    uneven = {
        tp: _encode_stripes(reached)
        for tp, reached in offsets.progress.items()
        if not reached.is_level
    }
    limits = {
        tp: [_encode_limit(limit) for limit in limits] for tp, limits in offsets.limits.items()
    }
    parts = {
        "ic": by_topic(uneven),
        "limits": by_topic(limits),
        "committed": offsets.read_committed,
        "start": by_topic(offsets.started),
        "schemas": dict(sorted(offsets.schemas.items())),
        "open": None if offsets.open is None else encode_open(offsets.open),
    }
    extra = {name: part for name, part in parts.items() if part}
    if extra:
        encoded[EXTRA_KEY] = {"v": _version_of(offsets), **extra}
    return encoded


def _version_of(offsets: BatchOffsets) -> int:
    """The lowest version that says all of it."""
    if offsets.open is not None:
        return OPEN_VERSION
    return TYPED_VERSION if offsets.schemas else VERSION


def decode(value: Mapping[str, Any] | str) -> BatchOffsets:
    """Read an offset dict, of Spark's kafka source or of this one.

    Args:
        value: The dict, or its JSON text.

    Raises:
        CheckpointVersionError: A later kshare wrote it.
        CheckpointError: It has another shape; the text names the field.
    """
    parsed = _parsed(value) if isinstance(value, str) else value
    expect(isinstance(parsed, Mapping), "", "an object with topics", parsed)
    extra = _checked_extra(parsed[EXTRA_KEY]) if EXTRA_KEY in parsed else {}
    plain = {topic: part for topic, part in parsed.items() if topic != EXTRA_KEY}
    stable = decode_nested(plain, "", decode_offset)
    uneven = decode_nested(extra.get("ic", {}), f"{EXTRA_KEY}.ic", _decode_stripes)
    limits = decode_nested(extra.get("limits", {}), f"{EXTRA_KEY}.limits", _decode_limits)
    started = decode_nested(extra.get("start", {}), f"{EXTRA_KEY}.start", decode_offset)
    committed = extra.get("committed", False)
    expect(isinstance(committed, bool), f"{EXTRA_KEY}.committed", "true or false", committed)
    progress = {tp: Progress(offset) for tp, offset in stable.items()}
    for tp, layers in uneven.items():
        _expect_known(tp, stable, "ic")
        progress[tp] = _progress(tp, stable[tp], layers)
    for tp in limits:
        _expect_known(tp, stable, "limits")
    batch = _decode_open(extra["open"]) if "open" in extra else None
    for tp in batch.ranges if batch else ():
        _expect_known(tp, stable, "open")
    expect(not (batch and limits), f"{EXTRA_KEY}.open", "no limits beside it", sorted(limits))
    return BatchOffsets(
        progress=progress,
        started=started,
        limits=limits,
        read_committed=committed,
        schemas=_decode_schemas(extra.get("schemas", {})),
        open=batch,
    )


def decode_stable(text: str) -> BatchOffsets:
    """The stable offsets alone, of a text whose :data:`EXTRA_KEY` cannot be read.

    Raises:
        CheckpointError: They cannot be read either.
    """
    try:
        plain = read_without(text, EXTRA_KEY, _BOUNDS)
    except ValueError as error:
        raise CheckpointError(fault("", f"wanted JSON: {error}")) from None
    return decode(plain)


# -- encoding --------------------------------------------------------------------------------------


def by_topic(entries: Mapping[TopicPartition, _Value]) -> dict[str, dict[str, _Value]]:
    """Entries by topic and partition, as JSON wants them: topics sorted by name."""
    topics: dict[str, dict[str, _Value]] = {}
    for (topic, partition), entry in sorted(entries.items(), key=lambda item: item[0]):
        topics.setdefault(topic, {})[str(partition)] = entry
    return topics


def _encode_stripes(reached: Progress) -> list[dict[str, Any]]:
    return [
        {
            "h": [stripe.hashes.lo, stripe.hashes.hi],
            "o": b64encode(pack(stripe.bounds, reached.stable)).decode(),
        }
        for stripe in reached.stripes
        if stripe.bounds
    ]


def _encode_limit(limit: RangeLimit) -> dict[str, Any]:
    return {"h": limit.hashes.pairs, "e": limit.end, "n": limit.records}


# -- decoding --------------------------------------------------------------------------------------


def _parsed(text: str) -> Any:
    if len(text) > _TEXT_MAX:
        refuse("", f"at most {_TEXT_MAX} characters", len(text))
    try:
        return read_json(text, _BOUNDS)
    except ValueError as error:
        where = EXTRA_KEY if _is_plain_sound(text) else ""
        raise CheckpointError(fault(where, f"wanted JSON, found {text[:100]!r}: {error}")) from None


def _is_plain_sound(text: str) -> bool:
    """True if all but what is under :data:`EXTRA_KEY` can be read."""
    try:
        read_without(text, EXTRA_KEY, _BOUNDS)
    except ValueError:
        return False
    return True


def _checked_extra(extra: Any) -> Mapping[str, Any]:
    expect(isinstance(extra, Mapping), EXTRA_KEY, "an object", extra)
    version = extra.get("v")
    if type(version) is int and version > OPEN_VERSION:
        raise CheckpointVersionError(
            f"this checkpoint was written by a later kshare: version {version} of {EXTRA_KEY!r}, "
            f"and this one reads up to version {OPEN_VERSION}. Install that version of kshare or "
            "a later one, or start the query with a new checkpoint.",
            version=version,
        )
    known = type(version) is int and version in _ADDED
    expect(known, f"{EXTRA_KEY}.v", f"{VERSION} to {OPEN_VERSION}", version)
    parts = _PARTS | _ADDED[version]
    unknown = sorted(map(str, extra.keys() - parts))
    expect(not unknown, EXTRA_KEY, f"only {', '.join(sorted(parts))}", unknown)
    return extra  # type: ignore[no-any-return]


def _decode_open(value: Any) -> OpenBatch:
    try:
        return decode_open(value)
    except ValueError as error:
        raise CheckpointError(fault(f"{EXTRA_KEY}.open", str(error))) from None


def _decode_schemas(value: Any) -> dict[str, str]:
    where = f"{EXTRA_KEY}.schemas"
    expect(isinstance(value, Mapping), where, "an object with columns", value)
    for column, schema in value.items():
        here = f"{where}.{column}"
        expect(column in {"key", "value"}, where, "key and value", column)
        fits = isinstance(schema, str) and 0 < len(schema) <= _SCHEMA_MAX
        expect(fits, here, "the name of a schema", schema)
    return dict(value)


def _decode_stripes(value: Any, where: str) -> list[tuple[HashRange, bytes]]:
    """Hash ranges, each with its packed offsets: unpacking takes the stable offset."""
    layers = []
    for i, entry in enumerate(decode_list(value, where, "a list of individual commits")):
        here = f"{where}[{i}]"
        hashes, packed = decode_fields(entry, here, ("h", "o"))
        layers.append((decode_range(hashes, f"{here}.h"), decode_base64(packed, f"{here}.o")))
    _expect_ascending([hashes for hashes, _ in layers], where)
    return layers


def _decode_limits(value: Any, where: str) -> tuple[RangeLimit, ...]:
    limits = []
    for i, entry in enumerate(decode_list(value, where, "a list of limits")):
        here = f"{where}[{i}]"
        hashes, end, records = decode_fields(entry, here, ("h", "e", "n"))
        parts = decode_list(hashes, f"{here}.h", "a list of [lo, hi]")
        try:
            limit = RangeLimit(
                KeyRanges.checked(
                    decode_range(part, f"{here}.h[{k}]") for k, part in enumerate(parts)
                ),
                decode_offset(end, f"{here}.e"),
                decode_integer(records, f"{here}.n", "a number of records, at least 1", 1),
            )
        except ValueError as error:
            raise CheckpointError(fault(f"{here}.h", str(error))) from error
        limits.append(limit)
    firsts = [limit.hashes[0] for limit in limits]
    ascend = all(one <= two for one, two in pairwise(firsts))
    expect(ascend, where, "limits ascending by their first hash", list(map(str, firsts)))
    _expect_ascending(sorted(part for limit in limits for part in limit.hashes), where)
    return tuple(limits)


def _progress(
    tp: TopicPartition, stable: int, layers: Iterable[tuple[HashRange, bytes]]
) -> Progress:
    unpacked = []
    for i, (hashes, packed) in enumerate(layers):
        where = f"{EXTRA_KEY}.ic.{tp.topic}.{tp.partition}[{i}].o"
        unpacked.append(Stripe(hashes, _unpack(packed, stable, where)))
    return Progress.of_stripes(stable, unpacked)


def _unpack(packed: bytes, stable: int, where: str) -> Bounds:
    try:
        return unpack(packed, stable)
    except ValueError as error:
        raise CheckpointError(fault(where, str(error))) from error


def _expect_ascending(hashes: Sequence[HashRange], where: str) -> None:
    for one, two in pairwise(hashes):
        if one.hi > two.lo:
            refuse(where, "ascending hash ranges that do not overlap", f"{one}, {two}")


def _expect_known(tp: TopicPartition, stable: Mapping[TopicPartition, int], part: str) -> None:
    where = f"{EXTRA_KEY}.{part}.{tp.topic}.{tp.partition}"
    expect(tp in stable, where, f"the stable offset of {tp} beside it", None)
