"""Primary offsets that a member is to commit: kept until the coordinator is asked."""

from collections import deque
from concurrent.futures import Future
from typing import Any, Final

from kshare.cluster.committer import CommittedOffsets
from kshare.cluster.coordinator import commit_codes
from kshare.core.progress import TopicPartition
from kshare.errors import AuthorizationError, KafkaError, UnknownTopicError
from kshare.group.core.member import GroupMember
from kshare.group.membership.link import MemberLink
from kshare.group.protocol.membership import State
from kshare.wire.protocol import error_codes
from kshare.wire.protocol.error_codes import Kind

__all__ = ["MemberCommits"]

_KINDS: Final = {
    Kind.AUTHORIZATION: AuthorizationError,
    Kind.UNKNOWN_TOPIC: UnknownTopicError,
}
"""Classes of errors; others are a :class:`~kshare.errors.KafkaError`."""


class MemberCommits:
    """The commits of one member. For the session's thread.

    Args:
        group: Id of the group.
        member: Says what it may commit.
    """

    def __init__(self, group: str, member: GroupMember) -> None:
        self._group = group
        self._member = member
        self._waiting: deque[tuple[CommittedOffsets, Future[Any]]] = deque()
        self._under_way: tuple[CommittedOffsets, Future[Any]] | None = None

    @property
    def are_waiting(self) -> bool:
        """True if there is something to ask the coordinator for."""
        return bool(self._waiting) and self._under_way is None

    def add(self, offsets: CommittedOffsets) -> "Future[Any]":
        """Commit these; the future has an error or None by partition."""
        answer: Future[Any] = Future()
        if self._member.membership.state is State.ENDED:
            answer.set_result(dict.fromkeys(offsets))  # whoever owns them now does it
        else:
            self._waiting.append((dict(offsets), answer))
        return answer

    def serve(self, link: MemberLink) -> None:
        """Ask the coordinator for the next commit, if none is under way.

        Args:
            link: The way to it.
        """
        while self._waiting and self._under_way is None:
            offsets, answer = self._waiting.popleft()
            commit = self._member.commit(offsets)
            owned = {} if commit is None else {tp: offsets[tp] for tp in commit.partitions}
            if commit is None or not owned:
                answer.set_result(dict.fromkeys(offsets))
                continue
            self._under_way = offsets, answer
            link.commit(owned, commit.member_id, commit.generation, self._answered)

    def _answered(self, answer: Any) -> None:
        if self._under_way is None:  # it was refused meanwhile
            return
        (offsets, future), self._under_way = self._under_way, None
        codes = commit_codes(answer)
        future.set_result({tp: self._outcome(tp, codes.get(tp, 0)) for tp in offsets})

    def failed(self, why: str) -> None:
        """What is under way is not answered."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way[1].set_exception(self._error(why))

    def refuse(self, error: KafkaError) -> None:
        """Nothing is committed any more."""
        self.failed(str(error))
        while self._waiting:
            self._waiting.popleft()[1].set_exception(error)

    def _outcome(self, partition: TopicPartition, code: int) -> KafkaError | None:
        if not code:
            return None
        kind = _KINDS.get(error_codes.kind(code), KafkaError)
        why = f"cannot commit offsets of group {self._group} for {partition}: "
        error = kind(why + error_codes.name(code), **partition._asdict())
        error.code = code
        return error

    def _error(self, why: str) -> KafkaError:
        return KafkaError(f"cannot commit offsets of group {self._group}: {why}")
