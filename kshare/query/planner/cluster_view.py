"""A stream's view of its cluster: partitions, offsets of now or of one moment, operators' words."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from typing import Protocol

from kshare.core.listing import ParkedCount
from kshare.core.progress import TopicPartition
from kshare.errors import UnknownTopicError
from kshare.kafka.parked_keys import ParkWatch
from kshare.kafka.policies import PolicyWatch
from kshare.kafka.topic_config import TopicConfig
from kshare.monitor.retention import RetentionWatch
from kshare.options import SourceOptions, Topics
from kshare.query.planner.key_selection import check_ranges

__all__ = ["ClusterLike", "ClusterView", "Compaction", "PinnedView", "View"]

_log = logging.getLogger("kshare.planner")

_ASK_AGAIN_SECONDS = 60.0


class View(Protocol):
    """The part of a cluster that planning looks at."""

    def partitions(self, topics: Topics, /) -> tuple[TopicPartition, ...]:
        """The partitions of a subscription, sorted."""

    def earliest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        """The first offset that each log holds."""

    def latest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        """The end of each log."""

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int], /
    ) -> dict[TopicPartition, int | None]:
        """The first offset of a record that is not older than its partition's timestamp."""


class ClusterLike(View, Protocol):
    """A cluster: see :class:`~kshare.kafka.cluster.Cluster`."""

    def topic_ids(self) -> Mapping[str, str]:
        """The ids of topics as they were when partitions were last asked for, where they have one.

        Of a topic that is made anew it is another one.
        """

    def topic_configs(self, topics: Collection[str], /) -> dict[str, TopicConfig]:
        """The configurations of topics."""

    def close(self) -> None:
        """Close it."""


class PinnedView:
    """A cluster whose partitions and ends stay as they were at one moment."""

    def __init__(self, cluster: View, ends: dict[TopicPartition, int]) -> None:
        self._cluster = cluster
        self._ends = ends

    def partitions(self, _: Topics, /) -> tuple[TopicPartition, ...]:
        """The partitions of that moment."""
        return tuple(sorted(self._ends))

    def earliest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        """The first offset that each log holds now."""
        return self._cluster.earliest(partitions)

    def latest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        """The ends of that moment."""
        return {partition: self._ends[partition] for partition in partitions}

    def reach(self, offsets: Mapping[TopicPartition, int], /) -> None:
        """Move ends up to some offsets."""
        for partition, offset in offsets.items():
            self._ends[partition] = max(self._ends[partition], offset)

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int], /
    ) -> dict[TopicPartition, int | None]:
        """The first offset that is not older, now.

        What lies between the end of that moment and a record that came since is older than the
        timestamp. It is never to be read, in this run or a later one: so the end moves up to there.
        """
        offsets = self._cluster.at_timestamps(timestamps_ms)
        self.reach({tp: offset for tp, offset in offsets.items() if offset is not None})
        return offsets


