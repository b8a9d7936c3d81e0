"""How many questions a session asks its brokers, and which answers it takes for the last ones."""

from concurrent.futures import Future
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from kshare.core.hashing import ALL_HASHES
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import KafkaError
from kshare.group.core.ownership import Ownership
from kshare.group.log.tail import LastAnswer
from kshare.group.log.topic import LogWriter
from kshare.group.protocol.commit_log.commit import Commit
from kshare.group.protocol.commit_log.log import PartitionLog
from kshare.group.protocol.commit_log.placement import Placement
from kshare.group.protocol.commit_log.records import Claim, Lease, key_of
from kshare.group.protocol.owners.actions import (
    Action,
    Append,
    Fence,
    ResolveInitial,
    Write,
    WritePrimary,
)
from kshare.group.protocol.owners.cooperator import Cooperator
from kshare.group.protocol.owners.owner import Owner, Phase
from kshare.group.protocol.owners.plain_owner import PlainOwner
from kshare.group.session.broker_actions import BrokerActions
from kshare.group.session.shared import Shared
from kshare.kafka.protocol.background import Beside
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S, until
from tests.support.groups import LOG, group_config
from tests.support.requests import times_asked

PARTITIONS = 40
T0 = TopicPartition("orders", 0)


class Waiting:
    """An ownership, and its owner, that has asked for one action and counts the answers."""

    def __init__(self, number: int) -> None:
        self.partition = TopicPartition("orders", number)
        self.owner = self
        self.action_number = 1
        self.answers: list[int | None] = []

    def waits_for(self, action: int) -> bool:
        return action == self.action_number

    def initial_found(self, offset: int) -> None:
        self.answers.append(offset)

    def former_fenced(self) -> None:
        self.answers.append(None)


def answered(cluster: FakeCluster, action: Action) -> list[Waiting]:
    """Forty owners that want the same, once all are answered."""
    waiting = [Waiting(number) for number in range(PARTITIONS)]
    ownerships: Any = SimpleNamespace(
        give_up=list, advance=lambda _: [(each, [action]) for each in waiting]
    )
    config = group_config(cluster.bootstrap_servers, transactional_id="new")
    beside = Beside(lambda: None)
    actions = BrokerActions(config, config.kafka, Shared(ownerships), lambda: 0.0, beside)
    link: Any = SimpleNamespace(
        partition=TopicPartition(LOG, 0), tail=SimpleNamespace(last=LastAnswer())
    )
    try:
        actions.act(link)
        until(lambda: beside.has_events)
        beside.take()
    finally:
        actions.close()
    return waiting


def test_what_many_partitions_want_to_know_is_one_question() -> None:
    """Where those of a new group start, and the fence of the one that had them before."""
    with FakeCluster(topics={"orders": PARTITIONS, LOG: 1}) as cluster:
        for action, api, answer in (
            (ResolveInitial(), "ListOffsets", 0),
            (Fence(frozenset({"old"})), "InitProducerId", None),
        ):
            cluster.track_requests()
            assert [each.answers for each in answered(cluster, action)] == [[answer]] * PARTITIONS
            assert 1 <= times_asked(cluster, api) <= 2, api  # of each broker that leads partitions


@pytest.mark.parametrize(
    ("owner", "epoch", "code", "now", "is_over"),
    [
        (Owner, 7, 27, 10.0, True),
        (Owner, 7, 27, 9.0, False),
        (Owner, 7, 19, 10.0, False),
        (Owner, None, 27, 10.0, False),
        (PlainOwner, 7, 27, 10.0, False),
    ],
)
def test_a_session_that_closes_waits_for_no_rebalance(
    owner: type[Owner], epoch: int | None, code: int, now: float, is_over: bool
) -> None:
    commit = Commit(Progress.at(5), ())
    claim = Claim(T0, "m#1", ALL_HASHES, epoch=epoch)
    ownership = Ownership(owner(claim, phase=Phase.RUNNING, commit=commit))
    ownerships: Any = SimpleNamespace(
        give_up=list,
        advance=lambda _: [(ownership, [WritePrimary(5, None)])],
        warnings=[],
        log=SimpleNamespace(group="g"),
    )
    error = KafkaError("refused")
    error.code = code  # NOT_ENOUGH_REPLICAS, or REBALANCE_IN_PROGRESS
    answer: Future[Any] = Future()
    answer.set_result({T0: error})
    config = group_config("localhost:1")
    member, beside = Mock(commit=lambda _: answer), Beside(lambda: None)
    shared = Shared(ownerships, member=member, primary_by=10.0)
    actions = BrokerActions(config, config.kafka, shared, lambda: now, beside)
    link: Any = SimpleNamespace(
        partition=TopicPartition(LOG, 0), tail=SimpleNamespace(last=LastAnswer())
    )
    try:
        actions.act(link)
        beside.take()
    finally:
        actions.close()
    assert commit.is_primary_written == is_over
    assert (ownership.retries.why == "") == is_over


def test_an_owner_hears_where_brokers_have_put_its_last_record() -> None:
    """So it notices that what it waits for was deleted; of a lease, too."""
    sharer = Cooperator(Claim(T0, "m#1", ALL_HASHES, shared=True), asked=1)
    claiming, leasing = Ownership(Owner(Claim(T0, "m#2", ALL_HASHES))), Ownership(sharer)
    lease = Lease(T0, 0, "m#1", 1, OffsetRange(0, 9))
    with FakeCluster(topics={LOG: 1}) as cluster:
        config = group_config(cluster.bootstrap_servers)
        written = claiming.owner.actions(PartitionLog(), 0)
        (claim,) = (action for action in written if isinstance(action, Write))
        ownerships: Any = SimpleNamespace(
            give_up=list,
            advance=lambda _: [
                (leasing, [Append(key_of(lease), lease)]),
                (claiming, [Write((*claim.records, *claim.records))]),
            ],
        )
        beside = Beside(lambda: None)
        actions = BrokerActions(config, config.kafka, Shared(ownerships), lambda: 0.0, beside)
        writer = LogWriter(config.kafka, timeout_ms=5_000)
        link: Any = SimpleNamespace(
            partition=TopicPartition(LOG, 0), tail=SimpleNamespace(last=LastAnswer()), writer=writer
        )
        with closing(writer), closing(actions):
            actions.act(link)
            assert writer.flush(WAIT_S) == 0
    assert not claiming.owner.has_missed_records(2)
    assert claiming.owner.has_missed_records(3)
    assert sharer._placement_asked == Placement(0, 0)
