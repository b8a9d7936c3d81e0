"""Offsets for the owners of a session, of the group's coordinator and of partitions' leaders.

::

    owner's action --> a thread that asks --> an event, taken with the lock held --+
          ^        --> offsets: an event when stored --------------------------+   |
          +------------------------- the owner's next action <-----------------+---+

Guarantees: nothing here waits for brokers in the session's thread; an answer to an action that the
owner no longer waits for is dropped. What several partitions want at a time is one question. No log
is read or written: :mod:`.broker_actions` adds it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from kshare.core.progress import TopicPartition
from kshare.core.showing import shown
from kshare.errors import KafkaError, KshareError, UnknownTopicError
from kshare.group.config.table import ConsumerConfig
from kshare.group.core.ownership import Ownership
from kshare.group.log.log_link import DENIED
from kshare.group.log.primary import PrimaryOffsets, StoredOffset
from kshare.group.protocol.commit_log.start import Primary
from kshare.group.protocol.owners.actions import Action, FetchPrimary, ResolveInitial, WritePrimary
from kshare.group.protocol.owners.owner import Owner
from kshare.group.session.shared import Shared
from kshare.kafka.protocol.background import Beside
from kshare.kafka.protocol.error_codes import ErrorCode
from kshare.options import KafkaConfig

__all__ = ["NO_LOG", "Asker", "Bounds", "Fetched", "OffsetActions", "Wanted"]

Asker: TypeAlias = tuple[Ownership, int]
"""An ownership that waits for an answer, with the number of its actions."""
Askers: TypeAlias = Sequence[Asker]
Wanted: TypeAlias = tuple[Ownership, int, Action]
"""An ownership, the number of its actions, and one of them."""
Bounds: TypeAlias = tuple[int, int]
"""The first offset of the log, and its end."""
Fetched: TypeAlias = tuple[dict[TopicPartition, StoredOffset], Bounds]
"""The primary offsets of partitions, and the bounds of the log after that."""
Fetch: TypeAlias = Callable[[Sequence[TopicPartition]], Fetched]
_OUT_OF_GROUP: Final = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
"""Answers to a member that its group has dropped."""
NO_LOG: Final[Bounds] = (0, 0)
"""The bounds where there is no log."""


class OffsetActions:
    """Does what owners want of brokers, but for the log. For the session's thread.

    Args:
        config: The consumer's configuration.
        brief: How to reach the cluster, with a short time for an answer.
        shared: What the session owns.
        now: The session's source of time.
        beside: Asks brokers, and has answers taken by the session's thread.

    Attributes:
        primary: The group's offsets.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        brief: KafkaConfig,
        shared: Shared,
        now: Callable[[], float],
        beside: Beside,
    ) -> None:
        self.primary = PrimaryOffsets(brief, config.group)
        self._config = config
        self._brief = brief
        self._shared = shared
        self._now = now
        self._beside = beside

    def act_on_offsets(self) -> None:
        """Do what owners want now, in a group that keeps no log."""
        left = self._do_offsets(self._wanted(), lambda tps: (self.primary.fetch(tps), NO_LOG))
        assert not left, f"without a log: {left}"

    def _wanted(self) -> list[Wanted]:
        """The actions that owners want now. Takes the lock."""
        with self._shared.changed:
            todo = [
                (ownership, ownership.action_number, action)
                for ownership, actions in self._shared.ownerships.advance(self._now())
                for action in actions
            ]
            self._shared.changed.notify_all()
        return todo

    def _do_offsets(self, todo: Iterable[Wanted], fetch: Fetch) -> list[Wanted]:
        """Do what is about offsets; the rest."""
        fetches: list[Asker] = []
        initials: list[Asker] = []
        offsets: dict[TopicPartition, tuple[Primary, Asker]] = {}
        left: list[Wanted] = []
        for ownership, number, action in todo:
            match action:
                case FetchPrimary():
                    fetches.append((ownership, number))
                case ResolveInitial():
                    initials.append((ownership, number))
                case WritePrimary(offset, anchor, leader_epoch):
                    primary = Primary(offset, anchor, leader_epoch)
                    offsets[ownership.owner.partition] = (primary, (ownership, number))
                case _:
                    left.append((ownership, number, action))
        if fetches:
            self._fetch(fetches, fetch)
        if initials:
            self._resolve(initials)
        if offsets:
            self._store(offsets)
        return left

    def _fetch(self, askers: Askers, fetch: Fetch) -> None:
        partitions = [ownership.owner.partition for ownership, _ in askers]

        def read(answer: Fetched, each: Ownership) -> None:
            stored, (first, end) = answer[0].get(each.owner.partition), answer[1]
            each.owner.primary_read(stored.primary if stored else None, end, first)

        self._ask(lambda: fetch(partitions), read, askers)

    def _resolve(self, askers: Askers) -> None:
        partitions = [ownership.owner.partition for ownership, _ in askers]

        def found(answers: dict[TopicPartition, int | KafkaError], each: Ownership) -> None:
            answer = answers[each.owner.partition]
            if isinstance(answer, KafkaError):
                self._failed([(each, each.action_number)], answer)
            else:
                each.owner.initial_found(answer)

        self._ask(
            lambda: self.primary.initial(partitions, self._config.offset_reset), found, askers
        )

    def _store(self, offsets: dict[TopicPartition, tuple[Primary, Asker]]) -> None:
        member = self._shared.member
        answer = self.primary.store(
            {tp: primary for tp, (primary, _) in offsets.items()},
            None if member is None else member.commit,
        )

        def stored() -> None:
            outcome: dict[TopicPartition, KafkaError | None]
            try:
                outcome = self.primary.stored(answer)
            except KafkaError as refusal:
                outcome = dict.fromkeys(offsets, refusal)
            for partition, (_, (ownership, number)) in offsets.items():
                owner, error = ownership.owner, outcome.get(partition)
                if partition not in outcome or self._is_dropped(owner, error):
                    if ownership.waits_for(number):
                        owner.dropped()
                elif isinstance(error, UnknownTopicError) and ownership.topic_unknown(
                    number, error, self._now()
                ):
                    if owner.has_facts:
                        self._notice(owner, error)
                elif error is not None and not self._is_needless(owner, error):
                    self._failed([(ownership, number)], error)
                else:
                    ownership.primary_written(number)

        answer.add_done_callback(lambda _: self._beside.post(stored))

    def _is_dropped(self, owner: Owner, error: KafkaError | None) -> bool:
        """True if the coordinator knows the member no more, and no log says what it has done."""
        code = None if error is None else error.code
        return code in _OUT_OF_GROUP and not owner.has_facts and self._shared.member is not None

    def _is_needless(self, owner: Owner, error: KafkaError) -> bool:
        """True if a primary offset that is refused need not be tried again.

        That is amid a rebalance as the session closes, if the log says all and the next owner reads
        it: without an epoch, that may be a plain consumer.
        """
        is_said = owner.claim.epoch is not None and owner.has_facts
        is_amid_rebalance = error.code == ErrorCode.REBALANCE_IN_PROGRESS
        is_late = is_amid_rebalance and self._now() >= self._shared.primary_by
        if is_said and is_late:
            self._notice(owner, error)
        return is_said and is_late

    def _notice(self, owner: Owner, error: KafkaError) -> None:
        """A primary offset is not stored, which is no loss."""
        said = f"{owner.partition}: {error}; what is processed is in the log"
        self._shared.notices.append(said)

    def _failed(self, askers: Askers, error: KshareError) -> None:
        if isinstance(error, DENIED) or not isinstance(error, KafkaError):
            raise error
        self.note(error)
        for ownership, number in askers:
            ownership.failed(number, str(error), self._now())

    def _ask(
        self,
        work: Callable[[], Any],
        done: Callable[[Any, Ownership], None],
        askers: Askers,
    ) -> None:
        """Ask brokers in a thread of its own, and take the answer in the session's."""

        def answered(answer: Any) -> None:
            for ownership, number in askers:
                if ownership.waits_for(number):
                    done(answer, ownership)

        def failed(error: Exception) -> None:
            why = error
            if not isinstance(error, KshareError):
                why = KshareError(
                    f"group {self._config.group}: asking brokers failed: {shown(error)}"
                )
                why.__cause__ = error
            assert isinstance(why, KshareError)
            self._failed(askers, why)

        self._beside.begin(work, f"kshare {self._config.group} asks", answered, failed)

    def note(self, error: KafkaError) -> None:
        """Keep what went wrong last, for the errors of those who wait."""
        self._shared.note(error, self._now())

    def close(self) -> None:
        """Close the connections."""
        self.primary.close()
