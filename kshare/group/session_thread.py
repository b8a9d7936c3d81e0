"""The thread of a session: reads the log, does what owners want, and says what has changed.

::

    find the log --> ask, wait for an answer | a wake-up | time --> apply --> owners' actions
         ^                                                                        |
         +---- after a fault: is it the same log? <------------- again <----------+

Nothing in the loop waits for brokers while the log is followed: reads lie at the broker, librdkafka
writes, offsets come as events. So a wake-up is served at once.
"""

import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from kshare.core.progress import TopicPartition
from kshare.errors import (
    AuthenticationError,
    AuthorizationError,
    KafkaError,
    KshareError,
    UnknownTopicError,
)
from kshare.group.group_reader import LIFE_SECONDS, GroupReader
from kshare.group.log_tail import LogLostError, LogTail, boot_time
from kshare.group.log_topic import LogTopic, LogWriter
from kshare.group.model import SessionConfig
from kshare.group.ownerships import Ownership, Ownerships
from kshare.group.primary import PrimaryOffsets, StoredOffset
from kshare.group.protocol.log import GroupLog, members_seen
from kshare.group.protocol.owner import (
    Action,
    Delete,
    FetchPrimary,
    ResolveInitial,
    Write,
    WritePrimary,
)
from kshare.group.protocol.records import (
    Key,
    Member,
    encode,
    encode_key,
)
from kshare.group.protocol.start import Primary
from kshare.wire.protocol.broker_pool import BrokerPool
from kshare.wire.protocol.error_codes import Kind
from kshare.wire.protocol.retry import Backoff

__all__ = ["SessionThread"]

_log = logging.getLogger("kshare.group")

_BEAT_SECONDS: Final = 10.0
_FORGOTTEN_MS: Final = 86_400_000
_LOOK_SECONDS: Final = 1.0
_LONGEST_WAIT_MS: Final = 500
_ANSWER_MS: Final = 5_000
_LASTING: Final = (AuthenticationError, AuthorizationError)
_FATAL: Final = {Kind.AUTHENTICATION, Kind.AUTHORIZATION}

Asked = Sequence[tuple[Ownership, int]]
"""Ownerships that wait for an answer, each with the number of its actions."""


