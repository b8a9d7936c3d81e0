"""The replica of a partition that a reader asks: the leader, or a follower in its rack (KIP-392).

A follower is read only on the leader's word, as by Java's consumer. What a follower does not answer
is asked of the leader before anything is called lost: a follower may lag behind its leader, or be
gone. Cost: one answer without records for each partition, process and ``metadata.max.age.ms``.
"""

import logging

from kshare.core.progress import TopicPartition
from kshare.options import KafkaConfig
from kshare.wire.protocol.broker_pool import Brokers

__all__ = ["ReadReplica"]

_log = logging.getLogger(__name__)

LEADER_ALONE_SECONDS = 30.0
"""Time for which a follower that failed is left alone: by then its leader knows too
(``replica.lag.time.max.ms``), while at once it might name the same one again, and again.
"""


class ReadReplica:
    """The replica that one reader of one partition asks.

    That is the leader, until it names a follower, as it may when it gets ``client.rack``. The
    follower is read until ``metadata.max.age.ms`` is over or it fails, by all readers of the
    process.

    Args:
        brokers: Where the choice is remembered.
        kafka: Rack, and maximum age of the metadata.
        topic_partition: The partition.

    Attributes:
        follower: Node id of the follower that is asked; None for the leader.
    """

    def __init__(
        self, brokers: Brokers, kafka: KafkaConfig, topic_partition: TopicPartition
    ) -> None:
        self._brokers = brokers
        self._topic_partition = topic_partition
        self._rack = kafka.client_rack or ""
        # At least a second: a follower that is named is asked at least once.
        self._seconds = max(kafka.metadata_max_age_seconds, 1.0)
        self.follower: int | None = None

    def choose(self) -> int | None:
        """Choose the replica to ask from now on; return :attr:`follower`."""
        self.follower = self._preferred()
        return self.follower

    @property
    def rack(self) -> str:
        """The rack to tell a broker; empty while it shall not name a follower."""
        if not self._rack:
            return ""
        kept = self._brokers.preference(self._topic_partition)
        return "" if kept is not None and kept.node_id is None else self._rack

    @property
    def is_over(self) -> bool:
        """True if the follower's time is over, so that another replica is to be asked."""
        return self.follower is not None and self._preferred() != self.follower

    def follow(self, node_id: int | None) -> bool:
        """Take note of the replica that an answer names.

        Args:
            node_id: Node to ask instead; None if the answer names none.

        Returns:
            Whether another replica is to be asked now.
        """
        if node_id is None:
            return False
        if self.follower is not None:  # a follower cannot know: back to the leader
            return self.leave(f"it names broker {node_id} instead")
        self._brokers.prefer(self._topic_partition, node_id, self._seconds)
        _log.info(
            "%s: the leader names broker %d to be read (client.rack: %s)",
            self._topic_partition,
            node_id,
            self._rack or "none",
        )
        return True

    def leave(self, why: object) -> bool:
        """Ask the leader from now on, for a while.

        Returns:
            False if it is the leader that is asked already.
        """
        if self.follower is None:
            return False
        _log.info(
            "%s: back from follower %d to the leader: %s", self._topic_partition, self.follower, why
        )
        self._brokers.prefer(self._topic_partition, None, LEADER_ALONE_SECONDS)
        return True

    def _preferred(self) -> int | None:
        kept = self._brokers.preference(self._topic_partition)
        return None if kept is None else kept.node_id
