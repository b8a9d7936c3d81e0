"""The log as a session follows it: found or made, read to its end, and known for lost.

::

    find the topic --> ask --> an answer: records | the log was lost: begin with the next one
         ^                        |
         +-------- a fault <------+

After each fault the topic is looked for again: is it the one that was read? Nothing here waits for
brokers: what does, runs in threads of its own, which wake the session's.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError
from kshare.group.config.table import ConsumerConfig
from kshare.group.log.log_link import DENIED, LogLink
from kshare.group.log.log_load import LogLoad
from kshare.group.log.tail import LogLostError, LogTail
from kshare.group.log.topic import LOG_CLIENT, LogTopic, LogWriter, Safety
from kshare.group.protocol.commit_log.group_reader import GroupReader
from kshare.group.protocol.commit_log.log import GroupLog
from kshare.group.session.shared import Shared
from kshare.kafka.lacking import check_transactions
from kshare.kafka.protocol.apis import Feature
from kshare.kafka.protocol.background import OneCall, begin
from kshare.kafka.protocol.broker_pool import BrokerPool
from kshare.kafka.protocol.retry import retry_backoff
from kshare.kafka.topic_config import TopicConfig
from kshare.options import KafkaConfig

__all__ = ["ANSWER_MS", "LogFollower", "LogInspector"]

_log = logging.getLogger("kshare.group")

ANSWER_MS: Final = 5_000
"""Maximum time to wait for an answer, where there is another attempt."""

_LONGEST_WAIT_MS: Final = 500
_LOOK_SECONDS: Final = 30.0
_SEGMENT_BYTES_MAX: Final = 100 << 20
_COMPACTION_LAG_MS_MAX: Final = 600_000


_Found: TypeAlias = tuple[TopicPartition, str]
"""The partition of the group's log, and the id of its topic."""


