"""A cluster that is a dictionary, and planners on it."""

from collections.abc import Collection, Iterable, Mapping

from kshare.core.listing import ParkedCount
from kshare.core.progress import TopicPartition
from kshare.kafka.parked_keys import ParkedKey, ParkWatch
from kshare.kafka.topic_config import TopicConfig
from kshare.options import SourceOptions, Topics, parse_options
from kshare.query.planner import StreamPlanner
from tests.support.planner import Feedback


class FakeCluster:
    """Logs as (first, end)."""

    config = TopicConfig(compacted=False, retention_ms=None)

    closed = False
    ids: Mapping[str, str] = {}

    def __init__(self, logs: dict[tuple[str, int], tuple[int, int]]) -> None:
        self.logs = {TopicPartition(*tp): log for tp, log in logs.items()}

    def partitions(self, topics: Topics, /) -> tuple[TopicPartition, ...]:
        return tuple(sorted(self.logs))

    def topic_ids(self) -> Mapping[str, str]:
        return self.ids

    def earliest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        return {tp: self.logs[tp][0] for tp in partitions}

    def latest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        return {tp: self.logs[tp][1] for tp in partitions}

    def topic_configs(self, topics: Collection[str], /) -> dict[str, TopicConfig]:
        return dict.fromkeys(topics, self.config)

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int], /
    ) -> dict[TopicPartition, int | None]:
        """As if the record at an offset had the offset as its timestamp."""
        return {
            tp: max(ms, self.logs[tp][0]) if ms < self.logs[tp][1] else None
            for tp, ms in timestamps_ms.items()
        }

    def close(self) -> None:
        self.closed = True


def stream(**given: str) -> SourceOptions:
    """The options of a stream of the topic ``t``."""
    options = {"kafka.bootstrap.servers": "nowhere:9092", "subscribe": "t", **given}
    return parse_options(options, streaming=True).options


def batch(**given: str) -> SourceOptions:
    """The options of a batch query of the topic ``t``."""
    options = {"kafka.bootstrap.servers": "nowhere:9092", "subscribe": "t", **given}
    return parse_options(options, streaming=False).options


class NothingParked(ParkWatch):
    """A list of parked keys, which is empty."""

    def __init__(self) -> None:
        self.closed = False

    def current(self, topics: Collection[str]) -> list[ParkedKey]:
        return []

    def counts(self) -> dict[str, ParkedCount]:
        return {}

    def close(self) -> None:
        self.closed = True


class NoFeedback(Feedback):
    """Feedback that cannot listen, as with brokers whose name no one knows; nobody is asked."""

    def start(self) -> bool:
        return False


def planner(cluster: FakeCluster, **given: str) -> StreamPlanner:
    """A planner of a stream."""
    return StreamPlanner(stream(**given), cluster, parking=NothingParked(), feedback=NoFeedback())
