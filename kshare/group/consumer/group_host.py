"""What a membership does with its consumer: commit, read on what stays, claim what comes."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from kshare.core.hashing import HashRange
from kshare.core.progress import TopicPartition
from kshare.group.consumer.commits import Commits
from kshare.group.consumer.receiver import Receiver
from kshare.group.delivery.dispatcher import Dispatcher
from kshare.group.session.interface import Session

__all__ = ["GroupHost"]


class GroupHost:
    """The consumer, as a :class:`~kshare.group.consumer.subscriber.Subscriber` needs it.

    Args:
        dispatcher: Hands records out.
        session: Claims.
        receiver: Waits for records.
        commits: Commits.

    Attributes:
        rebalances: How often the group has changed what the consumer owns.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        session: Session,
        receiver: Receiver,
        commits: Commits,
    ) -> None:
        self.rebalances = 0
        self._dispatcher = dispatcher
        self._session = session
        self._receiver = receiver
        self._commits = commits

    def commit_before_revocation(self) -> "Future[Any] | None":
        """Begin to commit what is processed, with ``enable.auto.commit``; None if that is done."""
        if self._receiver.transactions is not None:  # none is open now, and only they commit
            return None
        return self._commits.begin_last()

    def is_settled(self) -> bool:
        """True if what it reads is claimed, so that what it processes can be committed."""
        return self._dispatcher.state.is_settled()

    def wake(self) -> None:
        """Look at the subscriber again."""
        self._receiver.interrupt()

    def keep(self, assignment: Mapping[TopicPartition, tuple[HashRange, ...]]) -> None:
        """Read on these key hashes, which stay, and no others."""
        with self._receiver.stopped():
            self._dispatcher.refresh()
            self._dispatcher.keep(assignment)

    def take_over(
        self,
        assignment: Mapping[TopicPartition, tuple[HashRange, ...]],
        epoch: tuple[int, str] | None,
    ) -> None:
        """Claim these key hashes and no others, and read them."""
        self.rebalances += bool(assignment) or epoch is not None
        with self._receiver.stopped():
            # What was handed out before an abort or a reset counts no more.
            self._dispatcher.refresh()
            self._dispatcher.assign(assignment, keeps=True)
            self._session.claim(assignment, epoch=epoch)