class Compaction:
    """Which topics are compacted: records vanish from the middle of their logs.

    Args:
        cluster: Where the topics are.
        clock: Seconds.
    """

    def __init__(self, cluster: ClusterLike, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._compacted: dict[str, bool] = {}  # as brokers have told
        self._ask_at: dict[str, float] = {}  # when to ask again what they did not tell

    def of(self, topics: Collection[str]) -> set[str]:
        """The topics that are compacted, or whose configuration cannot be read.

        One request for all: where there is no answer, each takes ``default.api.timeout.ms``.
        """
        now = self._clock()
        unknown = [
            topic
            for topic in sorted(set(topics) - self._compacted.keys())
            if now >= self._ask_at.get(topic, float("-inf"))
        ]
        known = self._cluster.topic_configs(unknown) if unknown else {}
        self._compacted |= {topic: config.compacted for topic, config in known.items()}
        for topic in unknown:
            if topic in known:
                continue
            if topic not in self._ask_at:
                _log.warning(
                    "cannot see whether %s is compacted (DescribeConfigs had no answer): until "
                    "that is known, the planner reads the topic's keys to find where each batch "
                    "ends. To see it, the query's user needs DescribeConfigs on the topic.",
                    topic,
                )
            self._ask_at[topic] = self._clock() + _ASK_AGAIN_SECONDS
        return {topic for topic in topics if self._compacted.get(topic, True)}

    def now(self, topics: Collection[str]) -> set[str]:
        """The same by the configuration of now, whatever it was before."""
        known = self._cluster.topic_configs(topics)
        self._compacted |= {topic: config.compacted for topic, config in known.items()}
        return {topic for topic in topics if topic not in known or known[topic].compacted}

    def keep(self, topics: Collection[str]) -> None:
        """Forget all topics but these."""
        self._compacted = {name: is_so for name, is_so in self._compacted.items() if name in topics}
        self._ask_at = {name: at for name, at in self._ask_at.items() if name in topics}


class ClusterView:
    """The topics of one query.

    Args:
        cluster: Where the topics are.
        topics: The subscription.
        parking: Where parked keys are kept.
        policies: What operators do not allow; None: they are not looked at.
        clock: Seconds.

    Attributes:
        compaction: Which of its topics are compacted.
        retention: Warns before retention deletes what is still pending.
    """

    def __init__(
        self,
        cluster: ClusterLike,
        topics: Topics,
        parking: ParkWatch,
        policies: PolicyWatch | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._parking = parking
        self._policies = policies
        self.compaction = Compaction(cluster, clock)
        self.retention = RetentionWatch(cluster)
        self._pinned: PinnedView | None = None
        self._topic_ids: dict[str, str] = {}

    def pin(self) -> None:
        """Let the ends of now be all that there is (``Trigger.AvailableNow``)."""
        ends = self._ends_of(self._cluster)
        self._pinned = PinnedView(self._cluster, ends)

    def unpin(self) -> None:
        """Let the ends of each look be all that there is."""
        self._pinned = None

    @property
    def now(self) -> View:
        """The cluster as it is now, pinned or not."""
        return self._cluster

    def reach(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Let pinned ends be no less than these offsets: what is below was read by others."""
        if self._pinned is not None:
            self._pinned.reach(offsets)

    @property
    def offsets(self) -> View:
        """The cluster, or the moment that was pinned."""
        return self._pinned or self._cluster

    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions of the subscription, ascending."""
        return self.offsets.partitions(self._topics)

    def ends(self, read: Mapping[TopicPartition, int] | None = None) -> dict[TopicPartition, int]:
        """The end of each partition's log; what is known of topics without one is forgotten.

        A log that ends before what was read is asked for once more, by another client: a former
        leader that is cut off from the others takes its own end for that of now. Pinned ends move
        up to the second answer.

        Args:
            read: Up to where partitions were read.
        """
        ends = self._ends_of(self.offsets)
        fronts = {tp: front for tp, front in (read or {}).items() if ends.get(tp, front) < front}
        if fronts:
            self._cluster.close()  # another client may ask another broker
            found = self._cluster.latest(fronts)
            # No further than what was read: ends may be pinned.
            found = {tp: min(end, fronts[tp]) for tp, end in found.items()}
            self.reach(found)
            ends |= found
        self.compaction.keep({tp.topic for tp in ends})
        return ends

    def _ends_of(self, view: View) -> dict[TopicPartition, int]:
        """The ends of all partitions; one may go while they are asked for."""
        partitions = view.partitions(self._topics)
        try:
            return view.latest(partitions)
        except UnknownTopicError:
            left = view.partitions(self._topics)
            if left == partitions:
                raise
            return view.latest(left)

    def recreated(self) -> set[str]:
        """The topics that were deleted and made again since the last call, as far as ids tell."""
        known, self._topic_ids = self._topic_ids, dict(self._cluster.topic_ids())
        return {name for name, id_ in self._topic_ids.items() if known.get(name, id_) != id_}

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that each log holds."""
        wanted = list(partitions)
        return self.offsets.earliest(wanted) if wanted else {}

    def check_policies(
        self, options: SourceOptions, partitions: Collection[TopicPartition]
    ) -> None:
        """See :func:`~kshare.query.planner.key_selection.check_ranges`."""
        check_ranges(options, partitions, self._policies)

    def parked(self, topics: set[str]) -> dict[str, set[bytes]]:
        """The keys of some topics that are parked now."""
        parked: dict[str, set[bytes]] = {topic: set() for topic in topics}
        for topic, key in self._parking.current(topics):
            parked[topic].add(key)
        return parked

    def parked_counts(self) -> Mapping[str, ParkedCount]:
        """The parked keys of each topic that has some, as of the last look."""
        return self._parking.counts()

    def close(self) -> None:
        """Close the connections, also those of the lists that operators keep."""
        with ExitStack() as closing:  # all of them, also if one raises
            closing.callback(self._cluster.close)
            closing.callback(self._parking.close)
            if self._policies is not None:
                closing.callback(self._policies.close)
