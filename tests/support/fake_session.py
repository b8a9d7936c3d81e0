"""A session of a group without a log: starts at given offsets, and remembers what is committed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Any

from kshare.core.hashing import ALL_HASHES, KeyRanges
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.errors import CommitFailedError, KshareError
from kshare.group.config.table import ConsumerConfig
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.core.ownerships import LeaderEpochsOf, no_epochs
from kshare.group.core.work import LateWork
from kshare.group.delivery_start import DeliveryStart
from kshare.group.log.primary import OffsetAndMetadata
from kshare.group.membership.group_planner import WholeTopics
from kshare.group.membership.handle import MemberHandle
from kshare.group.protocol.membership.subscription import Assigned
from kshare.testing import FakeCluster
from tests.support.groups import FETCH_WAIT_MS
from tests.support.parked_keys import FakeParked
from tests.support.policies import FakePolicies

__all__ = ["FakeSession", "FakeSessions", "fake_consumers"]


class FakeSession:
    """A session of one consumer; what is committed lives in :class:`FakeSessions`."""

    def __init__(
        self,
        group: "FakeSessions",
        on_change: Callable[[], None] | None,
        leader_epochs: LeaderEpochsOf,
        number: int,
    ) -> None:
        self.leader_epochs = leader_epochs
        self.session_id = f"member-{number}"
        self.commits: list[dict[TopicPartition, Progress]] = []
        self.error: KshareError | None = None
        self.can_deliver = True
        self.looks = 0  # how often it was asked while it might not deliver
        self.is_closed = False
        self.commits_before_close: int | None = None
        self.waiting: set[TopicPartition] = set()  # whose claims are not in place
        self.times_anew = 0
        self.incarnations: dict[TopicPartition, int] = {}
        self._group = group
        self._on_change = on_change
        self._started: dict[TopicPartition, DeliveryStart] = {}
        self._claimed: dict[TopicPartition, KeyRanges] = {}
        self._void: set[DeliveryStart] = set()

    def join(
        self, config: ConsumerConfig, on_change: Callable[[], None], whole_topics: WholeTopics
    ) -> MemberHandle:
        raise NotImplementedError

    def log_metrics(self) -> None:
        return None

    def leave(self, timeout: float) -> None:
        raise NotImplementedError

    def claim(
        self,
        assignment: Assigned,
        *,
        epoch: tuple[int, str] | None = None,
    ) -> None:
        started = {}
        for tp, hashes in assignment.items():
            if tp in self._started and self._claimed[tp] == hashes:
                started[tp] = self._started[tp]
            else:
                done = self._group.done.get(tp, Progress.at(self._group.initial.get(tp, 0)))
                started[tp] = DeliveryStart.new(done)
        self._started = started
        self._claimed = dict(assignment)
        self.change()

    def started(self) -> Mapping[TopicPartition, DeliveryStart]:
        if self._group.holds_back:
            return {}
        return {tp: start for tp, start in self._started.items() if tp not in self.waiting}

    def incarnation(self, partition: TopicPartition) -> int:
        return self.incarnations.get(partition, 0)

    def may_count(self, _: TopicPartition, start: DeliveryStart) -> bool:
        return start not in self._void

    def restart(self, tp: TopicPartition, start: Progress) -> None:
        self._group.done[tp] = start
        self._void.add(self._started[tp])
        self._started[tp] = DeliveryStart.new(start)
        self.change()

    def change(self) -> None:
        if self._on_change is not None:
            self._on_change()

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def seconds_to_deliver(self) -> float:
        if self.can_deliver:
            return 1.0
        self.looks += 1
        return -1.0

    def commit(
        self,
        processed: Mapping[TopicPartition, Progress | Sequence[Rectangle]],
        timeout: float,
        *,
        starts: Mapping[TopicPartition, DeliveryStart] | None = None,
        late: Sequence[LateWork] = (),
    ) -> dict[TopicPartition, int]:
        self.check()
        stable = {}
        with self._group.lock:
            for tp, progress in processed.items():
                assert isinstance(progress, Progress)
                if starts is not None and starts[tp] != self._started.get(tp):
                    continue
                done = self._group.done.get(tp, Progress.at(self._group.initial.get(tp, 0)))
                pieces = [*progress.individual_commits]
                done = done.commit(pieces).advance(progress.stable)
                self._group.done[tp] = done
                stable[tp] = done.stable
        self.commits.append({tp: p for tp, p in processed.items() if isinstance(p, Progress)})
        refused = {}
        for each in late:  # of consumers with key order: what is not committed is refused
            known = self._group.done.get(each.partition, Progress.at(0)).union(each.start.done)
            lost = each.processed.minus(known)
            if lost:
                offsets = [(piece.offsets.start, piece.offsets.end) for piece in lost]
                refused[each.partition.topic, each.partition.partition] = tuple(offsets)
        if refused:
            raise CommitFailedError("these have gone", offsets=refused)
        return stable

    def committed(
        self, partitions: Sequence[TopicPartition], timeout: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            tp: OffsetAndMetadata(done.stable, individual_commits=tuple(done.individual_commits))
            for tp in partitions
            if (done := self._group.done.get(tp)) is not None
        }

    def expect_close(self) -> None:
        self.commits_before_close = len(self.commits)

    def close(self, timeout: float) -> None:
        self.is_closed = True


class FakeSessions:
    """The group: what all its sessions have committed."""

    def __init__(self, initial: Mapping[TopicPartition, int] | None = None) -> None:
        self.done: dict[TopicPartition, Progress] = {}
        self.initial = dict(initial or {})
        self.members: list[FakeSession] = []
        self.holds_back = False
        self.lock = Lock()

    def __call__(
        self,
        config: ConsumerConfig,
        *,
        on_change: Callable[[], None] | None = None,
        leader_epochs: LeaderEpochsOf = no_epochs,
    ) -> Any:  # what consumers take for a session
        self.members.append(FakeSession(self, on_change, leader_epochs, len(self.members)))
        return self.members[-1]

    def processed(self, tp: TopicPartition, offset: int) -> bool:
        """Whether an offset counts as processed for all hashes."""
        done = self.done.get(tp, Progress.at(0))
        return not done.pending_of(offset + 1, ALL_HASHES) or all(
            offset not in piece.offsets for piece in done.pending_of(offset + 1, ALL_HASHES)
        )


@contextmanager
def fake_consumers(
    cluster: FakeCluster,
    group: FakeSessions,
    policies: FakePolicies | None = None,
    parked: FakeParked | None = None,
) -> Iterator[Callable[..., KeySharedConsumer]]:
    """Makes consumers of a group; ``__`` in the names of their configuration stands for a dot."""
    with ExitStack() as stack:

        def consumer(**config: Any) -> KeySharedConsumer:
            given = {name.replace("__", "."): value for name, value in config.items()}
            base = {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.max.wait.ms": FETCH_WAIT_MS,
            }
            made = KeySharedConsumer(
                base | given,
                session=group,
                policies=policies or FakePolicies(),
                parked=parked or FakeParked(),
            )
            return stack.enter_context(made)

        yield consumer
