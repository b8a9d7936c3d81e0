"""The thread of a session: reads the log, does what owners want, and says what has changed.

::

    find the log --> ask, wait for an answer | a wake-up | time --> apply --> owners' actions
         ^                                                                        |
         +---- after a fault: is it the same log? <------------- again <----------+

Nothing in the loop waits for brokers while the log is followed: reads lie at the broker, librdkafka
writes, offsets come as events. So a wake-up is served at once.
"""

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from kshare.core.progress import TopicPartition
from kshare.errors import (
    KafkaError,
    KshareError,
)
from kshare.group.epoch_writer import EpochWriter
from kshare.group.fencing import fence_ids
from kshare.group.group_reader import LIFE_SECONDS
from kshare.group.life import Life
from kshare.group.log_follower import ANSWER_MS, LASTING, LogFollower, LogLink
from kshare.group.log_tail import boot_time
from kshare.group.model import SessionConfig
from kshare.group.ownerships import Ownership, Ownerships
from kshare.group.primary import PrimaryOffsets, StoredOffset
from kshare.group.protocol.actions import (
    Action,
    Append,
    Delete,
    Fence,
    FetchPrimary,
    ResolveInitial,
    Unblock,
    Write,
    WritePrimary,
)
from kshare.group.protocol.cooperator import Cooperator, Share
from kshare.group.protocol.log import members_seen
from kshare.group.protocol.records import (
    Key,
    Member,
    Record,
    encode,
    encode_key,
)
from kshare.group.protocol.start import Primary
from kshare.group.shared import Shared
from kshare.group.watchdog import Watchdog
from kshare.wire.protocol.error_codes import Kind
from kshare.wire.protocol.waker import Waker

__all__ = ["SessionThread"]

_log = logging.getLogger("kshare.group")

_BEAT_SECONDS: Final = 10.0
_FORGOTTEN_MS: Final = 86_400_000
_LOOK_SECONDS: Final = 1.0

Asked = Sequence[tuple[Ownership, int]]
"""Ownerships that wait for an answer, each with the number of its actions."""