class _Waker:
    """Ends a wait of the session's thread, from any thread."""

    def __init__(self) -> None:
        self._reader, self._writer = -1, -1
        self._lock = threading.Lock()  # a closed descriptor may soon be another file's

    def open(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def wake(self) -> None:
        with self._lock, suppress(OSError):  # full: it is awake already; or closed
            os.write(self._writer, b"!")

    def fileno(self) -> int:
        return self._reader

    def clear(self) -> None:
        with suppress(OSError):
            os.read(self._reader, 4096)

    def close(self) -> None:
        with self._lock:
            os.close(self._reader)
            os.close(self._writer)
            self._reader, self._writer = -1, -1


@dataclass(slots=True)
class _Link:
    """The log as it was found: which one it is, and the ways to it."""

    partition: TopicPartition
    topic_id: str
    tail: LogTail
    writer: LogWriter
    reader: GroupReader
    is_sure: bool = True  # no fault since the topic was found

    def close(self) -> None:
        self.tail.close()
        self.writer.close()


@dataclass(slots=True)
class _Times:
    """When something is to be done next, as of the session's clock."""

    pauses: Backoff
    find: float = 0.0
    beat: float = 0.0
    look: float = 0.0


@dataclass(slots=True)
class Shared:
    """What the session's thread and its callers share; ``changed`` guards all of it."""

    ownerships: Ownerships
    changed: threading.Condition = field(default_factory=threading.Condition)
    fault: KshareError | None = None
    trouble: str = ""
    is_closing: bool = False
    close_by: float = 0.0


class SessionThread:
    """The thread, and what it uses.

    Args:
        config: The consumer's configuration.
        member: Id of the member.
        on_change: Called when what the session says has changed.
        now: Source of time; suspension counts.

    Attributes:
        shared: What callers may use, under its condition.
        primary: The group's offsets.
        read_at: When the log was last known to be read to its end.
        closed: Set when all claims have been given up.
    """

    def __init__(
        self,
        config: SessionConfig,
        member: str,
        on_change: Callable[[], None],
        now: Callable[[], float] = boot_time,
    ) -> None:
        kafka = config.kafka
        self._brief = replace(kafka, api_timeout_ms=min(kafka.api_timeout_ms, _ANSWER_MS))
        self._config = config
        self._member = member
        self._on_change = on_change
        self._now = now
        self._claim_seconds = config.claim_timeout_ms / 1000
        self.shared = Shared(Ownerships(member, config.group, self._claim_seconds))
        self.primary = PrimaryOffsets(self._brief, config.group)
        self.read_at = float("-inf")
        self.closed = threading.Event()
        self._topic = LogTopic(
            self._brief, config.log_topic, config.log_segment_bytes, config.group
        )
        self._link: _Link | None = None
        self._times = _Times(Backoff(kafka.retry_backoff_ms, kafka.retry_backoff_max_ms))
        self._events: deque[Callable[[], None]] = deque()
        self._waker = _Waker()
        self._said: tuple[Any, ...] = ()

    def start(self) -> None:
        """Start the thread."""
        self._waker.open()
        threading.Thread(target=self._run, name=f"kshare {self._member}", daemon=True).start()

    def log_partition(self) -> TopicPartition | None:
        """The partition of the group's log; None if it was not found yet."""
        link = self._link
        return None if link is None else link.partition

    def wake(self) -> None:
        """Let the thread look at what was asked of it."""
        self._waker.wake()

    # -- the loop ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self.shared.is_closing:
                self._step()
            self._leave()
        except KshareError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(KshareError(f"the session's thread has ended: {error!r}"))
            raise
        finally:
            self.closed.set()
            self._close()

    def _step(self) -> None:
        now = self._now()
        if (self._link is None or not self._link.is_sure) and now >= self._times.find:
            self._find()
        if self._link is not None and self._link.is_sure:
            self._ask(self._link)
        self._receive(self._wait())
        self._serve()
        if self._link is not None:
            self._live(self._link)
            self._act(self._link)
        self._report()

    def _wait(self) -> bool:
        """Wait for something to do; return whether the log has answered."""
        poll = select.poll()
        poll.register(self._waker.fileno(), select.POLLIN)
        answer = self._link.tail.fileno if self._link is not None else None
        if answer is not None:
            poll.register(answer, select.POLLIN)
        with self.shared.changed:
            until = min(self.shared.ownerships.next_time(), self._times.beat, self._times.look)
        if self._link is None or not self._link.is_sure:
            until = min(until, self._times.find)
        elif answer is None:
            until = min(until, self._now() + self._link.tail.pause_left)
        seconds = 0.0 if self._events else min(max(until - self._now(), 0.0), _LOOK_SECONDS)
        ready = {descriptor for descriptor, _ in poll.poll(seconds * 1000 + 0.5)}
        if self._waker.fileno() in ready:
            self._waker.clear()
        return answer in ready

    # -- the log -------------------------------------------------------------------------------

    def _find(self) -> None:
        """Find the log's topic, or make it; see whether it is the one that was read."""
        try:
            try:
                partition, topic_id = self._topic.find()
            except UnknownTopicError:
                self._topic.make()
                partition, topic_id = self._topic.find()
        except _LASTING:
            raise
        except KafkaError as error:
            self._trouble(str(error))
            self._times.find = self._now() + self._times.pauses.pause()
            return
        self._times.pauses.reset()
        link = self._link
        if link is None:
            with self.shared.changed:
                self.shared.ownerships.found(topic_id)
                self._follow(partition, topic_id, self.shared.ownerships.log)
        elif (link.partition, link.topic_id) == (partition, topic_id):
            link.is_sure = True
        else:
            self._lose("it was deleted and made again", partition, topic_id)

    def _follow(self, partition: TopicPartition, topic_id: str, log: GroupLog) -> None:
        kafka = self._config.kafka
        wait_ms = min(_LONGEST_WAIT_MS, self._config.claim_timeout_ms // 4)
        tail = LogTail(kafka, partition, BrokerPool(kafka), wait_ms=wait_ms, now=self._now)
        writer = LogWriter(kafka, partition, timeout_ms=_ANSWER_MS)
        reader = GroupReader(partition, log)
        self._link = _Link(partition, topic_id, tail, writer, reader)

    def _lose(self, why: str, partition: TopicPartition, topic_id: str) -> None:
        """The log was lost: begin with the next one."""
        assert self._link is not None
        before, end = self._link.partition, self._link.tail.position
        self._link.close()
        with self.shared.changed:
            self.shared.ownerships.lost(topic_id, f"{before}, read up to offset {end}: {why}")
            self._follow(partition, topic_id, self.shared.ownerships.log)

    def _ask(self, link: _Link) -> None:
        if link.tail.is_overdue(self._claim_seconds):
            self._doubt(link, OSError("the log's broker does not answer"))
            return
        try:
            link.tail.ask()
        except _LASTING:
            raise
        except (OSError, KafkaError) as error:
            self._doubt(link, error)

    def _receive(self, answered: bool) -> None:
        link = self._link
        if link is None or not answered:
            return
        try:
            rows = link.tail.take()
        except LogLostError as error:
            link.tail.drop()
            self._find()  # the topic may be another one
            if self._link is link:
                self._lose(f"it was truncated ({error})", link.partition, link.topic_id)
            return
        except OSError as error:
            self._doubt(link, error)
            return
        with self.shared.changed:
            log = link.reader.log
            for row in rows:
                link.reader.apply(*row)
            log.end = max(log.end, link.tail.position or 0)
            oldest = self.shared.ownerships.oldest_claim()
        if link.tail.caught_up:
            link.reader.check()
        if link.tail.log_start > oldest:
            why = f"its records below offset {link.tail.log_start} were deleted"
            self._lose(why, link.partition, link.topic_id)

    def _doubt(self, link: _Link, error: Exception) -> None:
        """After a fault, the topic may be another one."""
        self._trouble(str(error))
        link.tail.drop()
        link.is_sure = False
        self._times.find = self._now() + link.tail.pause_left

    # -- what owners want ----------------------------------------------------------------------

    def _serve(self) -> None:
        """Take what has happened beside the loop."""
        if self._link is not None:
            self._link.writer.serve()
        while self._events:
            event = self._events.popleft()
            with self.shared.changed:
                event()

    def _act(self, link: _Link) -> None:
        with self.shared.changed:
            ownerships = self.shared.ownerships
            for key in ownerships.give_up():
                self._delete(link, key)
            todo = [
                (ownership, ownership.action, action)
                for ownership, actions in ownerships.advance(self._now())
                for action in actions
            ]
            self.shared.changed.notify_all()
        fetches, offsets = [], {}
        for ownership, number, action in todo:
            match action:
                case FetchPrimary():
                    fetches.append((ownership, number))
                case WritePrimary(offset, anchor):
                    partition = ownership.owner.partition
                    offsets[partition] = (Primary(offset, anchor), (ownership, number))
                case _:
                    self._do(link, ownership, number, action)
        if fetches:
            self._fetch(fetches, link.partition)
        if offsets:
            self._store(offsets)

    def _do(self, link: _Link, ownership: Ownership, number: int, action: Action) -> None:
        match action:
            case Write(records):
                failed = partial(self._not_written, link, ownership, number)
                for record in records:
                    link.writer.append(*encode(self._config.group, record), failed)
            case Delete(keys):
                for key in keys:
                    self._delete(link, key)
            case ResolveInitial():
                partition, reset = ownership.owner.partition, self._config.offset_reset

                def found(offset: int, each: Ownership) -> None:
                    each.owner.initial_found(offset)

                self._beside(
                    lambda: self.primary.initial(partition, reset), found, [(ownership, number)]
                )

    def _delete(self, link: _Link, key: Key) -> None:
        def ignored(error: KafkaError, _: Kind) -> None:
            self._trouble(str(error))  # it is done again with a later commit

        link.writer.append(encode_key(self._config.group, key), None, ignored)

    def _not_written(
        self, link: _Link, ownership: Ownership, number: int, error: KafkaError, kind: Kind
    ) -> None:
        if kind in _FATAL:
            raise error
        link.is_sure = link.is_sure and kind is Kind.TRANSIENT
        self._failed([(ownership, number)], error)

    def _fetch(self, asked: Asked, log: TopicPartition) -> None:
        partitions = [ownership.owner.partition for ownership, _ in asked]

        def work() -> tuple[dict[TopicPartition, StoredOffset], tuple[int, int]]:
            return self.primary.fetch(partitions), self.primary.log_bounds(log)

        def read(
            answer: tuple[dict[TopicPartition, StoredOffset], tuple[int, int]], each: Ownership
        ) -> None:
            stored = answer[0].get(each.owner.partition)
            first, end = answer[1]
            each.owner.primary_read(stored.primary if stored else None, end, first)

        self._beside(work, read, asked)

    def _store(self, offsets: dict[TopicPartition, tuple[Primary, tuple[Ownership, int]]]) -> None:
        answer = self.primary.store({tp: primary for tp, (primary, _) in offsets.items()})

        def stored() -> None:
            outcome: dict[TopicPartition, KafkaError | None]
            try:
                outcome = self.primary.stored(answer)
            except KafkaError as refusal:
                outcome = dict.fromkeys(offsets, refusal)
            for partition, error in outcome.items():
                ownership, number = offsets[partition][1]
                if error is not None:
                    self._failed([(ownership, number)], error)
                elif ownership.action == number:
                    ownership.owner.primary_written()

        answer.add_done_callback(lambda _: self._post(stored))

    def _failed(self, asked: Asked, error: KshareError) -> None:
        if isinstance(error, _LASTING) or not isinstance(error, KafkaError):
            raise error
        self._trouble(str(error))
        for ownership, number in asked:
            ownership.failed(number, str(error), self._now())

    def _beside(
        self, work: Callable[[], Any], done: Callable[[Any, Ownership], None], asked: Asked
    ) -> None:
        """Ask brokers in a thread of its own, and take the answer in this one."""

        def answered(answer: Any) -> None:
            for ownership, number in asked:
                if ownership.action == number:
                    done(answer, ownership)

        def run() -> None:
            try:
                answer = work()
            except KshareError as error:
                self._post(partial(self._failed, asked, error))
            else:
                self._post(partial(answered, answer))

        threading.Thread(target=run, name=f"kshare {self._member} asks", daemon=True).start()

    def _post(self, event: Callable[[], None]) -> None:
        self._events.append(event)
        self._waker.wake()

    # -- life and death ------------------------------------------------------------------------

    def _live(self, link: _Link) -> None:
        """Say that this member is alive, and who is not."""
        now, wall_ms = self._now(), int(time.time() * 1000)
        if now >= self._times.beat:
            self._times.beat = now + _BEAT_SECONDS
            alive = Member(self._member, socket.gethostname(), wall_ms)
            failed = partial(self._not_alive, link)
            link.writer.append(*encode(self._config.group, alive), failed)
        if now >= self._times.look:
            self._times.look = now + _LOOK_SECONDS
            with self.shared.changed:
                log = self.shared.ownerships.log
                living = {*members_seen(log, wall_ms - int(LIFE_SECONDS * 1000)), self._member}
                if link.tail.caught_up:
                    self.shared.ownerships.warn_of_unclaimed(now, living)
                old = log.members.keys() - members_seen(log, wall_ms - _FORGOTTEN_MS).keys()
            for member in old if link.tail.caught_up else ():
                self._delete(link, Key(0, "member", None, (member,)))

    def _not_alive(self, link: _Link, error: KafkaError, kind: Kind) -> None:
        if kind in _FATAL:
            raise error
        link.is_sure = link.is_sure and kind is Kind.TRANSIENT
        self._trouble(str(error))
        self._times.beat = 0.0

    def _report(self) -> None:
        """Say what has changed; only then is what was read acted upon."""
        tail = None if self._link is None else self._link.tail
        was_late = self._now() - self.read_at > self._claim_seconds
        if tail is not None and tail.caught_up and tail.read_at > self.read_at:
            self.read_at = tail.read_at
        is_back = was_late and self._now() - self.read_at <= self._claim_seconds
        with self.shared.changed:
            starts = self.shared.ownerships.by_partition.items()
            said = tuple((tp, id(each.start), each.owner.phase) for tp, each in starts)
        if is_back or said != self._said:
            self._said = said
            self._on_change()

    def _leave(self) -> None:
        """Give up all claims, as far as the time goes."""
        link = self._link
        if link is None:
            return
        with self.shared.changed:
            keys = [*self.shared.ownerships.give_up(), *self.shared.ownerships.claims()]
            seconds = self.shared.close_by - time.monotonic()
        for key in (*keys, Key(0, "member", None, (self._member,))):
            self._delete(link, key)
        link.writer.flush(max(min(seconds, _ANSWER_MS / 1000), 0.0))

    def _fail(self, error: KshareError) -> None:
        with self.shared.changed:
            self.shared.fault = error
            for each in self.shared.ownerships.by_partition.values():
                each.start = None
            self.read_at = float("-inf")
            self.shared.changed.notify_all()
        _log.error("group %s, member %s: %s", self._config.group, self._member, error)
        self._on_change()

    def _close(self) -> None:
        if self._link is not None:
            self._link.close()
        self._topic.close()
        self.primary.close()
        self._waker.close()

    def _trouble(self, why: str) -> None:
        if why != self.shared.trouble:
            _log.info("group %s, member %s: %s", self._config.group, self._member, why)
        self.shared.trouble = why
