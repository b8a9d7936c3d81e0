"""Stable offsets, committed to a group for Kafka's own lag tools: ``commitOffsets``.

Guarantees: nothing is ever read back, and a commit that fails is a warning: the query goes on. No
call waits for Kafka but :meth:`Committer.close`, and that one for a few seconds.

Cost: one request a trigger at most, and none while nothing has moved. No heavy imports: planners
load this module.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, TypeAlias

from kshare.core.progress import TopicPartition
from kshare.kafka.committed import CommittedOffset, Outcome
from kshare.options import KafkaConfig, SourceOptions

if TYPE_CHECKING:
    from kshare.kafka.coordinator import OffsetWriter

__all__ = ["Committer", "committer"]

_log = logging.getLogger("kshare.planner")


MakeWriter: TypeAlias = Callable[[KafkaConfig, str], "OffsetWriter"]


def _offset_writer(kafka: KafkaConfig, group: str) -> "OffsetWriter":
    # Only queries that commit pay for it: 0.4 s of a planner's start.
    from kshare.kafka.coordinator import OffsetWriter  # noqa: PLC0415

    return OffsetWriter(kafka, group)


def committer(
    options: SourceOptions, *, make_writer: MakeWriter = _offset_writer
) -> "Committer | None":
    """The object that commits stable offsets for a query; None unless ``commitOffsets`` is true.

    Args:
        options: The query's options.
        make_writer: Makes what sends commits to a group.
    """
    if options.commit_offsets is not True or options.kafka.group_id is None:
        return None
    return Committer(options.kafka, options.kafka.group_id, make_writer=make_writer)


class Committer:
    """Commits offsets to one group, which has no members.

    Args:
        kafka: How to reach the cluster.
        group: Name of the consumer group.
        make_writer: Makes what sends commits to a group.
        close_seconds: Maximum time to wait for each answer when closing.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        group: str,
        *,
        make_writer: MakeWriter,
        close_seconds: float = 5.0,
    ) -> None:
        self._group = group
        self._close_seconds = close_seconds
        self._writer = make_writer(kafka, group)
        self._committed: dict[TopicPartition, int] = {}
        self._wanted: dict[TopicPartition, int] = {}
        self._sent: dict[TopicPartition, int] = {}
        self._answer: Future[Outcome] | None = None  # to what was sent
        self._warned: str | None = None

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the group's offsets, if they have moved. Never raises, never waits.

        While a commit is under way the newest offsets are kept, and sent by a later call.
        """
        self._wanted = dict(offsets)
        self._send()

    def close(self) -> None:
        """Send what is left, and close the connections."""
        # One may be under way, and another one waits for it.
        for _ in range(2):
            self._send()
            if self._answer is not None:
                wait([self._answer], timeout=self._close_seconds)
        self._take_answer()
        if self._answer is not None:
            self._warn(f"no answer within {self._close_seconds:g} s")
        self._answer = None
        self._writer.close()

    def _send(self) -> None:
        self._take_answer()
        moved = {
            tp: offset for tp, offset in self._wanted.items() if self._committed.get(tp) != offset
        }
        if not moved or self._answer is not None:
            return
        try:
            asked = {tp: CommittedOffset(offset) for tp, offset in moved.items()}
            self._sent, self._answer = moved, self._writer.commit(asked)
        except Exception as error:  # of any kind: the query does not depend on it
            self._warn(str(error))

    def _take_answer(self) -> None:
        """Take the answer to what was sent, if there is one."""
        if self._answer is None or not self._answer.done():
            return
        answer, self._answer = self._answer, None
        error = answer.exception()
        if error is not None:
            self._warn(str(error))
            return
        faults = set()
        for partition, fault in answer.result().items():
            if fault is None:
                self._committed[partition] = self._sent[partition]
            else:
                faults.add(str(fault))
        if faults:
            self._warn("; ".join(sorted(faults)))
        else:
            self._warned = None

    def _warn(self, why: str) -> None:
        """Warn of a failure; of the same one in a row only once."""
        level = logging.DEBUG if why == self._warned else logging.WARNING
        self._warned = why
        _log.log(
            level,
            "offsets were not committed to group %s (commitOffsets; the query does not depend on "
            "it, and tries again): %s",
            self._group,
            why,
        )
