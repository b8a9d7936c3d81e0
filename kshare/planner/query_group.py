"""The consumer group of a query: where it starts from it, and what it tells it.

Two ways to tell it, by ``commitOffsets``: stable offsets, as any consumer commits them
(``true``), or all that is processed, as a member of a key-shared group (``individual``).
"""

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from kshare.cluster.committer import committer
from kshare.core.batch import start_with_gaps
from kshare.core.checkpoint import BatchOffsets
from kshare.core.progress import Progress, TopicPartition
from kshare.options import FromGroup, SourceOptions
from kshare.planner.cluster_view import ClusterView
from kshare.planner.group_member import QueryInGroup, check_start, start_progress
from kshare.planner.key_selection import KeySelection

__all__ = ["CommitsStable", "QueryGroup"]


class CommitsStable(Protocol):
    """Commits stable offsets; does not wait."""

    def commit(self, stable: Mapping[TopicPartition, int], /) -> None:
        """Commit the offsets below which all is processed."""

    def close(self) -> None:
        """Commit what is left, and close the connections."""


class QueryGroup:
    """A query's use of its consumer group; none, if the options say so.

    Args:
        options: The query's options.
        keys: The key hashes that the query reads.
        view: The cluster.
        member: The group, if the query starts from it or is a member of it.
        commits: Makes what commits stable offsets; None if the options do not ask for it.
    """

    def __init__(
        self,
        options: SourceOptions,
        keys: KeySelection,
        view: ClusterView,
        member: QueryInGroup | None,
        commits: Callable[[SourceOptions], CommitsStable | None] = committer,
    ) -> None:
        self._options = options
        self._keys = keys
        self._view = view
        self._member = member
        self._commits = commits(options)
        self._start: BatchOffsets | None = None

    def start(self, partitions: Collection[TopicPartition]) -> BatchOffsets:
        """The start of the query by the group's progress (``startingOffsets=group``).

        It is asked once, however often Spark asks.
        """
        if self._start is None:
            assert self._member is not None
            is_member = self._options.commits_individually
            ask = self._member.join if is_member else self._member.committed
            starts = start_progress(self._options, self._keys, partitions, self._view.now, ask)
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
            check_start(self._member, name, started, self._keys, self._view.now)
        starts = {tp: Progress.at(offset) for tp, offset in started.items()}
        positions = {**starts, **reached}
        self._member.commit({tp: at for tp, at in positions.items() if tp in available})

    def flush(self) -> None:
        """Wait for what was published, for a while."""
        if self._member is not None and self._options.commits_individually:
            self._member.flush()

    def close(self) -> None:
        """Leave the group."""
        if self._commits is not None:
            self._commits.close()
        if self._member is not None:
            self._member.close()
