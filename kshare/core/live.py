"""Where the tasks of an open batch are while it runs: a hint, for those who look.

Nothing is decided by it: what is read for sure is said by the log of ends alone
(:mod:`kshare.core.open_batch`). A planner hears of its tasks, and shows what it has heard in that
log, under one key for each of its runs, so that compaction keeps the last word; and on its own host
in a file (:mod:`kshare.monitor.live_file`)::

    {"v": 1, "batch": "3f9c-12", "at": 1700000000000,
     "ranges": {"topic": {"0": [[number, lo, hi, position, end], ...]}},
     "latency": [[bucket, count], ...], "recent": [[bucket, count], ...]}

Guarantees: ``decode_live(encode_live(x)) == x``; whatever the bytes are, ``decode_live`` answers or
raises ValueError, within bounds.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, NamedTuple

from kshare.core.bounded_json import (
    DAMAGE,
    PARTITION_MAX,
    JsonBounds,
    count_of,
    list_of,
    read_object,
    text_of,
)
from kshare.core.hashing import HASH_SPACE, HashRange
from kshare.core.listing import duration
from kshare.core.offsets import OFFSET_MAX
from kshare.core.progress import TopicPartition
from kshare.core.range_end import RANGES_MAX

__all__ = [
    "BOUNDS",
    "FRESH_SECONDS",
    "NO_LATENCY",
    "QUANTILES",
    "RECENT_SECONDS",
    "Latency",
    "Live",
    "LiveRange",
    "decode_live",
    "encode_live",
    "is_live_key",
    "latency_text",
    "live_key",
    "quantile_name",
    "run_of",
]

BOUNDS: Final = tuple(0.001 * 1.25**number for number in range(60))
"""The upper bounds of latencies' buckets, in seconds: 1 ms to 9 min, each a quarter above the last.

One more bucket has what is above all of them.
"""
QUANTILES: Final = (0.5, 0.9, 0.99)
"""The shares of records whose latency is shown."""
RECENT_SECONDS: Final = 10.0
"""The time of ``recent``."""
FRESH_SECONDS: Final = 30.0
"""What was said longer ago is not live: its tasks have ended, or nobody hears of them."""

_VERSION: Final = 1
_TIME_MAX: Final = 1 << 53
_KEY: Final = b'{"live":'
_NAME_MAX: Final = 100
_JSON: Final = JsonBounds(size=1 << 20, depth=6, containers=1 << 16)


@dataclass(frozen=True, slots=True)
class Latency:
    """How long after their timestamps records were handed over: counts of buckets.

    Attributes:
        counts: The number of records of each bucket of :data:`BOUNDS`, and of the last one.

    Raises:
        ValueError: There are not as many counts as buckets, or one is negative.
    """

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.counts) != len(BOUNDS) + 1 or min(self.counts) < 0:
            raise ValueError(f"wanted {len(BOUNDS) + 1} counts; found {len(self.counts)}")

    @property
    def records(self) -> int:
        """The number of records."""
        return sum(self.counts)

    def since(self, earlier: "Latency") -> "Latency":
        """Without what was counted earlier; all of it if counting has begun anew since."""
        left = [now - then for now, then in zip(self.counts, earlier.counts, strict=True)]
        return self if min(left) < 0 else Latency(tuple(left))

    def quantile(self, share: float) -> float | None:
        """The seconds within which a share of the records was handed over, rounded up to a bound.

        None without records; twice the last bound if it is above all bounds.
        """
        if not self.records:
            return None
        number = bisect_left([*accumulate(self.counts)], share * self.records)
        return BOUNDS[number] if number < len(BOUNDS) else 2 * BOUNDS[-1]

    @classmethod
    def total(cls, latencies: Iterable["Latency"]) -> "Latency":
        """All of some together."""
        counts = [each.counts for each in latencies]
        return cls(tuple(map(sum, zip(*counts, strict=True)))) if counts else NO_LATENCY


NO_LATENCY: Final = Latency((0,) * (len(BOUNDS) + 1))
"""That of no record."""


def quantile_name(share: float) -> str:
    """What a share of records is called: ``p99``."""
    return f"p{100 * share:g}"


def latency_text(recent: Latency, batch: Latency) -> str:
    """Both for people, as what follows other facts; empty without records."""
    times = [
        f"in {of} {_times_text(latency)}"
        for of, latency in ((f"the last {RECENT_SECONDS:.0f} s", recent), ("the batch", batch))
        if latency.records
    ]
    return "".join(f", {each}" for each in ["latency " + times[0], *times[1:]]) if times else ""


def _times_text(latency: Latency) -> str:
    found = ((share, latency.quantile(share) or 0.0) for share in QUANTILES)
    return " ".join(f"{quantile_name(share)} {_time_text(seconds)}" for share, seconds in found)


def _time_text(seconds: float) -> str:
    if seconds > BOUNDS[-1]:
        return f"over {duration(BOUNDS[-1])}"
    return duration(seconds) if seconds >= 1 else f"{1000 * seconds:.3g} ms"


class LiveRange(NamedTuple):
    """Where a range of an open batch is.

    Attributes:
        partition: The partition.
        number: The number of the range within the partition, in the batch's dict.
        hashes: From the first of its key hashes to the last.
        position: All its records below this offset were handed over, but those of keys that were
            parked since the batch began.
        end: Where the partition's log ended; 0 if that is not known.
    """

    partition: TopicPartition
    number: int
    hashes: HashRange
    position: int
    end: int


@dataclass(frozen=True, slots=True)
class Live:
    """Where the ranges of an open batch are.

    Attributes:
        batch: The name of the batch.
        at_ms: When that was, in milliseconds since 1970, by the planner's clock.
        ranges: Those whose tasks have said it.
        latency: That of the batch.
        recent: That of the last :data:`RECENT_SECONDS`.
    """

    batch: str
    at_ms: int
    ranges: tuple[LiveRange, ...]
    latency: Latency = NO_LATENCY
    recent: Latency = NO_LATENCY

    def is_fresh(self, now: float) -> bool:
        """Whether it still holds, about.

        Args:
            now: Seconds since 1970. Clocks of hosts differ, so what is from later holds, too.
        """
        return now - self.at_ms / 1000 <= FRESH_SECONDS

    def says_as(self, before: "Live") -> bool:
        """Whether it need not be said, since another one says the same and will hold for long."""
        is_new = self.at_ms - before.at_ms > 1000 * FRESH_SECONDS / 3
        return not is_new and replace(self, at_ms=before.at_ms) == before


def run_of(batch: str) -> str:
    """The run of a planner that has named a batch."""
    return batch.rpartition("-")[0]


def live_key(run: str) -> bytes:
    """The key of a run's record in the log of ends."""
    return _KEY + json.dumps(run).encode() + b"}"


