"""The begin and end of a query, and the partitions it reads: texts and JSON -> values.

Guarantee: the precedence of ``starting*`` and ``ending*`` options is that of
``KafkaSourceProvider.getKafkaOffsetRangeLimit`` of Apache Spark 4.2: a timestamp for all
partitions, then timestamps per partition, then offsets. What is outranked is not looked at. Values
are those of the JSON: no name may occur twice (Spark takes the last), no number is rounded, and
what Kafka would refuse later is refused here.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from typing import Any, Literal, NoReturn, TypeVar

from kshare.core.hashing import HASH_SPACE, HashRange
from kshare.core.listing import join_names
from kshare.core.progress import TopicPartition
from kshare.options.frozen import FrozenMapping
from kshare.options.kinds import INT_MAX, LONG_MAX, integer
from kshare.options.model import (
    EARLIEST,
    FROM_GROUP,
    LATEST,
    Assign,
    AtTimestamp,
    Earliest,
    Latest,
    OffsetSpec,
    PerPartition,
    StartSpec,
    Subscribe,
    TimestampPerPartition,
    Topics,
)
from kshare.options.raw import RawOptions

__all__ = [
    "OffsetSpecParser",
    "parse_assign",
    "parse_per_partition",
    "parse_timestamps",
    "partitions_fault",
]

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


_PARTITION = re.compile(r"[0-9]+", re.ASCII)
_SHOWN = 5

_V = TypeVar("_V")


def parse_assign(text: str) -> Assign:
    """``{"orders": [0, 1]}``, or with key ranges ``{"orders": {"0": [[lo, hi]], "1": []}}``.

    Returns:
        The partitions; the ranges of each ascending, ``()`` being the whole partition.

    Raises:
        ValueError: The text is not such JSON, or ranges of a partition overlap.
    """
    example = '{"orders": [0, 1]} or {"orders": {"0": [[0, 4611686018427387904]], "1": []}}'
    partitions: dict[TopicPartition, tuple[HashRange, ...]] = {}
    for topic, listed in _object(text, example).items():
        if isinstance(listed, list):
            for partition in listed:
                if not _is_integer(partition) or not 0 <= partition <= INT_MAX:
                    raise ValueError(f"topic {topic}: {_show(partition)} is no partition")
                partitions[TopicPartition(topic, partition)] = ()
        elif isinstance(listed, _Object):
            for topic_partition, ranges in _partitions(topic, listed):
                partitions[topic_partition] = _ranges(
                    f"{topic}-{topic_partition.partition}", ranges
                )
        else:
            raise ValueError(f"topic {topic} must have a list or an object; write {example}")  # noqa: TRY004
    if not partitions:
        raise ValueError(f"names no partition; write {example}")
    return Assign(FrozenMapping(partitions))


def parse_per_partition(text: str) -> PerPartition:
    """``{"orders": {"0": 23, "1": -2}}``; -2 is earliest, -1 is latest.

    Raises:
        ValueError: The text is not such JSON.
    """
    words = '"earliest", "latest" or {"orders": {"0": 23, "1": -2}}'

    def offset(value: int) -> int | Earliest | Latest:
        return EARLIEST if value == -2 else LATEST if value == -1 else value

    return PerPartition(_numbers(text, words, "an offset", offset))


def parse_timestamps(text: str) -> FrozenMapping[TopicPartition, int]:
    """``{"orders": {"0": 1700000000000}}``: milliseconds since 1970 for each partition.

    Raises:
        ValueError: The text is not such JSON.
    """
    return _numbers(text, '{"orders": {"0": 1700000000000}}', "a timestamp", int)


def partitions_fault(
    spec: PerPartition | TimestampPerPartition, partitions: Collection[TopicPartition]
) -> str | None:
    """The fault of values per partition, given the partitions that are read; None if none."""
    given = spec.offsets if isinstance(spec, PerPartition) else spec.timestamps
    surplus, missing = set(given) - set(partitions), set(partitions) - set(given)
    wrong = []
    if surplus:
        wrong.append(f"lists {join_names(sorted(surplus), _SHOWN)}, not read")
    if missing:
        wrong.append(f"lacks {join_names(sorted(missing), _SHOWN)}")
    if not wrong:
        return None
    return f"{', and '.join(wrong)}; all partitions that are read must be listed and no others"


# -- JSON ---------------------------------------------------------------------------------------


class _Object(dict[str, Any]):
    """A JSON object whose names were checked to be different."""


def _object(text: str, example: str) -> _Object:
    try:
        value = json.loads(text, object_pairs_hook=_no_doubles, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        if not text.startswith(("{", "[")):  # a word, misspelt
            raise ValueError(f"is {_show(text)}; write {example}") from None
        raise ValueError(f"is not JSON ({error}); write {example}") from None
    except RecursionError:
        raise ValueError(f"is nested too deeply; write {example}") from None
    if not isinstance(value, _Object):
        raise ValueError(f"must be a JSON object; write {example}")  # noqa: TRY004
    return value


def _no_doubles(pairs: list[tuple[str, Any]]) -> _Object:
    object_ = _Object(pairs)
    if len(object_) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"has {json.dumps(double)} twice in one object")
    return object_


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"has {name}, which is no number of JSON")


def _partitions(topic: str, listed: _Object) -> Iterator[tuple[TopicPartition, Any]]:
    seen = set()
    for name, value in listed.items():
        if not _PARTITION.fullmatch(name) or len(name) > 10 or int(name) > INT_MAX:
            raise ValueError(f"topic {topic}: {_show(name)} is no partition")
        if int(name) in seen:
            raise ValueError(f"topic {topic} has partition {int(name)} twice")
        seen.add(int(name))
        yield TopicPartition(topic, int(name)), value


def _numbers(
    text: str, example: str, what: str, convert: Callable[[int], _V]
) -> FrozenMapping[TopicPartition, _V]:
    numbers = {}
    for topic, listed in _object(text, example).items():
        if not isinstance(listed, _Object):
            raise ValueError(f"topic {topic} must have an object; write {example}")  # noqa: TRY004
        for topic_partition, value in _partitions(topic, listed):
            if not _is_integer(value) or not -2 <= value <= LONG_MAX:
                raise ValueError(
                    f"{topic_partition}: {_show(value)} is not {what}; wanted an integer "
                    f"from 0 to {LONG_MAX}, -1 (latest) or -2 (earliest)"
                )
            numbers[topic_partition] = convert(value)
    return FrozenMapping(numbers)


def _ranges(where: str, listed: Any) -> tuple[HashRange, ...]:
    if not isinstance(listed, list):
        raise ValueError(f"{where} must have a list of key ranges, such as [[0, {HASH_SPACE}]]")  # noqa: TRY004
    ranges = []
    for pair in listed:
        if not (
            isinstance(pair, list)
            and len(pair) == 2
            and all(_is_integer(bound) for bound in pair)
            and 0 <= pair[0] < pair[1] <= HASH_SPACE
        ):
            raise ValueError(
                f"{where}: {_show(pair)} is no key range; wanted [lo, hi] with "
                f"0 <= lo < hi <= {HASH_SPACE}, hi not included"
            )
        ranges.append(HashRange(*pair))
    ranges.sort()
    for first, second in pairwise(ranges):
        if second.lo < first.hi:
            raise ValueError(f"{where}: key ranges {first} and {second} overlap")
    return tuple(ranges)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _show(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
