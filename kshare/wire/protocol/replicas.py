"""Which replica of a partition a reader asks: the leader, or a follower in its rack (KIP-392).

Law: a follower is read only on the leader's word, as Java's consumer does it, and what a follower
does not answer is asked of the leader before anything is called lost: a follower may lag behind its
leader, or be gone. Cost: one answer without records a partition, process and
``metadata.max.age.ms``.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from kshare.errors import KafkaError
from kshare.options import KafkaConfig
from kshare.wire.protocol.broker_pool import Leaders
from kshare.wire.protocol.connection import Connection

__all__ = ["ReadReplica"]

_log = logging.getLogger(__name__)

LEADER_ALONE_SECONDS = 30.0
"""How long a follower that failed is left alone: by then its leader knows too
(``replica.lag.time.max.ms``), while at once it might name the same one again, and again."""


class ReadReplica:
    """The replica that one reader of one partition asks.

    That is the leader, until it names a follower, as it may when it is told ``client.rack``: this
    is read until ``metadata.max.age.ms`` is over or it fails, by all readers of the process.
    """

    def __init__(self, leaders: Leaders, kafka: KafkaConfig, topic: str, partition: int) -> None:
        self._leaders = leaders
        self._topic, self._partition = topic, partition
        self._rack = kafka.client_rack or ""
        # At least a second: a follower that is named is asked at least once.
        self._seconds = max(kafka.metadata_max_age_ms / 1000, 1.0)
        self._follower: int | None = None  # that the connection is to

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection to the replica to ask now; see :meth:`Leaders.connection`."""
        self._follower = self._preferred()
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(
                    self._leaders.connection(self._topic, self._partition, self._follower)
                )
            except KafkaError as error:
                if self._follower is None:
                    raise
                # The leader's listener and certificate may be in order.
                raise OSError(str(error)) from error
            yield connection

    @property
    def rack(self) -> str:
        """What to tell a broker as our rack; empty while it shall name no follower."""
        if not self._rack:
            return ""
        kept = self._leaders.preference(self._topic, self._partition)
        return "" if kept is not None and kept.node_id is None else self._rack

    @property
    def is_over(self) -> bool:
        """Whether the follower's time is over: another replica is to be asked now."""
        return self._follower is not None and self._preferred() != self._follower

    def follow(self, node_id: int | None) -> bool:
        """The answer names a replica to ask instead. True: it is to be asked now."""
        if node_id is None:
            return False
        if self._follower is not None:  # a follower cannot know: back to the leader
            return self.leave(f"it names broker {node_id} instead")
        self._leaders.prefer(self._topic, self._partition, node_id, self._seconds)
        _log.info(
            "%s-%d: the leader names broker %d to be read (client.rack: %s)",
            self._topic,
            self._partition,
            node_id,
            self._rack or "none",
        )
        return True

    def leave(self, why: object) -> bool:
        """Ask the leader from now on, for a while. False: it is the leader that is asked."""
        if self._follower is None:
            return False
        _log.info(
            "%s-%d: back from follower %d to the leader: %s",
            self._topic,
            self._partition,
            self._follower,
            why,
        )
        self._leaders.prefer(self._topic, self._partition, None, LEADER_ALONE_SECONDS)
        return True

    def _preferred(self) -> int | None:
        kept = self._leaders.preference(self._topic, self._partition)
        return None if kept is None else kept.node_id
