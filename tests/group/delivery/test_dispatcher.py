"""What a consumer reads while its group rebalances."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, cast

import numpy as np
import pytest

from kshare.core.hashing import ALL_HASHES, WHOLE, HashRange, KeyRanges, key_hash, split
from kshare.core.progress import Progress, TopicPartition
from kshare.group.core import (
    deliveries,
    delivery,
    handed_out,
    handing_out,
    in_hand,
    key_limit,
    left_out,
)
from kshare.group.core.delivery import Delivery
from kshare.group.delivery import dispatcher as tail_module
from kshare.group.delivery.dispatcher import Dispatcher
from kshare.group.message import ACKNOWLEDGED, Message
from kshare.group.session.session import GroupSession
from kshare.testing import FakeCluster
from kshare.wire.protocol.background import Waker
from tests.support.groups import LOWER, T0, T1, UPPER, eventually, group_config
from tests.support.interrupts import Interrupt, interrupt

MODULES = (tail_module, deliveries, handing_out, in_hand, left_out)
ONE_OF_A_KEY: dict[str, Any] = {"acknowledgement.mode": "explicit", "max.in.flight.per.key": 1}


class Started:
    """A session that has started what it is told to."""

    def __init__(self) -> None:
        self.at: dict[TopicPartition, Progress] = {}

    def started(self) -> Mapping[TopicPartition, Progress]:
        return self.at


KEYS = [f"key-{i}" for i in range(40)]
OF_LOWER = [i for i, key in enumerate(KEYS) if key_hash(key.encode(), i) in LOWER]


@contextmanager
def reading() -> Iterator[tuple[Dispatcher, Started]]:
    """What reads a topic with a record of each key, and its session."""
    session = Started()
    with FakeCluster(topics={"orders": 1}) as cluster:
        cluster.produce("orders", [(key.encode(), b"v") for key in KEYS], partition=0)
        config = group_config(cluster.bootstrap_servers)
        made = Dispatcher(config, cast("GroupSession", session), Waker().open())
        with closing(made) as dispatcher:
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
        session.at = {T0: Progress.at(0)}
        dispatcher.refresh()
        assert not dispatcher.state.is_settled()
        assert offsets(dispatcher) == OF_LOWER
        session.at = {}
        dispatcher.assign({T0: KeyRanges([LOWER])}, keeps=True)
        dispatcher.refresh()
        assert T0 in dispatcher.deliveries  # nobody else gets them
        session.at = {T0: Progress.at(0)}
        dispatcher.refresh()
        assert dispatcher.state.is_settled()
        assert dispatcher.deliveries[T0].position == len(KEYS)


def test_what_waits_for_its_key_is_forgotten_with_its_hashes_while_nothing_is_read() -> None:
    """After a seek amid a rebalance, the group assigns quite other key hashes."""
    quarter = split(WHOLE, 4)[0]
    lower = next(f"k{i}" for i in range(99) if key_hash(f"k{i}".encode(), 0) in quarter)
    upper = next(f"k{i}" for i in range(99) if key_hash(f"k{i}".encode(), 0) in UPPER)
    session = Started()
    with FakeCluster(topics={"orders": 1}) as cluster:
        cluster.produce("orders", [(lower, "0"), (lower, "1"), (upper, "2")], partition=0)
        config = group_config(cluster.bootstrap_servers, **ONE_OF_A_KEY)
        with closing(
            Dispatcher(config, cast("GroupSession", session), Waker().open())
        ) as dispatcher:
            dispatcher.assign({T0: KeyRanges([LOWER])})
            start = session.at[T0] = Progress.at(0)
            dispatcher.refresh()
            assert eventually(lambda: dispatcher.next_rows(0.1))
            assert [message.offset() for message in dispatcher.rows.messages] == [0]
            dispatcher.keep({T0: KeyRanges([quarter])})
            dispatcher.seek(T0, 1)
            dispatcher.assign({T0: KeyRanges([UPPER])}, keeps=True)
            session.at[T0] = replace(start)
            dispatcher.refresh()
            dispatcher.state.left_out.limits.acknowledge(T0, [0])
            assert eventually(lambda: dispatcher.next_rows(0.1))
            assert [message.offset() for message in dispatcher.rows.messages] == [2]


def test_a_partition_that_is_given_up_while_nothing_is_read_holds_nothing_up() -> None:
    session = Started()
    with FakeCluster(topics={"orders": 2}) as cluster:
        cluster.produce("orders", [("k", "0"), ("k", "1")], partition=0)
        config = group_config(cluster.bootstrap_servers, **ONE_OF_A_KEY)
        with closing(
            Dispatcher(config, cast("GroupSession", session), Waker().open())
        ) as dispatcher:
            dispatcher.assign({T0: ALL_HASHES, T1: ALL_HASHES})
            session.at = {T0: Progress.at(0), T1: Progress.at(0)}
            dispatcher.refresh()
            assert eventually(lambda: dispatcher.next_rows(0.1))
            assert [message.offset() for message in dispatcher.rows.messages] == [0]
            dispatcher.keep({T0: KeyRanges([LOWER]), T1: ALL_HASHES})
            dispatcher.seek(T0, 1)
            dispatcher.assign({T1: ALL_HASHES}, keeps=True)
            dispatcher.refresh()
            assert not dispatcher.is_blocked()


def test_a_call_waits_for_nothing_of_a_partition_that_is_put_aside_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A range of one key, as for a hot one; what another partition has comes without it."""
    monkeypatch.setattr(key_limit, "_HELD_MAX", 1)
    monkeypatch.setattr(left_out, "_ASIDE_SECONDS", 0.0)
    point = key_hash(b"k", 0)
    session = Started()
    with FakeCluster(topics={"orders": 2}) as cluster:
        cluster.produce("orders", [("k", f"{i}") for i in range(4)], partition=0)
        config = group_config(cluster.bootstrap_servers, **ONE_OF_A_KEY)
        with closing(
            Dispatcher(config, cast("GroupSession", session), Waker().open())
        ) as dispatcher:
            dispatcher.assign({T0: KeyRanges([HashRange.of(point)]), T1: ALL_HASHES})
            session.at = {T0: Progress.at(0), T1: Progress.at(0)}
            dispatcher.refresh()
            assert eventually(lambda: dispatcher.next_rows(0.1))
            assert [message.offset() for message in dispatcher.rows.messages] == [0]
            dispatcher.refresh()
            cluster.produce("orders", [("other", "v")], partition=1)
            assert eventually(lambda: dispatcher.next_rows(0.1))
            assert len(list(dispatcher.rows.messages)) == 1
            assert eventually(lambda: not dispatcher.next_rows(0.1) and dispatcher.is_blocked())
            dispatcher.state.left_out.limits.acknowledge(T0, [0])
            dispatcher.refresh()
            assert eventually(lambda: dispatcher.next_rows(0.1))
            assert [message.offset() for message in dispatcher.rows.messages] == [1]


