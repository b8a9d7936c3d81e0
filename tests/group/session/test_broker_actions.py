"""How many questions a session asks its brokers."""

from types import SimpleNamespace
from typing import Any

from kshare.core.progress import TopicPartition
from kshare.group.protocol.actions import Action, Fence, ResolveInitial
from kshare.group.session.broker_actions import BrokerActions
from kshare.group.session.shared import Shared
from kshare.testing import FakeCluster
from tests.support.clock import until
from tests.support.groups import LOG, group_config
from tests.support.requests import times_asked

PARTITIONS = 40


class Waiting:
    """An ownership, and its owner, that has asked for one action and counts the answers."""

    def __init__(self, number: int) -> None:
        self.partition = TopicPartition("orders", number)
        self.owner = self
        self.action = 1
        self.answers: list[int | None] = []

    def waits_for(self, action: int) -> bool:
        return action == self.action

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
    unused: Any = None
    actions = BrokerActions(
        config, config.kafka, Shared(ownerships), unused, lambda: 0.0, lambda: None
    )
    link: Any = SimpleNamespace(
        partition=TopicPartition(LOG, 0), tail=SimpleNamespace(bounds=(0, 0))
    )
    try:
        actions.act(link)
        until(lambda: actions.are_answered)
        actions.take_answers()
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
