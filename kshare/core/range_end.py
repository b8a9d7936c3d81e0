"""The ends of an open batch's ranges: values, records of their log, and which of them counts.

An open batch (:mod:`kshare.core.open_batch`) has no end when it is planned. Whoever reads one of
its ranges proposes where the range ended: it appends a record to a log, and reads the log back.
**Of the proposals for a range, the first one in the log counts.** All readers of a log see the same
order, so attempts, drivers and planners that know nothing of each other agree.

Guarantees: once a range has an end, it keeps it: later proposals and tombstones change nothing for
whoever reads the log from where the batch begins in it. No two appends have the same key, also not
those that repeat one whose answer was lost: compaction keeps the last record of a key, and the
first proposal must stay where it is. ``decode_key`` and ``decode_end`` read what ``encode_key`` and
``encode_end`` have written; whatever the bytes are, they answer or raise ValueError, within bounds.
Cost: a record of about 150 bytes a range and batch. What is done with one or two ends is linear in
the ranges of hashes of their parts, but for a sort.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from kshare.core.bounded_json import (
    BOUNDS,
    DAMAGE,
    PARTITION_MAX,
    JsonBounds,
    count_of,
    list_of,
    read_object,
    text_of,
)
from kshare.core.hashing import HASH_SPACE, HashRange, KeyRanges, in_both
from kshare.core.offsets import OFFSET_MAX
from kshare.core.progress import TopicPartition

__all__ = [
    "PARTS_MAX",
    "RANGES_MAX",
    "EndKey",
    "RangeEnd",
    "RangeEnds",
    "RangeId",
    "decode_end",
    "decode_key",
    "encode_end",
    "encode_key",
    "hashes_of",
]

VERSION: Final = 1
PARTS_MAX: Final = 1_000
"""Maximum number of parts of an end: keys that are parked amid a batch end by themselves."""
RANGES_MAX: Final = 1 << 16
"""Maximum number of ranges of a partition in an open batch."""

_TEXT_MAX: Final = 300
_KEY: Final = JsonBounds(size=4_000, depth=1, containers=1)
_VALUE: Final = replace(BOUNDS, depth=5)  # a range of hashes for each key of a query, at worst


class RangeId(NamedTuple):
    """A range of an open batch.

    Attributes:
        batch: The batch's name, which no other batch has.
        partition: The partition.
        number: The number of the range within the partition, from 0 on.
    """

    batch: str
    partition: TopicPartition
    number: int


class EndKey(NamedTuple):
    """The key of a proposal in the log.

    Attributes:
        range: The range.
        by: A name that no other append has.
    """

    range: RangeId
    by: str


@dataclass(frozen=True, slots=True)
class RangeEnd:
    """The end of the reading of a range: an offset for each key hash, half-open.

    Args:
        parts: Key hashes, and below which offset they are read; disjoint, in any order.

    Attributes:
        parts: The same, ascending by offset; one part for each offset. Equal ends compare equal.

    Raises:
        ValueError: There is no part, two overlap, there are too many, or an offset is none.
    """

    parts: tuple[tuple[KeyRanges, int], ...]

    def __post_init__(self) -> None:
        hashes = [part for ranges, _ in self.parts for part in ranges]
        if not hashes or sum(part.width for part in hashes) != KeyRanges(hashes).width:
            raise ValueError(f"wanted key hashes, each once; found {len(hashes)} ranges of them")
        if any(not 0 <= offset <= OFFSET_MAX for _, offset in self.parts):
            raise ValueError(f"wanted offsets from 0 to {OFFSET_MAX}")
        by_offset: defaultdict[int, list[HashRange]] = defaultdict(list)
        for ranges, offset in self.parts:
            by_offset[offset] += ranges
        if len(by_offset) > PARTS_MAX:
            raise ValueError(f"found {len(by_offset)} parts; wanted at most {PARTS_MAX}")
        canonical = tuple((KeyRanges(by_offset[offset]), offset) for offset in sorted(by_offset))
        object.__setattr__(self, "parts", canonical)

    @classmethod
    def at(cls, hashes: KeyRanges, offset: int) -> "RangeEnd":
        """All hashes of a range end at one offset."""
        return cls(((hashes, offset),))

    @property
    def hashes(self) -> KeyRanges:
        """All its key hashes."""
        return KeyRanges(part for ranges, _ in self.parts for part in ranges)

    @property
    def by_hash(self) -> list[tuple[HashRange, int]]:
        """Its key hashes, ascending, and below which offset each is read."""
        pieces = [(part, offset) for ranges, offset in self.parts for part in ranges]
        pieces.sort(key=_first)
        return pieces

    def raised(self, offset: int, *, but: KeyRanges) -> "RangeEnd":
        """The end when all below an offset is read, of all key hashes but some."""
        held = [(ranges & but, end) for ranges, end in self.parts]
        moved = [(ranges - but, max(end, offset)) for ranges, end in self.parts]
        return RangeEnd(tuple(part for part in (*held, *moved) if part[0]))

    def cut(self, other: "RangeEnd") -> "RangeEnd":
        """The lower one of two ends of a range, for each key hash."""
        lower = [(part, min(one, two)) for part, one, two in in_both(self.by_hash, other.by_hash)]
        return RangeEnd(tuple((KeyRanges((part,)), offset) for part, offset in lower))

    def is_within(self, other: "RangeEnd") -> bool:
        """True if no key hash is read further than by another end of the range."""
        return all(one <= two for _, one, two in in_both(self.by_hash, other.by_hash))


@dataclass(frozen=True, slots=True)
class RangeEnds:
    """The ends of a batch's ranges, as far as their log is read.

    Attributes:
        wanted: The ranges, and the key hashes of each.
        ends: Of those that have one: the first proposal.
    """

    wanted: Mapping[RangeId, KeyRanges]
    ends: Mapping[RangeId, RangeEnd] = field(default_factory=dict)

    def read(self, rows: Iterable[tuple[EndKey, RangeEnd | None]]) -> "RangeEnds":
        """The ends when more of the log is read.

        Args:
            rows: What comes next in the log, in its order; other batches have theirs there, too.
                None for a tombstone: a record is deleted when nobody will ask for it, and whoever
                has read it keeps the end. An end of other hashes is none of this range, and does
                not count.
        """
        ends = dict(self.ends)
        for key, end in rows:
            if end is not None and end.hashes == self.wanted.get(key.range):
                ends.setdefault(key.range, end)
        return RangeEnds(self.wanted, ends)


# -- records -------------------------------------------------------------------------------------


def encode_key(key: EndKey) -> bytes:
    """Make the key of a proposal's record."""
    batch, (topic, partition), number = key.range
    return _bytes(
        {"batch": batch, "by": key.by, "partition": partition, "range": number, "topic": topic}
    )


