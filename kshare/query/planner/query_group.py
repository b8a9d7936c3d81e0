"""A query and its consumer group: its start, and the progress that it reports.

Two ways to tell it, by ``commitOffsets``: stable offsets, as any consumer commits them
(``true``), or all that is processed, as a member of a key-shared group (``individual``).

Guarantees: a query that starts from its group reads what the group has not processed, and nothing
else. A query that publishes its progress never says of a record that it is processed because it
started behind it.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from typing import Protocol, TypeAlias

from kshare.core.batch import start_with_gaps
from kshare.core.checkpoint import BatchOffsets
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import OptionsError
from kshare.kafka.committer import Committer, committer
from kshare.options import FromGroup, PerPartition, SourceOptions
from kshare.options.frozen import FrozenMapping
from kshare.query.planner.cluster_view import ClusterView, View
from kshare.query.planner.key_selection import KeySelection
from kshare.query.planner.offset_options import resolve

__all__ = ["GroupView", "QueryGroup", "QueryMemberLike", "start_progress"]

Ask: TypeAlias = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, Progress]]


class GroupView(Protocol):
    """A consumer group's progress, seen from outside."""

    def committed(
        self, partitions: Collection[TopicPartition], /
    ) -> Mapping[TopicPartition, Progress]:
        """The group's progress in some partitions; empty without commits."""


class QueryMemberLike(GroupView, Protocol):
    """A query as a member of its group: see :class:`kshare.group.query_member.QueryMember`."""

    def join(self, partitions: Collection[TopicPartition], /) -> Mapping[TopicPartition, Progress]:
        """Take over what the query reads of some partitions: what the group has processed."""

    def commit(self, processed: Mapping[TopicPartition, Progress], /) -> None:
        """Begin to publish what the query has processed."""

    def flush(self) -> None:
        """Wait a moment for what was given to :meth:`commit`."""

    def close(self) -> None:
        """Leave the group."""


class QueryGroup:
    """A query's use of its consumer group; none, if the options say so.

    Args:
        options: The query's options.
        keys: The key hashes that the query reads.
        view: The cluster.
        member: The group, if the query starts from it or is a member of it.
        commits: Creates the committer of stable offsets; None if the options ask for none.
    """

    def __init__(
        self,
        options: SourceOptions,
        keys: KeySelection,
        view: ClusterView,
        member: QueryMemberLike | None,
        commits: Callable[[SourceOptions], Committer | None] = committer,
    ) -> None:
        self._options = options
        self._keys = keys
        self._view = view
        self._member = member
        self._commits = commits(options)
        self._start: BatchOffsets | None = None

    def start(self) -> BatchOffsets:
        """The start of the query by its options.

        With ``startingOffsets=group``, the group is asked once, however often Spark asks.
        """
        options, partitions = self._options, self._view.partitions()
        if not isinstance(options.starting, FromGroup):
            starts = start_progress(options, self._keys, partitions, self._view.offsets)
            return start_with_gaps(starts)
        if self._start is None:
            assert self._member is not None
            ask = self._member.join if options.commits_individually else self._member.committed
            starts = start_progress(options, self._keys, partitions, self._view.now, ask)
            self._view.reach({tp: progress.front for tp, progress in starts.items()})
            self._start = start_with_gaps(starts)
        return self._start

    def commit(self, reached: Mapping[TopicPartition, Progress]) -> None:
        """Commit stable offsets, if the query does."""
        if self._commits is not None:
            self._commits.commit({tp: progress.stable for tp, progress in reached.items()})

    def publish(
        self,
        before: BatchOffsets,
        reached: Mapping[TopicPartition, Progress],
        available: Collection[TopicPartition],
    ) -> None:
        """Tell the group what is processed, if the query is a member.

        Args:
            before: The batch that was processed last.
            reached: What is processed.
            available: The partitions that there are.

        Raises:
            OptionsError: The query starts behind what its group has not processed.
            FencedError: Another member of the group has taken over.
        """
        if self._member is None or not self._options.commits_individually:
            return
        started = {tp: offset for tp, offset in before.started.items() if tp not in reached}
        if started and not isinstance(self._options.starting, FromGroup):
            name = self._options.kafka.group_id
            _check_start(self._member, name, started, self._keys, self._view.now)
        starts = {tp: Progress.at(offset) for tp, offset in started.items()}
        positions = {**starts, **reached}
        self._member.commit({tp: at for tp, at in positions.items() if tp in available})

    def flush(self) -> None:
        """Wait for what was published, for a while."""
        if self._member is not None and self._options.commits_individually:
            self._member.flush()

    def close(self) -> None:
        """Leave the group."""
        with ExitStack() as closing:  # both, also if one raises
            for each in (self._member, self._commits):
                if each is not None:
                    closing.callback(each.close)


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


def _check_start(
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
