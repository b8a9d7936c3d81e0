"""The JSON of ``assign``, of offsets and of timestamps.

Guarantee: the values are those of the text: no name may occur twice (Spark takes the last), no
number is rounded, and what Kafka would refuse later is refused here.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from typing import Any, NoReturn, TypeVar

from kshare.core.hashing import HASH_SPACE, HashRange
from kshare.core.listing import join_names
from kshare.core.progress import TopicPartition
from kshare.options.frozen import FrozenMapping
from kshare.options.model import (
    EARLIEST,
    LATEST,
    Assign,
    Earliest,
    Latest,
    PerPartition,
    TimestampPerPartition,
)

__all__ = ["parse_assign", "parse_per_partition", "parse_timestamps", "partitions_fault"]

_PARTITION = re.compile(r"[0-9]+", re.ASCII)
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
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
                if not _is_integer(partition) or not 0 <= partition <= _INT_MAX:
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
        if not _PARTITION.fullmatch(name) or len(name) > 10 or int(name) > _INT_MAX:
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
            if not _is_integer(value) or not -2 <= value <= _LONG_MAX:
                raise ValueError(
                    f"{topic_partition}: {_show(value)} is not {what}; wanted an integer "
                    f"from 0 to {_LONG_MAX}, -1 (latest) or -2 (earliest)"
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
