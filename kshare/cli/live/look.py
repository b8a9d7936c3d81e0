"""Looks at a query or a group, again and again, over connections that stay open.

Guarantees: nothing is changed, joined or claimed.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from kshare.cli.connection import is_given, kafka_config
from kshare.cli.live.snapshot import Snapshot, of_group, of_query
from kshare.cluster.cluster import Cluster
from kshare.cluster.log_bounds import log_bounds
from kshare.cluster.parked_keys import ParkedInfo, ParkedKey, ParkedKeys
from kshare.cluster.topics import INDIVIDUAL_COMMITS_TOPIC
from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError
from kshare.group.status import GroupObserver
from kshare.monitor.status import describe, read_checkpoint
from kshare.options import KafkaConfig

__all__ = ["GroupLooker", "Looker", "QueryLooker", "looker"]


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
    if not is_given(arguments):
        parser.error("which cluster? Give --bootstrap-servers, or --kafka-config")
    topic = arguments.log_topic or INDIVIDUAL_COMMITS_TOPIC
    return GroupLooker(kafka_config(arguments), arguments.group, topic)


class QueryLooker:
    """Looks at a query, by its checkpoint and, if one is given, the cluster.

    Args:
        directory: The query's ``checkpointLocation``.
        kafka: How to reach the cluster; None to look at the checkpoint alone.
        now: Time of day, in seconds since 1970.
    """

    def __init__(
        self, directory: str, kafka: KafkaConfig | None, now: Callable[[], float] = time.time
    ) -> None:
        self._directory = directory
        self._now = now
        self._cluster = None if kafka is None else Cluster(kafka)
        self._parked = None if kafka is None else _Parked(kafka)

    def look(self) -> Snapshot:
        """The state of the query now.

        Raises:
            CheckpointError: The checkpoint cannot be read.
            KafkaError: The cluster did not answer, or refused.
        """
        at, warnings = self._now(), list[str]()
        logs: Mapping[TopicPartition, tuple[int, int]] | None = None
        parked: Mapping[ParkedKey, ParkedInfo] | None = None
        checkpoint = read_checkpoint(self._directory)
        if self._cluster is not None and self._parked is not None:
            wanted = {partition for source in checkpoint.sources for partition in source.done}
            logs = log_bounds(self._cluster, wanted, lambda error: warnings.append(str(error)))
            parked = self._parked.read(warnings)
        return of_query(describe(checkpoint, logs, parked), at, warnings)

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
        now: Time of day, in seconds since 1970.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        group: str,
        log_topic: str = INDIVIDUAL_COMMITS_TOPIC,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._now = now
        self._observer = GroupObserver(kafka, group, log_topic)
        self._parked = _Parked(kafka)

    def look(self) -> Snapshot:
        """The state of the group now.

        Raises:
            UnknownGroupError: Nobody knows the group.
            CommitLogError: A record of the group cannot be read.
            KafkaError: The cluster did not answer, or refused.
        """
        at, warnings = self._now(), list[str]()
        status = self._observer.read()
        return of_group(status, self._parked.read(warnings), at, warnings)

    def close(self) -> None:
        """Close the connections."""
        self._observer.close()
        self._parked.close()


class _Parked:
    """The parked keys, as far as this user may read them."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self._keys = ParkedKeys(kafka)

    def read(self, warnings: list[str]) -> Mapping[ParkedKey, ParkedInfo]:
        """The parked keys; none, with a warning, if they cannot be read."""
        try:
            return self._keys.parked()
        except KafkaError as error:
            warnings.append(f"parked keys are not known: {error}")
            return {}

    def close(self) -> None:
        self._keys.close()
