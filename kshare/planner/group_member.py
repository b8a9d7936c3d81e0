"""A query beside the members of a key-shared consumer group: where it starts, what it publishes.

Guarantees: a query that starts from its group reads what the group has not processed, and nothing
else. A query that publishes its progress never says of a record that it is processed because it
started behind it.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Protocol, TypeAlias

from kshare.core.progress import Progress, TopicPartition
from kshare.errors import OptionsError
from kshare.options import FromGroup, PerPartition, SourceOptions
from kshare.options.frozen import FrozenMapping
from kshare.planner.key_selection import KeySelection
from kshare.planner.offset_options import View, resolve

__all__ = ["GroupView", "QueryInGroup", "check_start", "start_progress"]


class GroupView(Protocol):
    """A consumer group's progress, seen from outside."""

    def committed(
        self, partitions: Collection[TopicPartition], /
    ) -> Mapping[TopicPartition, Progress]:
        """The group's progress in some partitions; empty without commits."""


class QueryInGroup(GroupView, Protocol):
    """A query as a member of its group: see :class:`kshare.group.query_member.QueryMember`."""

    def join(self, partitions: Collection[TopicPartition], /) -> Mapping[TopicPartition, Progress]:
        """Take over what the query reads of some partitions: what the group has processed."""

    def commit(self, processed: Mapping[TopicPartition, Progress], /) -> None:
        """Publish what the query has processed; does not wait."""

    def flush(self) -> None:
        """Wait a moment for what was given to :meth:`commit`."""

    def close(self) -> None:
        """Leave the group."""


Ask: TypeAlias = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, Progress]]


def start_progress(
    options: SourceOptions,
    keys: KeySelection,
    partitions: Collection[TopicPartition],
    view: View,
    ask: Ask | None = None,
) -> dict[TopicPartition, Progress]:
    """The progress with which a new query starts.

    Args:
        options: The query's options.
        keys: Which key hashes it reads.
        partitions: The partitions that are read.
        view: The cluster.
        ask: Asks the group what it has processed, with ``startingOffsets=group``.

    Raises:
        OptionsError, DataLossError, KafkaError: As for :func:`resolve`.
    """
    spec = options.starting
    if not isinstance(spec, FromGroup):
        starts = resolve(options, "startingOffsets", spec, partitions, view)
        return {tp: Progress.at(offset) for tp, offset in starts.items()}
    assert ask is not None
    known = ask(partitions)
    started = {tp: keys.own(tp, known[tp]) for tp in partitions if tp in known}
    level = {tp: reached.stable for tp, reached in started.items() if reached.is_level}
    listed = PerPartition(FrozenMapping(level))
    offsets = resolve(options, "startingOffsets", listed, level, view)
    offsets |= view.earliest([tp for tp in partitions if tp not in known])
    return started | {tp: Progress.at(offset) for tp, offset in offsets.items()}


def check_start(
    group: GroupView,
    name: str | None,
    started: Mapping[TopicPartition, int],
    keys: KeySelection,
    view: View,
) -> None:
    """Refuse a start behind records that the group has not processed.

    Args:
        group: The group.
        name: Its id.
        started: Where partitions start.
        keys: Which key hashes the query reads.
        view: The cluster.

    Raises:
        OptionsError: There are such records, and the query would publish that they are processed.
    """
    known = group.committed(list(started))
    earliest = view.earliest(list(known))
    faults = [
        f"startingOffsets: {tp} would start at offset {started[tp]}, but group {name} has not "
        f"processed offset {pending[0].offsets.start}, and commitOffsets=individual would say that "
        "it has; set startingOffsets=group, or move the group with kshare offsets reset"
        for tp, reached in sorted(known.items())
        if (pending := reached.advance(earliest[tp]).pending_of(started[tp], keys.allowed(tp)))
    ]
    if faults:
        raise OptionsError(faults)