@pytest.mark.parametrize("polls", [False, True])
def test_a_seek_while_hashes_are_given_up_holds_under_the_next_claim(polls: bool) -> None:
    with reading() as (dispatcher, session):
        dispatcher.assign({T0: ALL_HASHES})
        session.at = {T0: Progress.at(0)}
        dispatcher.refresh()
        dispatcher.keep({T0: KeyRanges([LOWER])})
        dispatcher.seek(T0, 20)
        if polls:
            dispatcher.refresh()
        dispatcher.refresh()  # when the commit is done
        dispatcher.assign({T0: KeyRanges([LOWER])}, keeps=True)
        session.at = {T0: Progress.at(3)}
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
        made = Dispatcher(config, cast("GroupSession", session), Waker().open())
        with closing(made) as dispatcher:
            dispatcher.assign({T0: ALL_HASHES})
            session.at = {T0: Progress.at(0)}
            dispatcher.refresh()
            assert eventually(lambda: dispatcher.next_rows(0.1))
            held = list(islice(dispatcher.rows.messages, 6))
            assert dispatcher.state.release(held[0], None)
            dispatcher.refresh()
            dispatcher.released.let_go(T0, key_hash(b"a", 0))
            dispatcher.refresh()
            assert dispatcher.state.release(held[5], None)
            assert eventually(lambda: dispatcher.next_rows(0.1))
            again = list(dispatcher.rows.messages)
            assert [message.offset() for message in again] == [0, 2, 4, 6]
            released = [each.offset() for each in (*held, *again) if each.is_released()]
            assert released == [0, 2, 4, 5, 6]


@pytest.mark.parametrize("looks_at", ["unacknowledged", "end"])
def test_another_thread_may_seek_while_a_call_looks_whether_it_is_blocked(
    monkeypatch: pytest.MonkeyPatch, looks_at: str
) -> None:
    """Amid a seek, the partition has no delivery."""
    with interrupted(2, **ONE_OF_A_KEY) as (dispatcher, cluster, _):
        cluster.produce("orders", [("a", "0"), ("a", "1")], partition=0)
        keys_until(dispatcher, "a", 0)

        def seeking(*_: Any) -> Any:
            dispatcher.state.by_partition.pop(T1, None)
            return 1

        if looks_at == "end":
            monkeypatch.setattr(dispatcher._reader, "end", seeking)
        else:
            monkeypatch.setattr(Delivery, looks_at, property(seeking))
        dispatcher.is_blocked()
        assert T1 not in dispatcher.deliveries


def test_another_thread_may_seek_while_a_call_looks_at_the_limits() -> None:
    """Amid a seek, the partition has no limit."""
    limits = key_limit.KeyLimits(1)
    limits.begin(T0)
    limits.begin(T1)

    class Seeking(set[TopicPartition]):
        def __contains__(self, at: object) -> bool:
            limits.end(T1)
            return True

    assert not limits.are_waiting(Seeking())


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


