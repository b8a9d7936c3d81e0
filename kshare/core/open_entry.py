"""An open batch as its dict says it: a micro-batch that reads for a while and has no end yet.

What such a batch is, and how its ends are agreed on: :mod:`kshare.core.open_batch`. Here are the
values, and the entry ``open`` of the offset dict (:mod:`kshare.core.checkpoint`)::

    {"name": "3f9c-12", "ms": 60000,
     "log": ["__kshare_range_ends", 5, 1234, "4f2MKlUTTBmJHhvEqUjM5A"],
     "ranges": {"topic": {"0": [[[lo, hi], ...], ...]}}}

With ``maxTimeAhead``, ``"until"`` is besides, the time when reading ends at the latest. The log is
named, so a query whose options name another one finds the ends of its last batch. Its id tells it
from one that was made again under its name; there is none where brokers have none.

Guarantees: ``decode_open(encode_open(x)) == x``, also through JSON text; whatever the entry, the
outcome is a value or a ValueError, within bounds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kshare.core.bounded_json import (
    DAMAGE,
    PARTITION_MAX,
    count_of,
    is_partition_name,
    list_of,
    text_of,
)
from kshare.core.hashing import HashRange, KeyRanges
from kshare.core.offsets import OFFSET_MAX, Bounds
from kshare.core.progress import Slice, TopicPartition
from kshare.core.range_end import RANGES_MAX, RangeEnd, RangeId, hashes_of

__all__ = [
    "MILLISECONDS_MAX",
    "LogPosition",
    "OpenBatch",
    "OpenRange",
    "decode_open",
    "encode_open",
]

MILLISECONDS_MAX: Final = 24 * 3_600_000
"""Longest time that a batch reads."""
_NAME_MAX: Final = 100
_TOPIC_MAX: Final = 249
_FIELDS: Final = {"name", "ms", "log", "ranges"}
_UNTIL: Final = "until"


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The place in the log of ends behind which those of a batch are.

    Attributes:
        partition: Partition of the log's topic.
        offset: The end of that partition when the batch was planned.
        topic_id: The id of the topic; None if it is not known.
    """

    partition: int
    offset: int
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """The part of an open batch's dict beside the begin of its partitions.

    Attributes:
        name: A name that no other batch has. A planner draws it; if two planners plan the same
            batch, it counts whose dict is in Spark's offset log.
        milliseconds: How long each task reads.
        topic: The topic of the log of ends.
        log: Where in it the ends are.
        ranges: The key hashes of each range, by partition; disjoint. What is in none is not read:
            parked keys, and what the query never reads.
        until_ms: When reading ends at the latest, milliseconds since 1970, also if the batch runs
            again later: what has no end then ends where it begins. None: only its length counts.
    """

    name: str
    milliseconds: int
    topic: str
    log: LogPosition
    ranges: Mapping[TopicPartition, tuple[KeyRanges, ...]]
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class OpenRange:
    """A range of an open batch: what one reader reads.

    Attributes:
        id: Which one it is.
        slice: What is pending of it, up to the highest offset there is.
    """

    id: RangeId
    slice: Slice

    @property
    def hashes(self) -> KeyRanges:
        """Its key hashes."""
        return KeyRanges(stripe.hashes for stripe in self.slice.stripes)

    @property
    def pending(self) -> list[tuple[HashRange, Bounds]]:
        """Its key hashes, ascending, and which offsets of each are pending."""
        return [(stripe.hashes, stripe.bounds) for stripe in self.slice.stripes]

    @property
    def begin(self) -> RangeEnd:
        """The end of a range of which nothing is read."""
        return RangeEnd.at(self.hashes, self.slice.offsets.start)


# -- the dict ------------------------------------------------------------------------------------


def encode_open(batch: OpenBatch) -> dict[str, Any]:
    """The entry ``open`` of a batch's dict, ready for ``json.dumps``."""
    ranges: dict[str, dict[str, Any]] = {}
    for (topic, partition), parts in sorted(batch.ranges.items()):
        ranges.setdefault(topic, {})[str(partition)] = [hashes.pairs for hashes in parts]
    log = [batch.topic, batch.log.partition, batch.log.offset]
    log += [] if batch.log.topic_id is None else [batch.log.topic_id]
    until = {} if batch.until_ms is None else {_UNTIL: batch.until_ms}
    return {"name": batch.name, "ms": batch.milliseconds, "log": log, "ranges": ranges, **until}


def decode_open(value: Any) -> OpenBatch:
    """Read that entry.

    Raises:
        ValueError: It is none; the text says what is wrong.
    """
    try:
        if set(value) - {_UNTIL} != _FIELDS:
            raise ValueError(f"wanted {', '.join(sorted(_FIELDS))}; found {sorted(value)!r:.100}")
        log_topic, partition, offset, *ids = list_of(value["log"])
        position = LogPosition(
            count_of(partition, PARTITION_MAX), count_of(offset, OFFSET_MAX), _id_of(ids)
        )
        ranges = {
            TopicPartition(text_of(topic), _number_of(number)): _ranges_of(parts)
            for topic, partitions in value["ranges"].items()
            for number, parts in partitions.items()
        }
        return OpenBatch(
            _name_of(value["name"], _NAME_MAX),
            count_of(value["ms"], MILLISECONDS_MAX),
            _name_of(log_topic, _TOPIC_MAX),
            position,
            ranges,
            count_of(value[_UNTIL], OFFSET_MAX) if _UNTIL in value else None,
        )
    except (*DAMAGE, AttributeError) as error:
        raise ValueError(f"{error}") from None


def _name_of(value: Any, longest: int) -> str:
    name = text_of(value)
    if not 0 < len(name) <= longest:
        raise ValueError(f"a name of {len(name)} characters; wanted 1 to {longest}")
    return name


def _id_of(ids: list[Any]) -> str | None:
    if len(ids) > 1:
        raise ValueError(f"wanted an id of the log's topic at most; found {ids!r:.100}")
    return _name_of(ids[0], _NAME_MAX) if ids else None


def _number_of(text: str) -> int:
    if not is_partition_name(text):
        raise ValueError(f"found {text!r:.20}; wanted a partition number")
    return int(text)


def _ranges_of(value: Any) -> tuple[KeyRanges, ...]:
    parts = tuple(map(hashes_of, list_of(value)))
    hashes = [part for ranges in parts for part in ranges]
    if not 0 < len(parts) <= RANGES_MAX:
        raise ValueError(f"found {len(parts)} ranges; wanted 1 to {RANGES_MAX}")
    if sum(part.width for part in hashes) != KeyRanges(hashes).width:
        raise ValueError("two ranges have the same hash")
    return parts
