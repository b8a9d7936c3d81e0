"""A streaming query as a member of a key-shared group: it publishes what it has processed.

The query goes by its checkpoint. So facts are written after Spark has noted that their batch is
done, and what the group says never changes what the query reads, but where it starts.

Guarantees: :meth:`QueryMember.commit` waits for nothing but a session whose right has lapsed, as
after a suspension: others may have worked in its place, and a look at the group's log shows that.
A fault is a warning, and the next commit says all of it again; only a fence is an error, as two
readers would break the order of keys. Nothing is opened before the first call, and a process that
is killed leaves nothing but its claims, which its successor takes over.

Cost: a thread that follows the group's log, one that commits, and two round trips a commit.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

from kshare.core.backoff import Backoff
from kshare.core.hashing import KeyRanges
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import FencedError, FetchTimeoutError, GroupAliveError, KafkaError, KshareError
from kshare.group.config.table import ConsumerConfig
from kshare.group.core.query_starts import QueryStarts
from kshare.group.delivery_start import DeliveryStart
from kshare.group.session.session import GroupSession
from kshare.group.tools.description import describe_group
from kshare.group.tools.offsets import GroupOffsets
from kshare.kafka.protocol.retry import CHANCE
from kshare.kafka.topics import INDIVIDUAL_COMMITS_TOPIC
from kshare.options import KafkaConfig

__all__ = ["QueryMember"]

_log = logging.getLogger("kshare.planner")

_TAKEOVER_MS: Final = 3_000
"""Time that a query that starts from its group waits for members that may still deliver."""
_RESTART_MS: Final = 1_000
"""Claim timeout of a query that resumes from its checkpoint; it usually replaces its own dead
planner."""
_AGAIN_SECONDS: Final = 5.0
"""Seconds between looks at the group: others' commits move the stable offset of an idle query."""
_FLUSH_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.02
_LOOKS: Final = 250
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 1_000, 30_000