@contextmanager
def interrupted(
    partitions: int = 1, **given: Any
) -> Iterator[tuple[Dispatcher, FakeCluster, Parks]]:
    """What reads all of a topic, and its parked keys."""
    session, parks = Started(), Parks()
    with FakeCluster(topics={"orders": partitions}) as cluster:
        config = group_config(cluster.bootstrap_servers, **given)
        made = Dispatcher(config, cast("GroupSession", session), Waker().open())
        with closing(made) as dispatcher:
            dispatcher.parking = cast("Any", parks)
            all_of_it = [TopicPartition("orders", number) for number in range(partitions)]
            dispatcher.assign(dict.fromkeys(all_of_it, ALL_HASHES))
            session.at = {tp: Progress.at(0) for tp in all_of_it}
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
            "take back": lambda: dispatcher.take_back(T0, []),
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


def take_some(dispatcher: Dispatcher, found: dict[TopicPartition, list[int]]) -> None:
    """What is handed out next, of all partitions."""
    if not dispatcher.rows.left:
        dispatcher.next_rows(0.02)
    for message in dispatcher.rows.messages:
        found[message.topic_partition].append(message.offset())


@pytest.mark.parametrize(
    "step",
    ["aside", "back", pytest.param("parks", marks=pytest.mark.slow)],
)
def test_what_is_kept_back_comes_in_order_wherever_an_interrupt_comes(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """As keys are put aside, or parked, and read again."""
    monkeypatch.setattr(left_out, "_ASIDE_SECONDS", 0.0)
    number, is_over = 0, False
    while not is_over:
        with interrupted(2, **ONE_OF_A_KEY) as (dispatcher, cluster, parks):
            found: dict[TopicPartition, list[int]] = {T0: [], T1: []}

            def go_on(
                dispatcher: Dispatcher = dispatcher,
                found: dict[TopicPartition, list[int]] = found,
            ) -> bool:
                for tp, each in found.items():
                    dispatcher.state.acknowledge_rows(tp, np.array(each, np.int64), ())
                dispatcher.refresh()
                take_some(dispatcher, found)
                return all(2 in each for each in found.values())

            monkeypatch.setattr(key_limit, "_HELD_MAX", 100)
            for partition in range(2):
                cluster.produce("orders", [("k", f"{i}") for i in range(3)], partition=partition)
            while not all(found.values()):
                take_some(dispatcher, found)
            monkeypatch.setattr(key_limit, "_HELD_MAX", 1)
            if step == "back":
                dispatcher.refresh()
                for tp in found:
                    dispatcher.state.acknowledge_rows(tp, np.array([0]), ())
            if step == "parks":
                parks.toggle("k")
            with suppress(Interrupt), interrupt(number, *MODULES) as raised:
                dispatcher.refresh()
            if step == "parks":
                dispatcher.refresh()
                parks.toggle("k")
            assert eventually(go_on), raised
            assert [list(dict.fromkeys(each)) for each in found.values()] == [[0, 1, 2]] * 2, raised
        number, is_over = number + 1, not raised
    assert number > 2


HANDING_OUT = (handing_out, delivery, handed_out, key_limit)


@pytest.mark.parametrize("step", ["put", "acknowledge", "acknowledge rows"])
def test_keys_go_on_wherever_an_interrupt_comes(step: str) -> None:
    """As their records are kept back, and as the next ones are let out."""
    written, number, is_over = ["k", "other", "k", None, "k", "other"], 0, False
    while not is_over:
        with interrupted(**ONE_OF_A_KEY) as (dispatcher, cluster, _):
            cluster.produce("orders", [(key, b"v") for key in written], partition=0)
            found = list[int]()

            def acknowledge(message: Message, dispatcher: Dispatcher = dispatcher) -> None:
                message[0].acknowledged[message[1]] = ACKNOWLEDGED
                dispatcher.state.acknowledged(message)

            if step != "put":
                assert eventually(partial(dispatcher.next_rows, 0.02))
                first = next(dispatcher.rows.messages)
                found.append(first.offset())
                rows = partial(dispatcher.state.acknowledge_rows, T0, np.array([0]), ())
                acknowledges = rows if step == "acknowledge rows" else partial(acknowledge, first)
                with suppress(Interrupt), interrupt(number, key_limit, handed_out) as raised:
                    acknowledges()
                acknowledges()
            else:
                with suppress(Interrupt), interrupt(number, *HANDING_OUT) as raised:
                    while not dispatcher.next_rows(0.02):
                        pass

            def go_on(dispatcher: Dispatcher = dispatcher, found: list[int] = found) -> bool:
                dispatcher.refresh()
                if dispatcher.rows.left or dispatcher.next_rows(0.02):
                    for message in dispatcher.rows.messages:
                        found.append(message.offset())
                        acknowledge(message)
                return len(found) >= len(written)

            assert eventually(go_on), raised
            assert sorted(found) == list(range(len(written))), raised
            of_a_key = [[at for at in found if written[at] == key] for key in ("k", "other")]
            assert of_a_key == [[0, 2, 4], [1, 5]], raised
            dispatcher.pass_over()
            each = dispatcher.deliveries[T0]
            assert (each.unacknowledged, each.position) == (0, len(written)), raised
        number, is_over = number + 1, not raised
    assert number > 2
