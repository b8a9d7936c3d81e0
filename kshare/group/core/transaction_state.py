"""The one transaction of a member: how far it is, what is to be done next, and when it gives up.

::

    NONE --begin--> OPEN --ask_commit--> COMMITTING --written--> ENDING --committed--> NONE
                     |                       |                      |
                     +---------------------abort--------------------+
                               |                          |
                               | nothing was begun        | it was
                               v                          v
        NONE <--rewound-- REWINDING <-----decided----- DOUBTFUL

Guarantees: nothing is begun, nothing is handed out and no hash is given up before the last
transaction is decided and delivery has gone back. Doubt comes first: what is given up counts as
undecided until an answer says otherwise, so an interrupt at any place loses nothing.

What asks brokers and waits is :mod:`kshare.group.consumer.transaction`; the explorers do, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from kshare.core.progress import TopicPartition
from kshare.group.delivery_start import DeliveryStart
from kshare.group.protocol.commit_log.commit import PurgatoryState

__all__ = [
    "GiveUp",
    "Outlook",
    "ProducerEpoch",
    "Stage",
    "Starts",
    "TransactionAction",
    "TransactionState",
]

Starts: TypeAlias = Mapping[TopicPartition, DeliveryStart | None]
"""From where each partition is delivered; None for none."""


class Stage(Enum):
    """How far a transaction is."""

    NONE = "there is none"
    OPEN = "what is handed out belongs to it"
    COMMITTING = "it commits as soon as it may"
    ENDING = "its facts are being written, and the coordinator is asked to commit"
    DOUBTFUL = "it is given up, and what became of it is not known"
    REWINDING = "it is decided, and delivery is to go back to what the log says"


_TIMEOUT_SHARE: Final = 0.9
"""The part of a transaction's time after which it gives up waiting."""
_OPEN: Final = (Stage.OPEN, Stage.COMMITTING, Stage.ENDING)


class TransactionAction(Enum):
    """What is to be done next."""

    NOTHING = "nothing"
    WAIT = "look again when the log, the group or the time has moved on"
    BEGIN = "begin at the brokers, with a producer of a new epoch if there is none"
    WRITE = "write what is processed as its last records, and ask the coordinator to commit"
    FENCE = "fence the own transactional id, until nothing of it is open"
    REWIND = "deliver again from what the log says"


class GiveUp(Enum):
    """Why a transaction cannot commit."""

    CLOSED = "the consumer was closed"
    TORN = "the delivery of a partition began again meanwhile"
    NOT_OWN = (
        "is not this consumer's any more, or its offsets were reset, or the group's log was lost"
    )
    OVERTAKEN = "what comes before it has become the member's own"
    LATE = "others have not processed what comes before it"
    DISTURBED = "key hashes were assigned anew while it waited for what comes before its records"
    DROPPED = "the member was dropped from its group, and others may have its key hashes"
    UNPROVEN = "the group's log or its coordinator does not answer"


@dataclass(frozen=True, slots=True)
class ProducerEpoch:
    """The epoch of a producer.

    Attributes:
        ready_at: When it was there, by the clock of the log's reads.
        own_fences: How often the session had fenced its own id before the epoch was asked for.
    """

    ready_at: float
    own_fences: int


@dataclass(frozen=True, slots=True)
class Outlook:
    """The state of a session that a transaction needs to decide its commit, at one moment.

    Attributes:
        starts: From where each of its partitions is delivered now, by all that was read.
        purgatory: Whether what comes before its records is processed.
        read_at: When the log was last asked for that was read to its end.
        is_alive: Whether nobody can have taken over the key hashes, as they are sure that the
            session lives. Else others may have had them and given them up again, and compaction
            leaves nothing of that in the log.
        is_lost: Whether the member was dropped from its group.
        is_disturbed: Whether key hashes are about to be taken away or given.
        is_closed: Whether the consumer is closed: then it waits for nothing any more.
    """

    starts: Starts
    purgatory: PurgatoryState
    read_at: float
    is_alive: bool = True
    is_lost: bool = False
    is_disturbed: bool = False
    is_closed: bool = False


