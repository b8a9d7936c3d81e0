"""Partitions and key ranges as users write them: tuples, or objects of confluent-kafka."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import index
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, OFFSET_STORED

from kshare.arrow_values import int64_numbers
from kshare.core.hashing import ALL_HASHES, HashRange, KeyRanges
from kshare.core.offsets import OFFSET_MAX
from kshare.core.progress import TopicPartition
from kshare.core.showing import shown
from kshare.group.message import BatchMark, Message
from kshare.group.protocol.membership.subscription import Assigned
from kshare.options.kinds import topic_fault

__all__ = [
    "as_assigned",
    "check_whole",
    "offset_to_start",
    "offsets_to_commit",
    "parse_assignment",
    "parse_partition",
    "partition_and_offset",
    "rows_by_partition",
]

Offsets: TypeAlias = npt.NDArray[np.int64]

_PARTITIONS_MAX: Final = 1 << 31


def parse_assignment(
    partitions: Mapping[Any, Sequence[Any]] | Sequence[Any], *, individual: bool
) -> tuple[dict[TopicPartition, KeyRanges], dict[TopicPartition, int]]:
    """Parse what is to be assigned.

    Args:
        partitions: Key ranges by partition, or partitions.
        individual: Whether key ranges are allowed.

    Returns:
        The key hashes of each partition; and the offsets to start at, as :func:`offset_to_start`
        has them.

    Raises:
        ValueError: A range or partition is wrong, or two ranges overlap.
    """
    offsets: dict[TopicPartition, int] = {}
    assignment: dict[TopicPartition, KeyRanges] = {}
    ranges = partitions if isinstance(partitions, Mapping) else {}
    for entry in partitions:
        topic_partition, offset = partition_and_offset(entry)
        if topic_partition in assignment:
            raise ValueError(f"{topic_partition} is assigned twice")
        starts = offset_to_start(topic_partition, offset)
        if starts is not None:
            offsets[topic_partition] = starts
        wanted = ranges.get(entry, ())
        assignment[topic_partition] = _hash_ranges(topic_partition, wanted)
        if not (individual or assignment[topic_partition].is_all):
            raise ValueError(
                f"{topic_partition}: key ranges need allow.individual.commit=true; [] is all of it"
            )
    return assignment, offsets


def offset_to_start(topic_partition: TopicPartition, offset: Any) -> int | None:
    """An offset to start at; ``OFFSET_BEGINNING`` and ``OFFSET_END`` stay what they are.

    Returns:
        None for what is committed: no offset, ``OFFSET_STORED`` or ``OFFSET_INVALID``.

    Raises:
        TypeError, ValueError: It is no offset.
    """
    if offset is None:
        return None
    wanted = "0 or more, OFFSET_BEGINNING, OFFSET_END or OFFSET_STORED"
    special = (OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, OFFSET_INVALID)
    number = _offset(topic_partition, offset, "start at", wanted, special)
    return None if number in {OFFSET_STORED, OFFSET_INVALID} else number


def _offset(
    topic_partition: TopicPartition,
    given: Any,
    what: str,
    wanted: str = "0 or more",
    special: Collection[int] = (),
) -> int:
    """An offset as an ``int``: users have it from anywhere, such as numpy.

    Args:
        topic_partition: The partition.
        given: The offset as it was given.
        what: What it is for.
        wanted: What is taken.
        special: What is taken beside offsets.

    Raises:
        TypeError: It is no integer.
        ValueError: It is none that there can be.
    """
    fault = f"{topic_partition}: cannot {what} offset {shown(given)}: wanted {wanted}"
    number = _integer(given)
    if number is None:
        raise TypeError(f"{fault}, as an integer, not a {type(given).__name__}")
    if not 0 <= number <= OFFSET_MAX and number not in special:
        raise ValueError(fault)
    return number


def _integer(given: Any) -> int | None:
    """Any integer but a bool, which is a mistake; None for what is none."""
    try:
        return None if isinstance(given, bool) else index(given)
    except TypeError:
        return None


def check_whole(
    assignment: Mapping[TopicPartition, KeyRanges], offsets: Mapping[TopicPartition, int]
) -> None:
    """Check an assignment of partitions without key order.

    Raises:
        ValueError: There are key ranges in it, or offsets to start at.
    """
    for topic_partition, hashes in assignment.items():
        if not hashes.is_all:
            raise ValueError(
                f"{topic_partition}: with consumption.order=none, members share whole partitions; "
                "give [] for the whole"
            )
    for topic_partition, offset in offsets.items():
        raise ValueError(
            f"{topic_partition}: cannot start at offset {offset}: with consumption.order=none, the "
            "group goes on where its members are; kshare offsets reset --group G --to ... sets the "
            "offset"
        )


def parse_partition(partition: Any) -> TopicPartition:
    """Parse a partition: ``(topic, partition)``, or an object with these attributes.

    Raises:
        ValueError: It is none.
    """
    return partition_and_offset(partition)[0]


def partition_and_offset(partition: Any) -> tuple[TopicPartition, Any]:
    """Parse a partition, and return its attribute ``offset`` as it is; None if it has none.

    Raises:
        ValueError: It is no partition.
    """
    if isinstance(partition, tuple) and len(partition) == 2:
        topic, given = partition
        offset = None
    else:
        topic, given = getattr(partition, "topic", None), getattr(partition, "partition", None)
        offset = getattr(partition, "offset", None)
    number = _integer(given)
    if not isinstance(topic, str) or number is None or not 0 <= number < _PARTITIONS_MAX:
        raise ValueError(f"not a partition: {shown(partition)}; wanted for example ('orders', 0)")
    wrong = topic_fault(topic)
    if wrong is not None:
        raise ValueError("; ".join(wrong))
    return TopicPartition(topic, number), offset


def _hash_ranges(topic_partition: TopicPartition, wanted: Sequence[Any]) -> KeyRanges:
    try:
        ranges = sorted(
            part if isinstance(part, HashRange) else HashRange(*map(int, part)) for part in wanted
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{topic_partition}: {error}") from None
    for lower, upper in pairwise(ranges):
        if upper.lo < lower.hi:
            raise ValueError(f"{topic_partition}: key ranges {lower} and {upper} overlap")
    return KeyRanges(ranges) or ALL_HASHES


def as_assigned(assignment: Assigned) -> dict[TopicPartition, tuple[HashRange, ...]]:
    """An assignment as users see it: ``()`` is the whole partition."""
    assert all(assignment.values())  # no hashes would read as all
    return {tp: () if hashes.is_all else tuple(hashes) for tp, hashes in assignment.items()}


def offsets_to_commit(
    message: Message | None, offsets: Iterable[Any] | Mapping[Any, int] | None
) -> dict[TopicPartition, int]:
    """The offsets that are to be committed; empty for the positions.

    Raises:
        TypeError: An offset is no integer.
        ValueError: It is below 0, or there is none; or a partition is none.
    """
    if message is not None:
        return {message.topic_partition: message.offset() + 1}
    limits = {}
    if isinstance(offsets, Mapping):
        for partition, offset in offsets.items():
            topic_partition = parse_partition(partition)
            limits[topic_partition] = _offset(topic_partition, offset, "commit")
        return limits
    for partition in offsets or ():
        topic_partition, offset = partition_and_offset(partition)
        if offset is None or offset == OFFSET_INVALID:
            raise ValueError(f"no offset to commit in {shown(partition)}")
        if getattr(partition, "metadata", None):
            raise ValueError(
                f"{topic_partition}: commits hold no metadata of your own: there they say to which "
                "individual commits an offset belongs"
            )
        limits[topic_partition] = _offset(topic_partition, offset, "commit")
    return limits


def rows_by_partition(batch: Any) -> Iterator[tuple[TopicPartition, Offsets, frozenset[int]]]:
    """Divide the rows of a batch by partition.

    Args:
        batch: A record batch or a table, with columns ``topic`` and ``partition``, or with the mark
            of :meth:`.KeySharedConsumer.consume_batch`.

    Returns:
        Partitions, the offsets of their rows, and the chunks that these are of; none if that
        is not known.

    Raises:
        TypeError: It is no batch.
        ValueError: It is not said which records they are.
    """
    if not isinstance(batch, pa.RecordBatch | pa.Table):
        what = "None (no records came in time)" if batch is None else f"a {type(batch).__name__}"
        raise TypeError(f"acknowledge_batch: wanted a record batch or a table, not {what}")
    names, mark = batch.schema.names, BatchMark.of(batch)
    if "offset" not in names:
        raise ValueError(f"acknowledge_batch needs the column offset; there is {', '.join(names)}")
    offsets = int64_numbers(batch.column("offset"))
    if not {"topic", "partition"} <= set(names):
        if mark is None or isinstance(batch, pa.Table) or not mark.holds(offsets):
            raise ValueError(
                "acknowledge_batch needs the columns topic and partition, but for a batch that "
                f"consume_batch returned, or some rows of one; there is {', '.join(names)}"
            )
        yield mark.partition, offsets, mark.chunks
        return
    topics = batch.column("topic")
    if isinstance(topics, pa.ChunkedArray):
        topics = topics.combine_chunks()
    topics = topics.dictionary_encode()
    topic_numbers = int64_numbers(topics.indices.cast(pa.int64()))
    numbers = int64_numbers(batch.column("partition").cast(pa.int64()))
    for topic, number in np.unique(np.stack([topic_numbers, numbers]), axis=1).T.tolist():
        partition = TopicPartition(topics.dictionary[topic].as_py(), number)
        of_pair = offsets[(topic_numbers == topic) & (numbers == number)]
        is_marked = mark is not None and mark.partition == partition and mark.holds(of_pair)
        yield partition, of_pair, mark.chunks if mark and is_marked else frozenset()
