"""The begin and end of a query: ``starting*`` and ``ending*`` options -> an :data:`OffsetSpec`.

Guarantee: the precedence is that of ``KafkaSourceProvider.getKafkaOffsetRangeLimit`` of Apache
Spark 4.2: a timestamp for all partitions, then timestamps per partition, then offsets. What is
outranked is not looked at.
"""

from typing import Literal

from kshare.options.kinds import integer
from kshare.options.model import (
    EARLIEST,
    FROM_GROUP,
    LATEST,
    Assign,
    AtTimestamp,
    OffsetSpec,
    PerPartition,
    StartSpec,
    Subscribe,
    TimestampPerPartition,
    Topics,
)
from kshare.options.offset_json import parse_per_partition, parse_timestamps, partitions_fault
from kshare.options.raw import RawOptions

__all__ = ["OffsetSpecParser"]

_TIMESTAMP = integer(-2)
_OUTRANKED = "is ignored, because {} is given"


class OffsetSpecParser:
    """Parses where a query begins and ends.

    Args:
        raw: The options as given.
        streaming: Whether they are those of a streaming query.
    """

    def __init__(self, raw: RawOptions, *, streaming: bool) -> None:
        self._raw = raw
        self._faults = raw.faults
        self._streaming = streaming

    def starting(self) -> StartSpec | None:
        """The begin of the query; None with a fault."""
        otherwise = self._strategy()
        if self._starts_from_group():
            return FROM_GROUP
        spec = self._spec("starting", LATEST if self._streaming else EARLIEST, otherwise)
        if self._streaming or spec is None:
            return spec
        self._refuse(spec, "startingOffsets", LATEST, "latest")
        return spec

    def _starts_from_group(self) -> bool:
        """True if ``startingOffsets`` is ``group``, and nothing outranks it."""
        if any(name in self._raw for name in ("startingTimestamp", "startingOffsetsByTimestamp")):
            return False
        return self._raw.get("startingOffsets", "").strip().lower() == str(FROM_GROUP)

    def ending(self) -> OffsetSpec | None:
        """The end of a batch query; None with a fault. A streaming query has no end."""
        if self._streaming:
            for name in ("endingOffsets", "endingOffsetsByTimestamp"):
                if name in self._raw:
                    self._raw.fault(name, "is not valid in streaming queries")
            if "endingTimestamp" in self._raw:  # Spark's source looks at it in batch queries only
                self._faults.warn("endingTimestamp", "is ignored in streaming queries")
            return LATEST
        spec = self._spec("ending", LATEST, "latest")
        self._refuse(spec, "endingOffsets", EARLIEST, "earliest")
        return spec

    def check_batch(
        self, topics: Topics | None, starting: StartSpec | None, ending: OffsetSpec | None
    ) -> None:
        """Report what Spark refuses before or when it resolves the offsets of a batch query.

        Not for streaming: a restart from a checkpoint does not look at where a query starts.
        """
        for side, spec in (("starting", starting), ("ending", ending)):
            if isinstance(spec, PerPartition | TimestampPerPartition) and topics is not None:
                fault = _topics_fault(topics, spec)
                if fault is not None:
                    self._raw.fault(_name(side, spec), fault)
        if isinstance(starting, PerPartition) and isinstance(ending, PerPartition):
            starts, ends = dict(starting.offsets), dict(ending.offsets)
        elif isinstance(starting, TimestampPerPartition) and isinstance(
            ending, TimestampPerPartition
        ):
            starts, ends = dict(starting.timestamps), dict(ending.timestamps)
        else:
            return
        first, last = _name("starting", starting), _name("ending", ending)
        if starts.keys() != ends.keys():
            self._raw.fault(last, f"must list the same partitions as {first}, and does not")
        for tp, start in starts.items():
            end = ends.get(tp)
            # Negative timestamps are earliest and latest, which are not compared.
            if isinstance(start, int) and isinstance(end, int) and 0 <= end < start:
                self._raw.fault(
                    first,
                    f"starts {tp.topic}-{tp.partition} at {start}, after its end {end} in {last}",
                )

    def _spec(
        self, side: str, default: OffsetSpec, otherwise: Literal["error", "latest"]
    ) -> OffsetSpec | None:
        everywhere, each, offsets = (
            f"{side}Timestamp",
            f"{side}OffsetsByTimestamp",
            f"{side}Offsets",
        )
        named = [name for name in (everywhere, each, offsets) if name in self._raw]
        for name in named[1:]:
            self._faults.warn(name, _OUTRANKED.format(named[0]))
        if not named:
            return default
        if named[0] == everywhere:
            timestamp = self._faults.parse(everywhere, self._raw[everywhere], _TIMESTAMP)
            return None if timestamp is None else AtTimestamp(timestamp, otherwise)
        value = self._raw[named[0]].strip()
        words: dict[str, OffsetSpec] = {"earliest": EARLIEST, "latest": LATEST}
        try:
            if named[0] == each:
                return TimestampPerPartition(parse_timestamps(value), otherwise)
            return words.get(value.lower()) or parse_per_partition(value)
        except ValueError as error:
            self._raw.fault(named[0], str(error))
            return None

    def _refuse(self, spec: OffsetSpec | None, name: str, wrong: OffsetSpec, word: str) -> None:
        """A batch query does not begin at the end of a log, nor end at its beginning."""
        if spec == wrong:
            self._raw.fault(name, f"can't be {word} for batch queries")
        for topic, partition in _holding(spec, wrong):
            self._raw.fault(name, f"for {topic}-{partition} can't be {word} for batch queries")

    def _strategy(self) -> Literal["error", "latest"]:
        strategy = self._raw.value("startingOffsetsByTimestampStrategy")
        return "latest" if strategy == "latest" else "error"


def _name(side: str, spec: PerPartition | TimestampPerPartition) -> str:
    return f"{side}Offsets" if isinstance(spec, PerPartition) else f"{side}OffsetsByTimestamp"


def _holding(spec: OffsetSpec | None, wanted: OffsetSpec) -> list[tuple[str, int]]:
    if not isinstance(spec, PerPartition):
        return []
    return [tp for tp, offset in spec.offsets.items() if offset == wanted]


def _topics_fault(topics: Topics, spec: PerPartition | TimestampPerPartition) -> str | None:
    """The fault of values per partition that shows without asking Kafka."""
    if isinstance(topics, Assign):
        return partitions_fault(spec, topics.partitions)
    by_partition = spec.offsets if isinstance(spec, PerPartition) else spec.timestamps
    listed = {topic for topic, _ in by_partition}
    if isinstance(topics, Subscribe):
        surplus, missing = listed - set(topics.topics), set(topics.topics) - listed
    else:
        surplus, missing = {topic for topic in listed if not topics.matches(topic)}, set()
    wrong = [f"lists topic {topic}, which is not read" for topic in sorted(surplus)]
    wrong += [f"lacks topic {topic}" for topic in sorted(missing)]
    if not wrong:
        return None
    return f"{', and '.join(wrong)}; all partitions that are read must be listed and no others"