class QueryMember:
    """The member of a group that a query's planner is. For use by one thread.

    Args:
        kafka: How to reach the cluster.
        group: Id of the group.
        hashes: The key hashes that the query reads of a partition.
        log_topic: The topic of the group's log; None: the default.
        session: Makes the session with the log.
        clock: Seconds.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        group: str,
        hashes: Callable[[TopicPartition], KeyRanges],
        *,
        log_topic: str | None = None,
        session: Callable[[ConsumerConfig], GroupSession] = GroupSession,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = ConsumerConfig(
            kafka=kafka,
            group=group,
            log_topic=log_topic or INDIVIDUAL_COMMITS_TOPIC,
            offset_reset=self._initial_offset,
            is_query=True,
        )
        self._hashes = hashes
        self._clock = clock
        self._claims = _Claims(self._config, hashes, session)
        self._wanted: dict[TopicPartition, Progress] = {}
        self._sent: dict[TopicPartition, Progress] = {}
        self._executor: ThreadPoolExecutor | None = None
        self._answer: Future[None] | None = None
        self._pace = _Pace()

    def committed(
        self, partitions: Collection[TopicPartition], /
    ) -> dict[TopicPartition, Progress]:
        """The group's progress in some partitions; empty without commits.

        Raises:
            CommitLogError: A record of the group cannot be read.
            KafkaError: The cluster did not answer, or refused.
        """
        config = self._config
        with closing(GroupOffsets(config.group, config.kafka, config.log_topic)) as offsets:
            known = offsets.committed()
        return {tp: known[tp].progress for tp in partitions if tp in known}

    def join(self, partitions: Collection[TopicPartition], /) -> dict[TopicPartition, Progress]:
        """Claim what the query reads of some partitions, and wait for those who had it.

        Returns:
            What the group has processed. A partition without an offset begins at its earliest.

        Raises:
            GroupAliveError: The group has members that subscribe: they would claim all back.
            FencedError: Another member has claimed them meanwhile.
            KshareError: The group's log cannot be used.
        """
        self._refuse_subscribers()
        session = self._claims.claim(partitions, _TAKEOVER_MS)
        return {tp: start.done for tp, start in self._started(session, partitions).items()}

    def _refuse_subscribers(self) -> None:
        group = self._config.group
        try:
            members = describe_group(self._config.kafka, group).members or {}
        except KafkaError as error:  # as brokers that do not say: a fence would end the query
            _log.warning(
                "cannot see whether group %s has members that subscribe, which would claim back "
                "what this query reads: %s",
                group,
                error,
            )
            return
        if members:
            names = sorted(f"{each.client_id} on {each.host}" for each in members.values())
            raise GroupAliveError(
                f"group {group} has members that subscribe: {', '.join(names)}; stop them, as they "
                "would claim back what this query reads. One that was killed counts as alive for "
                "its session.timeout.ms"
            )

    def commit(self, processed: Mapping[TopicPartition, Progress], /) -> None:
        """Begin to publish what the query has processed of each partition, in total.

        If the session has lost its right, because this process was suspended, or the log could not
        be read: waits until it has it again, for 5 s at most. While a commit is under way the
        newest progress is kept, and sent by a later call.

        Raises:
            FencedError: Another member has claimed key hashes that the query reads.
        """
        self._wanted = dict(processed)
        self._serve()

    def flush(self, seconds: float = _FLUSH_SECONDS) -> None:
        """Wait for what was given to :meth:`commit`, unless it has failed just now.

        Args:
            seconds: Maximum time to wait, beside that of :meth:`commit`.

        Raises:
            FencedError: As for :meth:`commit`.
        """
        deadline = self._clock() + seconds
        for _ in range(2):  # one may be under way, and another one waits for it
            self._serve()
            if self._answer is None or self._answer is self._pace.waited_for:
                return
            wait([self._answer], timeout=max(deadline - self._clock(), 0.0))
            self._pace.waited_for = self._answer
        self._serve()

    def close(self) -> None:
        """Publish what is left, and leave the group."""
        try:
            self.flush()
        except FencedError as error:
            _log.warning("%s", error)
        self._claims.close(_FLUSH_SECONDS)
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
        if self._answer is None or self._answer.cancelled():
            return
        if (failed := self._answer.exception()) is not None:
            self._warn_of(failed, "and its next run says it again")

    # -- commits ---------------------------------------------------------------------------

    def _serve(self) -> None:
        """Take the outcome of the commit under way, and begin the next one if it is time to."""
        if self._answer is not None and self._answer.done():
            answer, self._answer = self._answer, None
            self._take(answer.exception())
        # Also while a commit is under way: the next batch is planned once this returns.
        self._claims.wait_for_right()
        self._claims.raise_fence(self._wanted)
        if self._answer is not None:
            return
        now = self._clock()
        is_said = _are_same(self._sent, self._wanted)
        if not self._wanted or now < (self._pace.again_at if is_said else self._pace.retry_at):
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "kshare-commits")
        self._sent, self._pace.again_at = self._wanted, now + _AGAIN_SECONDS
        self._answer = self._executor.submit(self._publish, self._wanted)

    def _publish(self, processed: Mapping[TopicPartition, Progress]) -> None:
        """Commit, and wait for it; in a thread of its own."""
        try:
            session = self._claims.claim(processed, _RESTART_MS)
            starts = self._started(session, processed)
            own = {tp: progress.within(self._hashes(tp)) for tp, progress in processed.items()}
            session.commit(own, self._seconds, starts=starts)
        except (FencedError, FetchTimeoutError):
            raise  # the session goes on
        except Exception:
            self._claims.close(0.0)  # it may have ended: the next attempt makes another one
            raise

    def _started(
        self, session: GroupSession, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, DeliveryStart]:
        """The starts of some partitions; waits for them."""
        while True:
            started = session.started()
            if all(tp in started for tp in partitions):
                self._claims.raise_if_passed_by(self._wanted)
                return {tp: started[tp] for tp in partitions}
            session.commit(dict.fromkeys(partitions, Progress.at(0)), self._seconds)

    def _take(self, error: BaseException | None) -> None:
        if error is None:
            self._pace.succeeded()
            return
        self._sent = {}
        if isinstance(error, FencedError):
            raise error
        self._pace.retry_at = self._clock() + self._pace.backoff.pause()
        self._warn_of(error, "and tries again")

    def _warn_of(self, error: BaseException, then: str) -> None:
        level = logging.DEBUG if str(error) == self._pace.warned else logging.WARNING
        self._pace.warned = str(error)
        _log.log(
            level,
            "individual commits of group %s were not written (commitOffsets; the query does not "
            "depend on it, %s): %s",
            self._config.group,
            then,
            error,
        )

    @property
    def _seconds(self) -> float:
        return self._config.kafka.api_timeout_ms / 1000

    def _initial_offset(self, partition: TopicPartition) -> int | None:
        """The start of a group without offsets: the query's position, if it reads all hashes.

        Otherwise another query may be behind it with the other hashes.
        """
        reads_all = self._hashes(partition).is_all
        position = self._wanted.get(partition)
        return position.stable if reads_all and position is not None else None


class _Claims:
    """The session of a query, and what it has claimed."""

    def __init__(
        self,
        config: ConsumerConfig,
        hashes: Callable[[TopicPartition], KeyRanges],
        make: Callable[[ConsumerConfig], GroupSession],
    ) -> None:
        self._config = config
        self._hashes = hashes
        self._make = make
        self._session: GroupSession | None = None
        self._claimed: dict[TopicPartition, KeyRanges] = {}
        self._starts = QueryStarts()  # also of sessions before: a fault may have ended one
        self._has_waited = False  # for a right that has not come back since

    def claim(self, partitions: Collection[TopicPartition], timeout_ms: int) -> GroupSession:
        """The session, with what the query reads of these partitions claimed."""
        wanted = {tp: self._hashes(tp) for tp in partitions}
        if self._session is None:
            config = replace(self._config, claim_timeout_ms=timeout_ms)
            self._session, self._claimed = self._make(config), {}
        self._session.check()  # what others have taken is not to be claimed back
        if wanted != self._claimed:
            self._session.claim(wanted)
            self._claimed = wanted
        return self._session

    def wait_for_right(self) -> None:
        """Wait until the session has its right again, if it had one; once, until it has.

        A process that was suspended plans its next batch by what it knew before. Only once the log
        is read again, and all claims stand, :meth:`raise_fence` sees who has worked in its place.
        A fault ends the wait: the next commit reports it. Looks are counted, not seconds: a process
        may be suspended here, too.
        """
        session = self._session
        if session is None:
            return
        for _ in range(1 if self._has_waited else _LOOKS):
            known = self._starts.partitions & self._claimed.keys()
            may_deliver, started = session.seconds_to_deliver() >= 0, session.started().keys()
            if not known or (may_deliver and known <= started):
                self._has_waited = False
                return
            try:
                session.check()
            except KshareError:
                return
            if session is not self._session:  # a fault has ended it
                return
            time.sleep(_LOOK_SECONDS)
        if not self._has_waited:
            what = (
                "its claims do not stand yet"
                if may_deliver
                else "its log was not read for longer than others wait"
            )
            _log.warning(
                "group %s: %s, nor did that change in %.0f s: the query goes on by its checkpoint, "
                "and is stopped once the log says that others have worked in its place",
                self._config.group,
                what,
                _LOOKS * _LOOK_SECONDS,
            )
        self._has_waited = True

    def raise_fence(self, processed: Mapping[TopicPartition, Progress]) -> None:
        """Raise if another member has claimed some of it; other faults are those of commits.

        Args:
            processed: What the query has processed of each partition, in total.

        Raises:
            FencedError: Another member has, or has committed what the query is to read.
        """
        session = self._session
        if session is None:
            return
        try:
            session.check()
            self.raise_if_passed_by(processed)
        except FencedError:
            raise
        except Exception as error:  # the next commit reports it
            _log.debug("%s", error)

    def raise_if_passed_by(self, processed: Mapping[TopicPartition, Progress]) -> None:
        """Raise if others have worked in the place of the query, and left no claim.

        Args:
            processed: What the query has processed of each partition, in total.

        Raises:
            FencedError: They have committed what the query has not processed.
        """
        session = self._session
        if session is None:
            return
        for partition, start in session.started().items():
            hashes = self._hashes(partition)
            passed = self._starts.passed_by(
                partition,
                start,
                session.incarnation(partition),
                hashes=hashes,
                processed=processed.get(partition, start.done),
            )
            if passed:
                first = passed[0].offsets.start
                raise FencedError(
                    f"{partition}: another member of group {self._config.group} has committed "
                    f"offset {first}, which this query has not processed, while the query did not "
                    "read the group's log for longer than others wait: two have read the same. "
                    "Start the query again once only one reads these key hashes: it goes on from "
                    "its checkpoint",
                    topic=partition.topic,
                    partition=partition.partition,
                    hashes=tuple((part.lo, part.hi) for part in hashes),
                    other=None,
                )

    def close(self, seconds: float) -> None:
        """End the session; a later claim makes another one."""
        session, self._session = self._session, None
        if session is not None:
            session.close(seconds)


@dataclass(slots=True)
class _Pace:
    """The time of the next commit.

    Attributes:
        again_at: Before this time, nothing is said that was said already.
        retry_at: Before this time, nothing is said at all: something has failed.
        backoff: Pauses after failures.
        warned: What the last warning said; empty after a success.
        waited_for: The commit for which :meth:`QueryMember.flush` has waited last.
    """

    again_at: float = 0.0
    retry_at: float = 0.0
    backoff: Backoff = field(
        default_factory=lambda: Backoff(_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS, CHANCE.uniform)
    )
    warned: str = ""
    waited_for: Future[None] | None = None

    def succeeded(self) -> None:
        """A commit was written."""
        self.retry_at, self.warned = 0.0, ""
        self.backoff.reset()


def _are_same(
    ours: Mapping[TopicPartition, Progress], theirs: Mapping[TopicPartition, Progress]
) -> bool:
    """True if two say the same; quickly, where they hold the same objects."""
    return ours.keys() == theirs.keys() and all(
        ours[tp] is theirs[tp] or ours[tp] == theirs[tp] for tp in ours
    )
