"""What a consumer reads while its group rebalances."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any, cast

import pytest

from kshare.core.hashing import ALL_HASHES, KeyRanges, key_hash
from kshare.core.progress import Progress, TopicPartition
from kshare.group.config.table import ConsumerConfig
from kshare.group.core import (
    deliveries,
    fetched_rows,
    handing_out,
    left_out,
)
from kshare.group.delivery import dispatcher as tail_module
from kshare.group.delivery.dispatcher import Dispatcher, reader_of
from kshare.group.delivery_start import DeliveryStart
from kshare.group.message import ReleaseCount
from kshare.group.session.session import GroupSession
from kshare.kafka.parking import Parking
from kshare.kafka.protocol.background import Waker
from kshare.testing import FakeCluster
from tests.support.groups import LOWER, T0, T1, eventually, group_config
from tests.support.interrupts import Interrupt, interrupt

MODULES = (tail_module, deliveries, handing_out, fetched_rows, left_out)


class Started:
    """A session that has started what it is told to."""

    def __init__(self) -> None:
        self.at: dict[TopicPartition, DeliveryStart] = {}

    def started(self) -> Mapping[TopicPartition, DeliveryStart]:
        return self.at

    def may_count(self, _: TopicPartition, __: DeliveryStart) -> bool:
        return True


class Parks:
    """Parked keys that the test sets."""

    def __init__(self) -> None:
        self.hashes: Mapping[str, KeyRanges] = {}

    def close(self) -> None:
        pass

    def toggle(self, key: str) -> None:
        self.hashes = (
            {} if self.hashes else {"orders": KeyRanges.of_hashes([key_hash(key.encode(), 0)])}
        )


def no_releases(_: TopicPartition, __: int) -> int:
    """Nothing was released."""
    return 0


def dispatcher_of(
    config: ConsumerConfig, session: Started, parks: Parks | None = None
) -> Dispatcher:
    """The reader of a consumer."""
    reader = reader_of(config, Waker().open())
    return Dispatcher(
        config,
        cast("GroupSession", session),
        reader,
        cast("ReleaseCount", lambda: no_releases),
        cast("Parking | None", parks),
    )


KEYS = [f"key-{i}" for i in range(40)]
OF_LOWER = [i for i, key in enumerate(KEYS) if key_hash(key.encode(), i) in LOWER]


@contextmanager
def reading() -> Iterator[tuple[Dispatcher, Started]]:
    """What reads a topic with a record of each key, and its session."""
    session = Started()
    with FakeCluster(topics={"orders": 1}) as cluster:
        cluster.produce("orders", [(key.encode(), b"v") for key in KEYS], partition=0)
        config = group_config(cluster.bootstrap_servers)
        with closing(dispatcher_of(config, session)) as dispatcher:
            yield dispatcher, session


def offsets(dispatcher: Dispatcher) -> list[int]:
    """The offsets of the next messages."""
    assert eventually(lambda: dispatcher.next_rows(0.1))
    return [message.offset() for message in dispatcher.rows.messages]


def test_what_starts_amid_a_rebalance_is_read_on_under_the_next_claim() -> None:
    """As after a lost log: a claim is in place only when some of its hashes are given up."""
    with reading() as (dispatcher, session):
        dispatcher.assign({T0: ALL_HASHES})
        dispatcher.keep({T0: KeyRanges([LOWER])})
        session.at = {T0: DeliveryStart.new(Progress.at(0))}
        dispatcher.refresh()
        assert not dispatcher.state.is_settled()
        assert offsets(dispatcher) == OF_LOWER
        session.at = {}
        dispatcher.assign({T0: KeyRanges([LOWER])}, keeps=True)
        dispatcher.refresh()
        assert T0 in dispatcher.deliveries  # nobody else gets them
        session.at = {T0: DeliveryStart.new(Progress.at(0))}
        dispatcher.refresh()
        assert dispatcher.state.is_settled()
        assert dispatcher.deliveries[T0].position == len(KEYS)


@pytest.mark.parametrize("polls", [False, True])
def test_a_seek_while_hashes_are_given_up_holds_under_the_next_claim(polls: bool) -> None:
    with reading() as (dispatcher, session):
        dispatcher.assign({T0: ALL_HASHES})
        session.at = {T0: DeliveryStart.new(Progress.at(0))}
        dispatcher.refresh()
        dispatcher.keep({T0: KeyRanges([LOWER])})
        dispatcher.seek(T0, 20)
        if polls:
            dispatcher.refresh()
        dispatcher.refresh()  # when the commit is done
        dispatcher.assign({T0: KeyRanges([LOWER])}, keeps=True)
        session.at = {T0: DeliveryStart.new(Progress.at(3))}
        dispatcher.refresh()
        assert offsets(dispatcher) == [offset for offset in OF_LOWER if offset >= 20]
        assert dispatcher.state.is_settled()


def test_a_key_that_is_given_back_while_another_is_read_again_keeps_what_is_held_of_it() -> None:
    """The chunk that is read again begins below: older ones are not marked from there on."""
    session = Started()
    with FakeCluster(topics={"orders": 1}) as cluster:
        cluster.produce("orders", [("a", "v"), ("b", "v")] * 3 + [("b", "v")], partition=0)
        explicit: dict[str, Any] = {"acknowledgement.mode": "explicit"}
        config = group_config(cluster.bootstrap_servers, **explicit)
        with closing(dispatcher_of(config, session)) as dispatcher:
            dispatcher.assign({T0: ALL_HASHES})
            session.at = {T0: DeliveryStart.new(Progress.at(0))}
            dispatcher.refresh()
            assert eventually(lambda: dispatcher.next_rows(0.1))
            held = list(islice(dispatcher.rows.messages, 6))
            assert dispatcher.state.release(held[0], None)
            dispatcher.refresh()
            dispatcher.released.let_go(T0, key_hash(b"a", 0))
            dispatcher.state.left_out.follow_at_once()
            dispatcher.refresh()
            assert dispatcher.state.release(held[5], None)
            assert eventually(lambda: dispatcher.next_rows(0.1))
            again = list(dispatcher.rows.messages)
            assert [message.offset() for message in again] == [0, 2, 4, 6]
            released = [each.offset() for each in (*held, *again) if each.is_released()]
            assert released == [0, 2, 4, 5, 6]


@contextmanager
def interrupted(
    partitions: int = 1, **given: Any
) -> Iterator[tuple[Dispatcher, FakeCluster, Parks]]:
    """What reads all of a topic, and its parked keys."""
    session, parks = Started(), Parks()
    with FakeCluster(topics={"orders": partitions}) as cluster:
        config = group_config(cluster.bootstrap_servers, **given)
        with closing(dispatcher_of(config, session, parks)) as dispatcher:
            all_of_it = [TopicPartition("orders", number) for number in range(partitions)]
            dispatcher.assign(dict.fromkeys(all_of_it, ALL_HASHES))
            session.at = {tp: DeliveryStart.new(Progress.at(0)) for tp in all_of_it}
            dispatcher.refresh()
            yield dispatcher, cluster, parks


def keys_until(dispatcher: Dispatcher, key: str, value: int) -> set[tuple[str, int]]:
    """The keys and values that are handed out until one of them is."""
    found = set[tuple[str, int]]()

    def has_come() -> bool:
        dispatcher.refresh()
        if not dispatcher.rows.left:
            dispatcher.next_rows(0.02)
        for message in dispatcher.rows.messages:
            found.add(((message.key() or b"").decode(), int(message.value() or b"0")))
        return (key, value) in found

    assert eventually(has_come)
    return found


@pytest.mark.parametrize("change", ["parks", "seek", "take back", "turns"])
def test_a_partition_is_read_on_wherever_an_interrupt_comes(change: str) -> None:
    number, is_over = 0, False
    with interrupted() as (dispatcher, cluster, parks):
        changes: dict[str, Callable[[], None]] = {
            "parks": dispatcher.refresh,
            "seek": lambda: dispatcher.seek(T0, 0),
            "take back": lambda: dispatcher.take_back(T0),
            "turns": dispatcher.take_turns,
        }
        while not is_over:
            cluster.produce("orders", [("a", "0"), ("b", f"{number}")], partition=0)
            keys_until(dispatcher, "b", number)
            if change == "parks":
                parks.toggle("a")
            with suppress(Interrupt), interrupt(number, *MODULES) as raised:
                changes[change]()
            number, is_over = number + 1, not raised
    assert number > 2


def test_no_interrupt_lets_a_record_out_whose_key_waits() -> None:
    explicit: dict[str, Any] = {"acknowledgement.mode": "explicit"}
    number, is_over = 0, False
    while not is_over:
        with interrupted(**explicit) as (dispatcher, cluster, _):
            cluster.produce("orders", [("a", "0"), ("a", "1"), ("b", "2")], partition=0)
            assert eventually(partial(dispatcher.next_rows, 0.02))
            dispatcher.state.release(next(dispatcher.rows.messages), None)
            with suppress(Interrupt), interrupt(number, *MODULES) as raised:
                dispatcher.refresh()
            cluster.produce("orders", [("a", "3"), ("b", "4")], partition=0)
            assert keys_until(dispatcher, "b", 4) == {("b", 2), ("b", 4)}, raised
        number, is_over = number + 1, not raised
    assert number > 2


def test_all_partitions_go_on_without_a_parked_key_wherever_an_interrupt_comes() -> None:
    number, is_over = 0, False
    while not is_over:
        with interrupted(2) as (dispatcher, _, parks):
            parks.toggle("a")
            with suppress(Interrupt), interrupt(number, *MODULES) as raised:
                dispatcher.refresh()
            dispatcher.refresh()
            parked = {tp: delivery.left_out for tp, delivery in dispatcher.deliveries.items()}
            assert parked == dict.fromkeys((T0, T1), parks.hashes["orders"]), raised
        number, is_over = number + 1, not raised
    assert number > 2