@dataclass(slots=True)
class _Times:
    """When something is to be done next, as of the session's clock."""

    beat: float = 0.0
    look: float = 0.0


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
        epochs: Writes epochs of the group.
        life: Signs of life of members that share partitions without key order.
        epoch_of_member: The group's epoch, and the id of the log's topic; None if it is no member.
    """

    def __init__(
        self,
        config: SessionConfig,
        member: str,
        on_change: Callable[[], None],
        now: Callable[[], float] = boot_time,
    ) -> None:
        kafka = config.kafka
        brief = replace(kafka, api_timeout_ms=min(kafka.api_timeout_ms, ANSWER_MS))
        self._config = config
        self._member = member
        self._on_change = on_change
        self._now = now
        self._claim_seconds = config.claim_timeout_ms / 1000
        ownerships = Ownerships(
            member,
            config.group,
            self._claim_seconds,
            config.transactional_id,
            config.lease_records,
        )
        self.shared = Shared(ownerships)
        self._watchdog = Watchdog(config.group, ownerships)
        self.primary = PrimaryOffsets(brief, config.group)
        self.read_at = float("-inf")
        self.closed = threading.Event()
        self._follower = LogFollower(config, brief, self.shared, now)
        self._times = _Times()
        self._events: deque[Callable[[], None]] = deque()
        self._waker = Waker()
        self._said: tuple[Any, ...] = ()
        self.epochs = EpochWriter(config.group)
        self.life = Life(member, self._claim_seconds)
        self.life.is_on = self._shares = config.lease_records is not None
        self.epoch_of_member: Callable[[], tuple[int, str] | None] = lambda: None

    def start(self) -> None:
        """Start the thread."""
        self._waker.open()
        threading.Thread(target=self._run, name=f"kshare {self._member}", daemon=True).start()

    def log_partition(self) -> TopicPartition | None:
        """The partition of the group's log; None if it was not found yet."""
        link = self._follower.link
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
            with self.shared.changed:
                self.shared.changed.notify_all()  # a commit that is waited for will not be done
            self._close()

    def _step(self) -> None:
        self._follower.ask()
        if self._wait():
            self._follower.receive()
        link = self._follower.link
        self._serve(link)
        self._look(link)
        if link is not None:
            self._obey(link)
            self._live(link)
            if self._shares:
                self._look_at_sharers(link)
            self._act(link)
            self.epochs.serve(link, self.shared.ownerships.log, self._now())
        self._report()

    def _wait(self) -> bool:
        """Wait for something to do; return whether the log has answered."""
        answer = self._follower.fileno
        until = self._follower.next_time
        if self._follower.link is not None:
            with self.shared.changed:
                until = min(until, self.shared.ownerships.next_time())
            until = min(until, self._times.beat, self._times.look, self.epochs.retry_at)
        seconds = 0.0 if self._events else min(max(until - self._now(), 0.0), _LOOK_SECONDS)
        return bool(self._waker.wait(seconds, [] if answer is None else [answer]))

    # -- what owners want ----------------------------------------------------------------------

    def _serve(self, link: LogLink | None) -> None:
        """Take what has happened beside the loop."""
        if link is not None:
            link.writer.serve()
        while self._events:
            event = self._events.popleft()
            with self.shared.changed:
                event()

    def _obey(self, link: LogLink) -> None:
        """If nothing may be written to the log, do without, or end."""
        with self.shared.changed:
            if link.denied is not None and self.shared.ownerships.denied is None:
                self.shared.ownerships.deny(link.denied)

    def _act(self, link: LogLink) -> None:
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

    def _do(self, link: LogLink, ownership: Ownership, number: int, action: Action) -> None:
        match action:
            case Write(records):
                failed = partial(self._not_written, link, ownership, number)
                for record in records:
                    link.writer.append(*encode(self._config.group, record), failed)
            case Delete(keys):
                for key in keys:
                    self._delete(link, key)
            case Append(key, record):
                self._append(link, ownership, key, record)
            case Fence(ids):
                self._beside(
                    partial(self._fence, ids),
                    lambda _, each: each.owner.former_fenced(),
                    [(ownership, number)],
                )
            case Unblock(ids):
                self._beside(partial(self._fence, ids), lambda *_: None, ())
            case ResolveInitial():
                partition, reset = ownership.owner.partition, self._config.offset_reset

                def found(offset: int, each: Ownership) -> None:
                    each.owner.initial_found(offset)

                self._beside(
                    lambda: self.primary.initial(partition, reset), found, [(ownership, number)]
                )

    def _fence(self, transactional_ids: frozenset[str]) -> None:
        with self.shared.changed:
            self.shared.own_fences += self._config.transactional_id in transactional_ids
        fence_ids(self._config.kafka, transactional_ids)

    def _delete(self, link: LogLink, key: Key) -> None:
        def ignored(error: KafkaError, _: Kind) -> None:
            self._follower.note(error)  # it is done again with a later commit

        link.writer.append(encode_key(self._config.group, key), None, ignored)

    def _not_written(
        self, link: LogLink, ownership: Ownership, number: int, error: KafkaError, kind: Kind
    ) -> None:
        link.not_taken(error, kind)
        if link.denied is None:
            self._failed([(ownership, number)], error)

    def _append(self, link: LogLink, ownership: Ownership, key: Key, record: Record | None) -> None:
        def failed(error: KafkaError, kind: Kind) -> None:
            link.not_taken(error, kind)
            self._follower.note(error)
            if isinstance(ownership.owner, Cooperator):
                ownership.owner.not_appended(key)

        value = None if record is None else encode(self._config.group, record)[1]
        link.writer.append(encode_key(self._config.group, key), value, failed)

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
        try:
            answer = self.primary.store({tp: primary for tp, (primary, _) in offsets.items()})
        except KafkaError as error:  # the client cannot be made
            self._failed([asked for _, asked in offsets.values()], error)
            return

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
        if isinstance(error, LASTING) or not isinstance(error, KafkaError):
            raise error
        self._follower.note(error)
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
            except Exception as error:  # else what was asked for would be waited for, for ever
                why = KshareError(f"group {self._config.group}: asking brokers failed: {error!r}")
                why.__cause__ = error
                self._post(partial(self._failed, asked, why))
            else:
                self._post(partial(answered, answer))

        threading.Thread(target=run, name=f"kshare {self._member} asks", daemon=True).start()

    def _post(self, event: Callable[[], None]) -> None:
        self._events.append(event)
        self._waker.wake()

    # -- life and death ------------------------------------------------------------------------

    def _live(self, link: LogLink) -> None:
        """Say that this member is alive."""
        if link.denied is not None:
            return
        now, wall_ms = self._now(), int(time.time() * 1000)
        if now >= self._times.beat:
            self._times.beat = now + (self.life.pause if self.life.is_on else _BEAT_SECONDS)
            self.life.sent(wall_ms, now)
            host = self._config.application_server or socket.gethostname()
            alive = Member(self._member, host, wall_ms)
            failed = partial(self._not_alive, link)
            link.writer.append(*encode(self._config.group, alive), failed)

    def _look(self, link: LogLink | None) -> None:
        """See now and then what stands still, and forget members that are long gone."""
        now, wall_ms = self._now(), int(time.time() * 1000)
        if now < self._times.look:
            return
        self._times.look = now + _LOOK_SECONDS
        with self.shared.changed:
            self._watchdog.warn_of_starts(now, self.shared.trouble)
            if link is None or not link.tail.caught_up:
                return
            log = self.shared.ownerships.log
            living = {*members_seen(log, wall_ms - int(LIFE_SECONDS * 1000)), self._member}
            self._watchdog.warn_of_unclaimed(now, living)
            old = log.members.keys() - members_seen(log, wall_ms - _FORGOTTEN_MS).keys()
        for member in old:
            self._delete(link, Key(0, "member", None, (member,)))

    def _look_at_sharers(self, link: LogLink) -> None:
        """See which members with shared partitions are dead, and whether this one counts as such.

        Before a sign of life that comes late is taken for one.
        """
        now, epoch = self._now(), self.epoch_of_member()
        with self.shared.changed:
            ownerships = self.shared.ownerships
            if self.life.has_lapsed(now):
                ownerships.renew("the log was not reached for claim.timeout.ms")
            self.life.read(ownerships.log)
            ownerships.stay(epoch)
            if link.tail.caught_up and self.life.seconds_left(now) > 2 * self.life.pause:
                read_at = link.tail.read_at
                ownerships.deem_silent(
                    self.life.silent(ownerships.log, ownerships.sharers(), now=now, read_at=read_at)
                )

    def _not_alive(self, link: LogLink, error: KafkaError, kind: Kind) -> None:
        link.not_taken(error, kind)
        self._follower.note(error)
        self._times.beat = 0.0  # again, with the next step

    def _report(self) -> None:
        """Say what has changed; only then is what was read acted upon."""
        tail = None if self._follower.link is None else self._follower.link.tail
        was_late = self._now() - self.read_at > self._claim_seconds
        if tail is not None and tail.caught_up and tail.read_at > self.read_at:
            self.read_at = tail.read_at
        is_back = was_late and self._now() - self.read_at <= self._claim_seconds
        with self.shared.changed:
            ownerships = self.shared.ownerships
            said = tuple(
                (tp, id(each.start), each.owner.phase, _offered(ownerships.share(tp)))
                for tp, each in ownerships.by_partition.items()
            )
        if is_back or said != self._said:
            self._said = said
            self._on_change()

    def _leave(self) -> None:
        """Give up all claims, as far as the time goes."""
        link = self._follower.link
        if link is None:
            return
        with self.shared.changed:
            keys = [*self.shared.ownerships.give_up(), *self.shared.ownerships.claims()]
            seconds = self.shared.close_by - time.monotonic()
        keys = [] if self.shared.keeps_claims else keys
        for key in (*keys, Key(0, "member", None, (self._member,))):
            self._delete(link, key)
        link.writer.flush(max(min(seconds, ANSWER_MS / 1000), 0.0))

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
        self._follower.close()
        self.primary.close()
        self._waker.close()


def _offered(share: Share | None) -> object:
    """What callers wait for of a share."""
    return None if share is None else (share.held, share.free, share.is_asking)
