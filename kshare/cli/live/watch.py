"""Looks at a query or a group: again and again, by one thread, however many look at what it saw.

::

    start --- look ---> latest (1) --- interval, look ---> latest (2) ...
                          a look that fails keeps the snapshot, with its fault beside it

Guarantees: nothing is changed, joined or claimed.
Cost: connections stay open. Speeds are linear in the gaps for each range; the progress of at most
``_LOOKS_MAX`` looks is kept.
"""

import argparse
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

from kshare.cli.connection import is_given, kafka_config, log_topic, needed_kafka_config
from kshare.cli.live.snapshot import RangeLine, Snapshot, of_group, of_query
from kshare.cli.query import query_status, with_ends
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import KshareError
from kshare.group.tools.status import GroupObserver
from kshare.kafka.cluster import Cluster
from kshare.kafka.parked_keys import ParkedKeys
from kshare.monitor.report import lag
from kshare.monitor.status import describe, read_checkpoint
from kshare.options import KafkaConfig

__all__ = [
    "WINDOW_SECONDS",
    "GroupLooker",
    "Latest",
    "Looker",
    "QueryLooker",
    "SpeedMeter",
    "Watch",
    "looker",
]

_log = logging.getLogger(__name__)
WINDOW_SECONDS: Final = 60.0
"""Speeds are means over so long: a query's progress moves by whole batches."""
_LOOKS_MAX: Final = 32
_Done: TypeAlias = Mapping[tuple[int, TopicPartition], Progress]


class Looker(Protocol):
    """Takes snapshots of one query or group. For one thread at a time."""

    def look(self) -> Snapshot:
        """The state now. KshareError: it cannot be found out."""

    def close(self) -> None:
        """Close the connections."""