def is_live_key(key: bytes) -> bool:
    """Whether a record of the log of ends is no end, but such a hint."""
    return key.startswith(_KEY)


def encode_live(live: Live) -> bytes:
    """Make the record's value."""
    ranges: dict[str, dict[str, list[list[int]]]] = {}
    for (topic, partition), number, hashes, position, end in live.ranges:
        of_topic = ranges.setdefault(topic, {})
        entry = [number, hashes.lo, hashes.hi, position, end]
        of_topic.setdefault(str(partition), []).append(entry)
    fields = {
        "v": _VERSION,
        "batch": live.batch,
        "at": live.at_ms,
        "ranges": ranges,
        "latency": _sparse(live.latency),
        "recent": _sparse(live.recent),
    }
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def decode_live(data: bytes) -> Live:
    """Read the record's value.

    Raises:
        ValueError: It is none, or of a later version.
    """
    try:
        fields = read_object(data, _JSON)
        if fields["v"] != _VERSION:
            raise ValueError(f"version {fields['v']!r:.20}, and this one reads {_VERSION}")
        batch = text_of(fields["batch"])
        if len(batch) > _NAME_MAX:
            raise ValueError(f"a name of {len(batch)} characters")
        ranges = tuple(
            _range_of(tp, entry)
            for topic, partitions in fields["ranges"].items()
            for partition, entries in partitions.items()
            for tp in [TopicPartition(topic, count_of(int(partition), PARTITION_MAX))]
            for entry in list_of(entries)
        )
        at_ms = count_of(fields["at"], _TIME_MAX)
        return Live(batch, at_ms, ranges, _dense(fields["latency"]), _dense(fields["recent"]))
    except (*DAMAGE, AttributeError, IndexError) as error:
        raise ValueError(f"found {data[:100]!r}; wanted positions of a batch: {error}") from None


def _range_of(partition: TopicPartition, value: Any) -> LiveRange:
    number, lo, hi, position, end = list_of(value)
    hashes = HashRange(count_of(lo, HASH_SPACE), count_of(hi, HASH_SPACE))
    return LiveRange(
        partition,
        count_of(number, RANGES_MAX - 1),
        hashes,
        count_of(position, OFFSET_MAX),
        count_of(end, OFFSET_MAX),
    )


def _sparse(latency: Latency) -> list[list[int]]:
    return [[bucket, count] for bucket, count in enumerate(latency.counts) if count]


def _dense(value: Any) -> Latency:
    counts = [0] * (len(BOUNDS) + 1)
    for pair in list_of(value):
        bucket, count = list_of(pair)
        counts[count_of(bucket, len(BOUNDS))] = count_of(count, OFFSET_MAX)
    return Latency(tuple(counts))