class TransactionState:
    """The transaction of one member, and its producer's epoch.

    Args:
        timeout: ``transaction.timeout.ms``, in seconds.

    Attributes:
        stage: How far it is.
        epoch: The producer's epoch; None: the next one needs a new producer.
        is_begun: Whether the brokers may hold records of it.
        aborts: Number of transactions that were given up.
        gives_up: When it does, by the clock of those who wait.
    """

    def __init__(self, timeout: float = float("inf")) -> None:
        self.stage = Stage.NONE
        self.epoch: ProducerEpoch | None = None
        self.is_begun = False
        self.aborts = 0
        self.gives_up = float("inf")
        self._patience = timeout * _TIMEOUT_SHARE
        self._mark: object = None
        self._starts: Starts | None = None  # None: delivery began again amid it

    # -- what holds --------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """True if what was handed out belongs to one that is neither committed nor given up."""
        return self.stage in _OPEN

    @property
    def may_take(self) -> bool:
        """True if what is handed out now belongs to it."""
        return self.stage is Stage.OPEN

    @property
    def is_settled(self) -> bool:
        """True if the last one is decided: hashes may be given up, and another one may begin."""
        return self.stage is Stage.NONE

    @property
    def keeps_claims(self) -> bool:
        """True if others have to find its id in the log, to have it decided."""
        return self.is_open or self.stage is Stage.DOUBTFUL

    def is_own(self, starts: Starts) -> bool:
        """Return True if all that it processes was delivered from these starts."""
        if self._starts is None:
            return False
        return all(starts.get(partition) == start for partition, start in self._starts.items())

    def _has_read(self, outlook: Outlook) -> bool:
        """True if the log was read by a request that was sent after the epoch was there.

        So a fenced member that gets another producer epoch first sees its successor's claim.
        """
        return self.epoch is not None and outlook.read_at > self.epoch.ready_at

    # -- what is to be done ------------------------------------------------------------------

    @property
    def recovery(self) -> TransactionAction:
        """What is to be done before anything else begins; nothing if the last one is decided."""
        if self.stage is Stage.DOUBTFUL:
            return TransactionAction.FENCE
        if self.stage is Stage.REWINDING:
            return TransactionAction.REWIND
        return TransactionAction.NOTHING

    def next_action(self, outlook: Outlook, now: float) -> TransactionAction | GiveUp:
        """What brings it nearer to its commit; changes nothing.

        Args:
            outlook: What it sees now.
            now: The time, by the clock of those who wait.
        """
        assert self.stage is Stage.COMMITTING
        refusal = self._refusal(outlook)
        if refusal is not None:
            return refusal
        if outlook.purgatory is not PurgatoryState.OPEN:
            return GiveUp.DISTURBED if outlook.is_disturbed else self._wait(now, GiveUp.LATE)
        if not self.is_begun:
            return TransactionAction.BEGIN
        if self._has_read(outlook) and outlook.is_alive:
            return TransactionAction.WRITE
        # One that was dropped joins again only once the transaction is over.
        return GiveUp.DROPPED if outlook.is_lost else self._wait(now, GiveUp.UNPROVEN)

    def _wait(self, now: float, late: GiveUp) -> TransactionAction | GiveUp:
        return late if now >= self.gives_up else TransactionAction.WAIT

    def _refusal(self, outlook: Outlook) -> GiveUp | None:
        """Why waiting is of no use; None if it may be."""
        if outlook.is_closed:
            return GiveUp.CLOSED
        if self._starts is None:
            return GiveUp.TORN
        if not self.is_own(outlook.starts):
            return GiveUp.NOT_OWN
        return GiveUp.OVERTAKEN if outlook.purgatory is PurgatoryState.LOST else None

    # -- events ------------------------------------------------------------------------------

    def begin(self, mark: object, own_fences: int) -> None:
        """It is opened.

        Args:
            mark: Names the deliveries as they are; another one at the commit: one began again.
            own_fences: How often the session has fenced its own id.
        """
        assert self.stage is Stage.NONE
        if self.epoch is not None and self.epoch.own_fences != own_fences:
            self.epoch = None
        self.stage, self._mark, self._starts = Stage.OPEN, mark, None

    def begun(self, now: float, epoch: ProducerEpoch | None = None) -> None:
        """It is begun at the brokers, which count its time from now on.

        Args:
            now: The time.
            epoch: Of the producer, if that is a new one.
        """
        assert self.stage in {Stage.OPEN, Stage.COMMITTING}
        self.epoch = epoch or self.epoch
        self.is_begun, self.gives_up = True, now + self._patience

    def ask_commit(self, mark: object, starts: Starts, now: float, *, has_news: bool) -> None:
        """It is to commit what was handed out.

        Args:
            mark: As of :meth:`begin`.
            starts: Those from which that was delivered.
            now: The time.
            has_news: Whether something is processed that the log does not say.
        """
        assert self.stage is Stage.OPEN
        self._starts = starts if mark == self._mark else None
        if self._starts is not None and not self.is_begun and not has_news:
            self.stage = Stage.NONE
            return
        self.stage = Stage.COMMITTING
        if not self.is_begun:
            self.gives_up = now + self._patience

    def written(self) -> None:
        """What it writes was decided by what was seen last; from now on it may be committed."""
        assert self.stage is Stage.COMMITTING
        self.stage = Stage.ENDING

    def committed(self, *, may_go_on: bool) -> None:
        """The coordinator has committed it.

        Args:
            may_go_on: Whether the producer may begin another one: not if it may have asked twice.
        """
        assert self.stage is Stage.ENDING
        self.stage, self.is_begun = Stage.NONE, False
        if not may_go_on:
            self.epoch = None

    def abort(self) -> None:
        """It is given up, for whatever reason: until an answer says so, it is not decided."""
        if not self.is_open:
            return
        self.aborts += 1
        self.stage = Stage.DOUBTFUL if self.is_begun else Stage.REWINDING
        self.epoch, self.is_begun = None, False

    def decided(self) -> None:
        """Nothing of it is open any more, whether it was committed or aborted."""
        if self.stage is Stage.DOUBTFUL:
            self.stage = Stage.REWINDING

    def rewound(self) -> None:
        """Nothing is delivered any more but from what the log says."""
        if self.stage is Stage.REWINDING:
            self.stage = Stage.NONE
