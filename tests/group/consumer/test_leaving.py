"""How a member leaves: what its callbacks may do, and what they cannot keep it from."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kshare.core.progress import TopicPartition
from kshare.errors import ConsumerClosedError
from kshare.group import KeySharedConsumer
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S
from tests.support.groups import LOG, T0, eventually, quick_settings

AUDIT = TopicPartition("audit", 0)
RECORDS = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={LOG: 1, "orders": 1, "audit": 1}) as running:
        running.produce("orders", [(f"k{i}", f"{i}") for i in range(RECORDS)], partition=0)
        yield running


class Callbacks:
    """Of one consumer: what they are told of, and what one of them does when it is called first."""

    def __init__(self, acting: str, act: Callable[[], object]) -> None:
        self.told: list[tuple[str, list[TopicPartition]]] = []
        self._acting, self._act = acting, act
        names = ("on_assigned", "on_revoked", "on_started")
        self.all: dict[str, Callable[[Any], None]] = {each: self._of(each) for each in names}

    def _of(self, name: str) -> Callable[[Any], None]:
        def listener(changed: Any) -> None:
            self.told.append((name, sorted(changed)))
            if name == self._acting:
                self._acting = ""
                self._act()

        return listener


def subscribed(consumer: KeySharedConsumer, callbacks: Callbacks) -> None:
    """Let a consumer gain two topics, and revoke one of them."""
    consumer.subscribe(["orders", "audit"], **callbacks.all)

    def owns(*partitions: TopicPartition) -> bool:
        consumer.poll(0.1)
        return consumer.is_closed or consumer.assignment().keys() == {*partitions}

    eventually(lambda: owns(T0, AUDIT))
    eventually(lambda: consumer.is_closed or consumer.poll(0.1) is not None)
    if not consumer.is_closed:
        consumer.subscribe(["orders"], **callbacks.all)
        eventually(lambda: owns(T0))


@pytest.mark.parametrize("where", ["on_assigned", "on_revoked", "on_started"])
def test_unsubscribe_in_a_callback_is_refused(cluster: FakeCluster, where: str) -> None:
    """A consumer whose change is half done would read outside of its group after it."""
    consumer = KeySharedConsumer(quick_settings(cluster.bootstrap_servers, group_id=where))
    refused: list[str] = []

    def act() -> None:
        with pytest.raises(RuntimeError) as raised:
            consumer.unsubscribe()
        refused.append(str(raised.value))

    callbacks = Callbacks(where, act)
    with consumer:
        subscribed(consumer, callbacks)
        assert refused == ["unsubscribe in a callback of subscribe: return from it first"]
        consumer.unsubscribe()
        assert consumer.assignment() == {}
    assert [each for each in callbacks.told if each[0] == "on_revoked"] == [
        ("on_revoked", [AUDIT]),
        ("on_revoked", [T0]),
    ]


def test_a_callback_that_closes_is_not_called_again_for_what_it_was_told(
    cluster: FakeCluster,
) -> None:
    consumer = KeySharedConsumer(quick_settings(cluster.bootstrap_servers, group_id="closes"))
    callbacks = Callbacks("on_revoked", consumer.close)
    subscribed(consumer, callbacks)  # its poll raises nothing
    assert [each for each in callbacks.told if each[0] == "on_revoked"] == [
        ("on_revoked", [AUDIT]),
        ("on_revoked", [T0]),
    ]
    with pytest.raises(ConsumerClosedError):
        consumer.poll(0)


def test_a_callback_of_a_commit_that_raises_keeps_nobody_from_leaving(
    cluster: FakeCluster,
) -> None:
    def on_commit(*_: object) -> None:
        if faults:
            raise faults.pop()

    faults: list[Exception] = []
    callbacks = Callbacks("", lambda: None)
    settings = quick_settings(cluster.bootstrap_servers, group_id="leaves")
    consumer = KeySharedConsumer(
        settings | {"on_commit": on_commit, "auto.commit.interval.ms": 600_000}
    )
    with consumer:
        consumer.subscribe(["orders"], **callbacks.all)
        assert len(consumer.consume(RECORDS, WAIT_S)) == RECORDS
        faults.append(LookupError("no"))
        consumer.commit(asynchronous=True)
        with pytest.raises(LookupError):
            consumer.unsubscribe()
        assert consumer.assignment() == {}
        consumer.unsubscribe()
        assert [each for each in callbacks.told if each[0] == "on_revoked"] == [
            ("on_revoked", [T0])
        ]
        consumer.assign([AUDIT])