def looker(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Looker:
    """The query or group that a command looks at.

    Raises:
        SystemExit: A group without a cluster (code 2).
    """
    if arguments.group is None:
        return QueryLooker(
            arguments.checkpoint, kafka_config(arguments) if is_given(arguments) else None
        )
    kafka = needed_kafka_config(parser, arguments)
    return GroupLooker(kafka, arguments.group, log_topic(arguments, kafka))


class QueryLooker:
    """Looks at a query, by its checkpoint and, if one is given, the cluster.

    Args:
        directory: The query's ``checkpointLocation``.
        kafka: How to reach the cluster; None to look at the checkpoint alone.
    """

    def __init__(self, directory: str, kafka: KafkaConfig | None) -> None:
        self._directory = directory
        self._kafka = kafka
        self._cluster = None if kafka is None else Cluster(kafka)
        self._parked = None if kafka is None else ParkedKeys(kafka)

    def look(self) -> Snapshot:
        """The state of the query now.

        Raises:
            CheckpointError: The checkpoint cannot be read.
            KafkaError: The cluster did not answer, or refused.
        """
        at, read_at, warnings = time.time(), time.monotonic(), list[str]()
        checkpoint = read_checkpoint(self._directory)
        if self._kafka is None or self._cluster is None or self._parked is None:
            status = describe(checkpoint)
        else:
            checkpoint = with_ends(checkpoint, self._kafka)
            status = query_status(checkpoint, self._cluster, self._parked, warnings.append)
        return replace(of_query(status, at, warnings), read_at=read_at)

    def close(self) -> None:
        """Close the connections."""
        if self._cluster is not None and self._parked is not None:
            self._cluster.close()
            self._parked.close()


class GroupLooker:
    """Looks at a group.

    Args:
        kafka: How to reach the cluster.
        group: Id of the group.
        log_topic: Name of the individual commit log's topic.
    """

    def __init__(self, kafka: KafkaConfig, group: str, log_topic: str) -> None:
        self._observer = GroupObserver(kafka, group, log_topic)
        self._parked = ParkedKeys(kafka)

    def look(self) -> Snapshot:
        """The state of the group now.

        Raises:
            UnknownGroupError: Nobody knows the group.
            CommitLogError: A record of the group cannot be read.
            KafkaError: The cluster did not answer, or refused.
        """
        at = time.time()
        status = self._observer.read()
        warnings = [*status.warnings]
        return of_group(status, self._parked.known(warnings.append), at, warnings)

    def close(self) -> None:
        """Close the connections."""
        self._observer.close()
        self._parked.close()


@dataclass(frozen=True, slots=True)
class Latest:
    """The latest snapshot.

    Attributes:
        number: Counts the looks, from 1.
        snapshot: The last that succeeded.
        fault: Why the last look failed; None if it did not.
    """

    number: int
    snapshot: Snapshot
    fault: str | None = None


class SpeedMeter:
    """Adds speeds to snapshots, which it is given in order.

    The offsets of a range's hashes that are pending now are compared with those of the same hashes
    a while ago, up to the same offset. So it does not matter that ranges are cut anew, nor that
    records arrive meanwhile.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, _Done]] = deque()

    def measured(self, snapshot: Snapshot, seconds: float) -> Snapshot:
        """The snapshot with the speeds of its ranges.

        A range whose partition went back, as after a reset, is measured anew.

        Args:
            snapshot: The newest look.
            seconds: When it was taken, by a clock that never goes back.
        """
        done = {(each.source, each.topic_partition): each.done for each in snapshot.partitions}
        self._forget(seconds, done)
        ranges = [replace(each, speed=self._speed(each, done, seconds)) for each in snapshot.ranges]
        # With short intervals, not every look is kept.
        if not self._seen or seconds - self._seen[-1][0] >= WINDOW_SECONDS / _LOOKS_MAX:
            self._seen.append((seconds, done))
        return replace(snapshot, ranges=tuple(ranges))

    def _forget(self, seconds: float, done: _Done) -> None:
        """Drop what is too old, but one look; and all from before a partition went back."""
        while len(self._seen) > 1 and self._seen[1][0] <= seconds - WINDOW_SECONDS:
            self._seen.popleft()
        if self._seen and _went_back(self._seen[-1][1], done):
            self._seen.clear()

    def _speed(self, range_: RangeLine, done: _Done, seconds: float) -> float | None:
        where = (range_.source, range_.partition)
        now = done.get(where)
        before = next(((at, seen[where]) for at, seen in self._seen if where in seen), None)
        if now is None or before is None or seconds <= before[0]:
            return None
        at, then = before
        end = max(now.front, then.front)
        processed = lag(then, end, range_.hashes) - lag(now, end, range_.hashes)
        return max(processed, 0) / (seconds - at)


def _went_back(before: _Done, now: _Done) -> bool:
    common: Iterable[tuple[int, TopicPartition]] = before.keys() & now.keys()
    return any(now[each].stable < before[each].stable for each in common)


class Watch:
    """Looks again and again. The first look is made at once, and raises what fails.

    Args:
        looker: What looks; it is used by one thread at a time.
        interval: Seconds from one look to the next.
        on_look: Called with each look, also the first, by the thread that looks.
        clock: For looks that do not say when they read; never goes back, in seconds.
    """

    def __init__(
        self,
        looker: Looker,
        interval: float,
        on_look: Callable[[Latest], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._looker = looker
        self._interval = interval
        self._on_look = on_look
        self._clock = clock
        self._meter = SpeedMeter()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kshare live view", daemon=True)
        try:
            self.latest = Latest(1, self._look())
        except BaseException:
            looker.close()
            raise
        on_look(self.latest)

    def start(self) -> None:
        """Go on looking, in a thread."""
        self._thread.start()

    def again(self) -> Latest:
        """Look now; for those who have not started the thread."""
        try:
            return self._saw(self._look())
        except KshareError as error:
            return self._saw(self.latest.snapshot, str(error))

    def _saw(self, snapshot: Snapshot, fault: str | None = None) -> Latest:
        self.latest = Latest(self.latest.number + 1, snapshot, fault)
        self._on_look(self.latest)
        return self.latest

    def close(self) -> None:
        """Stop looking, and close the looker's connections, unless it hangs."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join(5)
        if not self._thread.is_alive():
            self._looker.close()

    def _look(self) -> Snapshot:
        snapshot = self._looker.look()
        # Not when the look has ended: the first one opens connections and reads the whole log.
        read_at = self._clock() if snapshot.read_at is None else snapshot.read_at
        return self._meter.measured(snapshot, read_at)

    def _run(self) -> None:
        while not self._closed.wait(self._interval):
            try:
                self.again()
            except Exception as error:  # else the last snapshot would be shown for ever
                _log.exception("a look has failed")
                self._saw(self.latest.snapshot, f"{type(error).__name__}, see the log")