def decode_key(data: bytes) -> EndKey:
    """Read the key of a record.

    Raises:
        ValueError: It is none.
    """
    try:
        fields = read_object(data, _KEY)
        batch, topic, by = (_name_of(fields[name]) for name in ("batch", "topic", "by"))
        partition = count_of(fields["partition"], PARTITION_MAX)
        number = count_of(fields["range"], RANGES_MAX - 1)
    except DAMAGE as error:
        raise ValueError(
            f"found {data[:100]!r}; wanted the key of a range's end: {error}"
        ) from None
    return EndKey(RangeId(batch, TopicPartition(topic, partition), number), by)


def encode_end(end: RangeEnd) -> bytes:
    """Make the value of a proposal's record."""
    return _bytes({"v": VERSION, "ends": [[hashes.pairs, at] for hashes, at in end.parts]})


def decode_end(data: bytes) -> RangeEnd:
    """Read the value of a record.

    Raises:
        ValueError: It is no end, or of a later version.
    """
    try:
        fields = read_object(data, _VALUE)
        if fields["v"] != VERSION:
            raise ValueError(f"version {fields['v']!r:.20}, and this one reads {VERSION}")
        return RangeEnd(tuple(map(_part_of, list_of(fields["ends"]))))
    except DAMAGE as error:
        raise ValueError(f"found {data[:100]!r}; wanted a range's end: {error}") from None


def _part_of(value: Any) -> tuple[KeyRanges, int]:
    ranges, offset = list_of(value)
    return hashes_of(ranges), count_of(offset, OFFSET_MAX)


def hashes_of(value: Any) -> KeyRanges:
    """Key hashes as :attr:`.KeyRanges.pairs` writes them; at least one.

    Raises:
        ValueError, TypeError: They are none.
    """
    pairs = [list_of(pair) for pair in list_of(value)]
    hashes = KeyRanges.checked(
        HashRange(count_of(lo, HASH_SPACE), count_of(hi, HASH_SPACE)) for lo, hi in pairs
    )
    if not hashes:
        raise ValueError("found no key hashes")
    return hashes


def _first(piece: tuple[HashRange, int]) -> int:
    return piece[0].lo


def _name_of(value: Any) -> str:
    text = text_of(value)
    if not 0 < len(text) <= _TEXT_MAX:
        raise ValueError(f"found a name of {len(text)} characters; wanted 1 to {_TEXT_MAX}")
    return text


def _bytes(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