class LogFollower:
    """Follows the log of a session. For use by the session's thread.

    Args:
        config: The consumer's configuration.
        brief: How to reach the cluster, with a short time for an answer.
        shared: Takes what the log says.
        now: Source of time; suspension counts.
        wake: Wakes the session's thread; called from any thread.

    Attributes:
        link: The log; None until it was found. See also :attr:`sound_link`.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        brief: KafkaConfig,
        shared: Shared,
        now: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self.link: LogLink | None = None
        self._config = config
        self._shared = shared
        self._now = now
        self._wake = wake
        # What is leased or under way in a transaction counts by the claims of all.
        self._claims_anew = config.lease_records is None and config.transactional_id is None
        check = partial(_check_transactions, config, brief)
        self._search = _Search(_log_topic(config, brief), _log_writer(config), check)
        self._pauses = retry_backoff(config.kafka)
        self._find_at = 0.0
        self._inspector = LogInspector(
            lambda: _log_topic(config, brief), config.group, now, lambda: self._search.refused
        )

    @property
    def fileno(self) -> int | None:
        """What becomes readable when an answer is there; None if nothing was asked."""
        return None if self.link is None else self.link.tail.fileno

    @property
    def sound_link(self) -> LogLink | None:
        """The log; None if it was truncated, as nobody may act upon what it said."""
        return None if self.link is None or self.link.truncated else self.link

    @property
    def next_time(self) -> float:
        """When to call :meth:`ask` again, if nothing happens before."""
        if self._search.finding is not None:
            return float("inf")
        if self.link is None or not self.link.is_sure:
            return self._find_at
        if self.link.tail.is_asking:
            return float("inf")
        return self.link.tail.ask_at

    def ask(self) -> None:
        """Find the log if it was not found, and ask for what is new, unless that is under way.

        Raises:
            KafkaError: No other attempt helps.
        """
        if self._search.finding is not None and not self._take_found(self._search.finding):
            return
        link = self.link
        if link is None or not link.is_sure:
            if self._now() >= self._find_at:
                self._find()
            return
        if self._inspector.has_moved(link.partition, link.topic_id):
            self._find()
            return
        if link.tail.is_overdue(self._config.claim_timeout_ms / 1000):
            self._doubt(link, OSError("the log's broker does not answer"))
            return
        try:
            link.tail.ask()
        except DENIED:
            raise
        except (OSError, KafkaError) as error:
            self._doubt(link, error)

    def receive(self) -> None:
        """Take an answer.

        Raises:
            CommitLogError: A record of the group cannot be read.
            KshareError: No other attempt helps.
        """
        link = self.link
        assert link is not None
        try:
            rows = link.tail.take()
        except LogLostError as error:
            link.tail.drop()
            link.is_sure, link.truncated = False, f"it was truncated ({error})"
            self._find()  # the topic may be another one
            return
        except OSError as error:
            self._doubt(link, error)
            return
        if rows is None:
            return
        with self._shared.changed:
            for row in rows:
                link.reader.apply(*row)
            if link.tail.last.caught_up:
                link.reader.settle()
            self._shared.ownerships.warnings += link.reader.take_warnings()
            kept = link.load.read((row.key for row in rows), link.tail.last, self._now())
            if kept:
                seconds = link.load.metrics().read_seconds or 0.0
                self._shared.ownerships.warnings.append(
                    f"group {self._config.group}: its log, {link.partition}, is not compacted: it "
                    f"holds {kept:,} records, which took {seconds:.0f} s to read. Each member that "
                    "starts reads all of it, and it grows for ever. Set its cleanup.policy to "
                    "compact. With a service that compacts nothing, delete the topic now and then "
                    "while no member runs: what is committed above stable offsets is delivered "
                    "again then"
                )
            log = link.reader.log
            if link.reader.has_settled:  # else nothing of what was read is in the log's state
                log.end = max(log.end, link.tail.position or 0)
            oldest = self._shared.ownerships.oldest_claim()
        if link.tail.last.caught_up:
            link.reader.check(but_claims=self._claims_anew)
        if link.tail.last.log_start > oldest:
            why = f"its records below offset {link.tail.last.log_start} were deleted"
            self._lose(why, link.partition, link.topic_id)

    def note(self, error: Exception) -> None:
        """Keep what went wrong last, for the errors of those who wait."""
        self._shared.note(error, self._now())

    def close(self) -> None:
        """Close the connections."""
        if self.link is not None:
            self.link.close()
        self._search.close()

    def _find(self) -> None:
        name = f"kshare {self._config.group} finds its log"
        self._search.begin(self.sound_link, name, self._wake)

    def _take_found(self, finding: "Future[_Found]") -> bool:
        """See whether the log is the one that was read; False if that is not known yet."""
        if not finding.done():
            return False
        self._search.finding = None
        try:
            partition, topic_id = finding.result()
        except DENIED:
            raise
        except KafkaError as error:
            self.note(error)
            self._find_at = self._now() + self._pauses.pause()
            return True
        self._pauses.reset()
        link = self.link
        if link is None:
            with self._shared.changed:
                self._shared.ownerships.found(topic_id)
                self._follow(partition, topic_id, self._shared.ownerships.log)
        elif topic_id != link.topic_id:
            self._lose("it was deleted and made again", partition, topic_id)
        elif partition != link.partition:
            why = f"partitions were added to its topic, and the group's log is {partition} now"
            self._lose(why, partition, topic_id)
        elif link.truncated:
            self._lose(link.truncated, partition, topic_id)
        else:
            link.is_sure = True
        return True

    def _lose(self, why: str, partition: TopicPartition, topic_id: str) -> None:
        """The log was lost: begin with the next one."""
        assert self.link is not None
        before, end = self.link.partition, self.link.tail.position
        self.link.close()
        with self._shared.changed:
            self._shared.ownerships.lost(topic_id, f"{before}, read up to offset {end}: {why}")
            self._follow(partition, topic_id, self._shared.ownerships.log)

    def _follow(self, partition: TopicPartition, topic_id: str, log: GroupLog) -> None:
        wait_ms = min(_LONGEST_WAIT_MS, self._config.claim_timeout_ms // 4)
        # Another broker may lead instead of one that is silent.
        hasty = self._config.kafka.named(LOG_CLIENT).hasty(ANSWER_MS)
        tail = LogTail(
            hasty, partition, BrokerPool(hasty), self._wake, wait_ms=wait_ms, now=self._now
        )
        writer, self._search.writer = self._search.writer, _log_writer(self._config)
        reader, load = GroupReader(partition, log), LogLoad(self._now())
        self.link = LogLink(partition, topic_id, tail, writer, reader, load)

    def _doubt(self, link: LogLink, error: Exception) -> None:
        """After a fault, the topic may be another one."""
        self.note(error)
        link.tail.drop()
        link.is_sure = False
        self._find_at = link.tail.ask_at


@dataclass(slots=True)
class _Search:
    """Finds the log's topic, or makes it, in a thread of its own.

    Attributes:
        topic: The topic.
        writer: The writer of the next link, which is connected if there is to be one.
        check: Refuses what the brokers lack; called before the log is made.
        finding: The search that is under way, or whose end was not taken; None if there is none.
        refused: Settings that brokers refused when the topic was made here; none if the one that
            was found last is not that one.
    """

    topic: LogTopic
    writer: LogWriter
    check: Callable[[], None]
    finding: Future[_Found] | None = None
    refused: frozenset[str] = frozenset()
    made: str = ""  # the id of the topic that was made here

    def begin(self, known: LogLink | None, name: str, wake: Callable[[], None]) -> None:
        """Begin a search, unless one is under way."""
        if self.finding is None:
            self.finding = begin(partial(self._look, known), name, wake)

    def _look(self, known: LogLink | None) -> _Found:
        if known is None:
            self.check()
            self.writer.connect()
        found, refused = self.topic.find_or_make()
        if refused is not None:
            self.made, self.refused = found[1], refused
        if found[1] != self.made:
            self.refused = frozenset()
        if known is not None and found != (known.partition, known.topic_id):
            self.writer.connect()
        return found

    def close(self) -> None:
        if self.finding is None:
            self._close()
        else:  # another thread uses both
            self.finding.add_done_callback(lambda _: self._close())

    def _close(self) -> None:
        self.writer.close()
        self.topic.close()


def _check_transactions(config: ConsumerConfig, brief: KafkaConfig) -> None:
    if config.transactional_id is not None:
        without = "transactional.id: leave it out; then what is processed is committed without it"
        of = "the consumer's configuration"
        check_transactions(brief, without, feature=Feature.TRANSACTIONS, of=of)


def _log_writer(config: ConsumerConfig) -> LogWriter:
    return LogWriter(config.kafka.named(LOG_CLIENT), timeout_ms=ANSWER_MS)


def _log_topic(config: ConsumerConfig, kafka: KafkaConfig) -> LogTopic:
    return LogTopic(kafka, config.log_topic, config.log_segment_bytes, config.group)


class LogInspector:
    """Looks now and then how the log's topic is made, in a thread of its own.

    ::

        found --> a thread looks --> what loses or keeps too much: a warning, once each
          ^                      --> another partition is the group's log: it was lost
          +---- half a minute ---+

    Args:
        topic: Makes what knows the topic.
        group: Id of the group.
        now: Source of time.
        refused: Settings that brokers refused when the topic was made: that was said then.
    """

    def __init__(
        self,
        topic: Callable[[], LogTopic],
        group: str,
        now: Callable[[], float],
        refused: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self._topic = topic
        self._group = group
        self._now = now
        self._due = float("-inf")
        self._found: tuple[TopicPartition, str] | None = None
        self._refused = refused
        self._said: set[str] = set()
        self._looking = OneCall(f"kshare {group} looks")

    def has_moved(self, partition: TopicPartition, topic_id: str) -> bool:
        """Look if it is time to. Never waits.

        Args:
            partition: The partition that is followed as the group's log.
            topic_id: The topic that it is of.

        Returns:
            True if the last look has found another partition of the same topic.
        """
        now = self._now()
        if now >= self._due and self._looking.begin(self._look):
            self._due = now + _LOOK_SECONDS
        found, self._found = self._found, None
        return found is not None and found[1] == topic_id and found[0] != partition

    def _look(self) -> None:
        try:
            with closing(self._topic()) as topic:
                self._found = topic.find()
                config, safety = topic.config(), topic.safety()
        except KafkaError as error:  # whoever follows the log says it
            _log.debug("cannot look at the log of group %s: %s", self._group, error)
            return
        faults = () if config is None else _faults(config, self._refused())
        for fault in (*_unsafe(*safety), *faults):
            if fault not in self._said:
                self._said.add(fault)
                _log.warning("topic %s, the log of group %s, %s", topic.name, self._group, fault)


def _unsafe(own: Safety, wanted: Safety) -> Iterator[str]:
    """How a log's topic may lose what was committed, and what would be right."""
    if own.replicas < wanted.replicas:
        yield (
            f"has {own.replicas} replicas, and should have {wanted.replicas}, as "
            "__consumer_offsets has or as there are brokers: what was committed is lost with the "
            "brokers that have them. Add replicas with kafka-reassign-partitions"
        )
    if 0 < own.in_sync < wanted.in_sync:
        yield (
            f"has min.insync.replicas={own.in_sync}, and __consumer_offsets {wanted.in_sync}: a "
            f"commit that was answered may be lost with {own.in_sync} of the brokers. Set "
            f"min.insync.replicas to {wanted.in_sync}, if the brokers take that"
        )


def _faults(config: TopicConfig, refused: Collection[str]) -> Iterator[str]:
    """What is wrong with a log's topic, and what would be right, unless that was refused."""
    if config.deletes_last_values:
        yield (
            "deletes old records: what is committed above stable offsets is delivered again once "
            "they are gone, and claims are lost. Set its cleanup.policy to compact"
        )
    if config.compaction_lag_ms > _COMPACTION_LAG_MS_MAX:
        yield (
            f"is compacted late (min.compaction.lag.ms is {config.compaction_lag_ms}): it grows, "
            "and members that start read all of it. Set 0, or some minutes"
        )
    if config.segment_bytes > _SEGMENT_BYTES_MAX and "segment.bytes" not in refused:
        yield (
            f"has large segments (segment.bytes is {config.segment_bytes}): the newest one is not "
            "compacted, and members that start read all of it. Set 10485760, "
            "or as little as the brokers take"
        )
