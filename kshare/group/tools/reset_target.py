"""Where a group shall start: targets as users write them, and the offsets that they mean."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from kshare.core.progress import TopicPartition
from kshare.errors import KshareError
from kshare.group.assignments import parse_partition
from kshare.kafka.cluster import Cluster

__all__ = ["ResetTo", "ShiftBy", "parse_target", "reset_offsets"]


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """A number of offsets after the stable offset; below 0: before it.

    What that puts outside of the log is its first offset, or its end.
    """

    offsets: int


ResetTo: TypeAlias = (
    Literal["earliest", "latest", "stable"] | datetime | ShiftBy | Mapping[TopicPartition, int]
)
"""A reset target: by name, at the first records from a time on (UTC if it names no time zone; the
end if all records are older), relative to the stable offsets, or at given offsets.
"""


def reset_offsets(
    to: ResetTo,
    stable: Mapping[TopicPartition, int],
    partitions: Collection[TopicPartition],
    cluster: Cluster,
) -> dict[TopicPartition, int]:
    """The offset at which each partition shall start.

    Args:
        to: Where a group shall start.
        stable: The group's stable offsets.
        partitions: What is reset, unless ``to`` names offsets. Those without a stable offset are
            left out if ``to`` is relative to it.
        cluster: Has the partitions.

    Raises:
        KshareError: An offset is outside of its partition's log.
        UnknownTopicError: A partition does not exist.
        KafkaError: The cluster did not answer, or refused.
    """
    if to == "earliest":
        return cluster.earliest(partitions)
    if to == "latest":
        return cluster.latest(partitions)
    if isinstance(to, datetime):
        return _since(to, partitions, cluster)
    if isinstance(to, Mapping):
        wanted = dict(to)
    else:
        by = to.offsets if isinstance(to, ShiftBy) else 0
        wanted = {tp: stable[tp] + by for tp in partitions if tp in stable}
    first, end = cluster.earliest(wanted), cluster.latest(wanted)
    if isinstance(to, ShiftBy):
        return {tp: min(max(offset, first[tp]), end[tp]) for tp, offset in wanted.items()}
    outside = [
        f"{tp}: offset {offset} is outside of the log, which is {first[tp]} to {end[tp]}"
        for tp, offset in sorted(wanted.items())
        if not first[tp] <= offset <= end[tp]
    ]
    if outside:
        raise KshareError("; ".join(outside))
    return wanted


def _since(
    moment: datetime, partitions: Collection[TopicPartition], cluster: Cluster
) -> dict[TopicPartition, int]:
    """The first offset of each partition that is not older than a moment; the end without one."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    milliseconds = int(moment.timestamp() * 1000)
    found = cluster.at_timestamps(dict.fromkeys(partitions, max(milliseconds, 0)))
    ends = cluster.latest([tp for tp, offset in found.items() if offset is None])
    return {tp: ends[tp] if offset is None else offset for tp, offset in found.items()}


def parse_target(to: Any, topic: str | None) -> ResetTo:
    """A reset target as users write it.

    Raises:
        ValueError: It is none, or there is a topic beside offsets.
    """
    if isinstance(to, datetime) or to in ("earliest", "latest", "stable"):
        return to  # type: ignore[no-any-return]
    if isinstance(to, ShiftBy):
        return ShiftBy(_offset(to.offsets, "ShiftBy"))
    if not isinstance(to, Mapping):
        raise ValueError(  # noqa: TRY004 - a wrong text is no other type
            f"not a reset target: {to!r}; wanted earliest, latest, stable, a datetime, ShiftBy, or "
            'offsets by partition such as {("orders", 0): 123}'
        )
    if topic is not None:
        raise ValueError(f"topic={topic!r} beside offsets by partition, which name topics: drop it")
    parsed = {parse_partition(each): offset for each, offset in to.items()}
    return {tp: _offset(offset, str(tp)) for tp, offset in parsed.items()}


def _offset(offset: object, of: str) -> int:
    if not isinstance(offset, int) or isinstance(offset, bool):
        raise ValueError(f"{of}: not an offset: {offset!r}; wanted an int such as 123")  # noqa: TRY004
    return offset
