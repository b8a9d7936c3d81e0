"""What a consumer needs of its session."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from kshare.core.hashing import HashRange
from kshare.core.leader_epochs import LeaderEpochs
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.group.config.table import ConsumerConfig
from kshare.group.membership.handle import MemberHandle
from kshare.group.membership.planner import WholeTopics
from kshare.group.model import OffsetAndMetadata

__all__ = ["Session"]


class Session(Protocol):
    """What a consumer needs of a :class:`~kshare.group.session.session.GroupSession`."""

    member: str

    def use_leader_epochs(self, of: Callable[[TopicPartition], LeaderEpochs]) -> None:
        """Let commits carry leader epochs, which ``of`` supplies for a partition."""

    def claim(
        self,
        assignment: Mapping[TopicPartition, Sequence[HashRange]],
        *,
        epoch: tuple[int, str] | None = None,
    ) -> None:
        """Own these key hashes from now on, and no others."""

    def join(
        self, config: ConsumerConfig, on_change: Callable[[], None], whole_topics: WholeTopics
    ) -> MemberHandle:
        """Become a member of the group."""

    def leave(self, timeout: float) -> None:
        """Leave the group."""

    def started(self) -> Mapping[TopicPartition, Progress]:
        """From where to deliver: the progress of each partition whose claims are in place."""

    def check(self) -> None:
        """Raise the fault of the session, if there is one."""

    def seconds_to_deliver(self) -> float:
        """For how long records may be handed out without asking again; below 0: not now."""

    def commit(
        self,
        processed: Mapping[TopicPartition, Progress | Sequence[Rectangle]],
        timeout: float,
        *,
        since: Mapping[TopicPartition, Progress] | None = None,
    ) -> dict[TopicPartition, int]:
        """Commit what has been processed; answer the stable offsets."""

    def committed(
        self, partitions: Sequence[TopicPartition], timeout: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed of some partitions."""

    def expect_close(self) -> None:
        """Only the last commit is to come, which waits for no rebalance to end."""

    def close(self, timeout: float) -> None:
        """Give up all claims, and stop."""
