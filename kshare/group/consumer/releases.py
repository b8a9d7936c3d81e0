"""Records that a user gives back: how often each was, in memory and in the group's log."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kshare.core.hashing import key_hash
from kshare.core.progress import TopicPartition
from kshare.errors import OptionsError
from kshare.group.config.table import ConsumerConfig
from kshare.group.consumer.call_state import CallState
from kshare.group.delivery.dispatcher import Dispatcher
from kshare.group.log.retry_log import RetryLog
from kshare.group.log.topic import log_table
from kshare.group.message import Message

__all__ = ["Releases", "check_releases"]


@dataclass(slots=True)
class _Attempt:
    """A released record, as the group's log has it."""

    topic_partition: TopicPartition
    offset: int
    failures: int
    since: float | None
    due: float
    point: int | None = None  # its key hash, if it is known


def check_releases(config: ConsumerConfig) -> None:
    """Check that a consumer may release records.

    Raises:
        OptionsError: It may not; every fault is listed.
    """
    problems = []
    if not config.explicit:
        problems.append(
            "acknowledgement.mode is implicit, so a record counts as processed without being "
            "acknowledged: set acknowledgement.mode=explicit"
        )
    if config.order != "key":
        problems.append(f"consumption.order is {config.order}; records are released in key order")
    if config.transactional_id is not None:
        problems.append("transactional.id is set: an aborted transaction returns its records")
    if problems:
        raise OptionsError(problems, of="KeySharedConsumer.release")


class Releases:
    """Counts how often records were released. For any thread.

    Args:
        config: The consumer's configuration.
        dispatcher: Hands records out.
        state: What the consumer's threads share.
        interrupt: Makes the thread that polls look again.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        dispatcher: Dispatcher,
        state: CallState,
        interrupt: Callable[[], None],
    ) -> None:
        self._config = config
        self._dispatcher = dispatcher
        self._state = state
        self._interrupt = interrupt
        self._retry_log: RetryLog | None = None
        self._attempts: dict[TopicPartition, dict[int, _Attempt]] = {}
        self._starts: dict[TopicPartition, Any] = {}  # as of the last look at the log
        dispatcher.release_count = self.count

    def hold(self, message: Message) -> None:
        """A record comes again, and all of its key behind it, once :meth:`let_go` is called."""
        with self._state.lock:
            self._dispatcher.state.release(message, None)
        self._interrupt()

    def let_go(self, message: Message) -> None:
        """The records of its key come."""
        with self._state.lock:
            point = key_hash(message.key(), message.offset())
            self._dispatcher.released.let_go(message.topic_partition, point)
        self._interrupt()

    def release(self, message: Message, delay: float) -> None:
        """A record comes again after some seconds, and all of its key behind it.

        Raises:
            KafkaError: The group's log cannot be read.
        """
        partition, offset = message.topic_partition, message.offset()
        known = self.count(partition, offset)
        with self._state.lock:
            if not self._dispatcher.state.release(message, time.monotonic() + delay):
                return
            now = time.time()
            attempt = self._attempts.setdefault(partition, {}).get(offset)
            since = now if attempt is None else attempt.since
            point = key_hash(message.key(), offset)
            attempt = _Attempt(partition, offset, known + 1, since, now + delay, point)
            self._attempts[partition][offset] = attempt
        self._kept().remember(attempt, point)
        self._interrupt()

    def count(self, partition: TopicPartition, offset: int) -> int:
        """How often a record was released, before a restart too.

        Raises:
            KafkaError: The group's log cannot be read.
        """
        with self._state.lock:
            delivery = self._dispatcher.deliveries.get(partition)
            start = delivery and delivery.start
            is_known = start is None or self._starts.get(partition) is start
        if not is_known:
            self._look(partition, start)
        attempt = self._attempts.get(partition, {}).get(offset)
        return 0 if attempt is None else attempt.failures

    def _look(self, partition: TopicPartition, start: Any) -> None:
        """Key hashes have come: look at what others have written of them."""
        attempts = self._kept().read().attempts
        with self._state.lock:
            own = self._attempts.setdefault(partition, {})
            for (at, offset), known in attempts.items():
                if at == partition and (offset not in own or own[offset].failures < known.failures):
                    own[offset] = _Attempt(at, offset, *known)
            self._starts[partition] = start

    def forget(self) -> None:
        """Keep nothing of what is processed. Holds the lock."""
        for partition, attempts in list(self._attempts.items()):
            delivery = self._dispatcher.deliveries.get(partition)
            if delivery is None:
                continue
            # Of a hash that is not known, the record may be another member's.
            points = {at: each.point for at, each in attempts.items() if each.point is not None}
            done = delivery.those_processed(points)
            for offset in done:
                self._kept().forget(attempts.pop(offset))

    def close(self) -> None:
        """Write what is still to be written."""
        if self._retry_log is not None:
            self._retry_log.close()

    def _kept(self) -> RetryLog:
        if self._retry_log is None:
            self._retry_log = _retry_log(self._config)
        return self._retry_log


def _retry_log(config: ConsumerConfig) -> RetryLog:
    return RetryLog(log_table(config.kafka, config.log_topic, config.group), config.group)
