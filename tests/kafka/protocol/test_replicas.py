"""Follower fetching (KIP-392): who is asked, when, and that nothing of it shows in the rows."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kshare
from kshare.core.hashing import WHOLE
from kshare.core.progress import TopicPartition
from kshare.core.tasks import PlannedSlice
from kshare.errors import (
    AuthenticationError,
    CorruptRecordError,
    DataLossError,
    FetchTimeoutError,
)
from kshare.kafka.protocol import broker_pool
from kshare.kafka.protocol.brokers import LEADER_ALONE_SECONDS, Leader
from kshare.kafka.protocol.messages import Address
from kshare.process_local import ProcessLocal
from kshare.read.reader import read_slice as reading
from kshare.read.reader.read_slice import find_ends, reader_options
from kshare.read.reader.slice_records import SliceRecords
from kshare.testing import FakeCluster, Record
from tests.support.batches import Rec, batch_of, numbered
from tests.support.clock import Clock
from tests.support.scripted import ScriptedBrokers, ScriptedLog, ScriptedReplica, read_slice

COUNT = 100
LEADER, FOLLOWER = 1, 2
IN_RACK = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "kafka.client.rack": "r1",
    "kafka.retry.backoff.ms": "0",
    "kafka.default.api.timeout.ms": "2000",
}
# Ten of them, each a response of its own.
LOG = [
    batch_of(numbered([Rec(b"k", b"%d" % (base + i)) for i in range(10)]), base=base).encode()
    for base in range(0, COUNT, 10)
]
EMPTY = ScriptedReplica.EMPTY


def replica(
    broker: str = "leader:1", *, batches: Sequence[bytes] = LOG, **script: Any
) -> ScriptedReplica:
    return ScriptedReplica(batches, broker, response_bytes=1, **script)


def brokers(leader: ScriptedReplica, follower: ScriptedReplica | None) -> ScriptedBrokers:
    """A cluster of these two."""
    replicas = {LEADER: leader} | ({FOLLOWER: follower} if follower else {})
    return ScriptedBrokers(LEADER, replicas, Clock())


def whole(start: int = 0, end: int = COUNT) -> kshare.Slice:
    return kshare.Slice("t", 0, (kshare.Rectangle(kshare.OffsetRange(start, end), WHOLE),))


WHOLE_SLICE = whole()


def read(cluster: ScriptedBrokers, slice_: kshare.Slice = WHOLE_SLICE, **options: str) -> list[int]:
    """The offsets that a reader delivers."""
    found = read_slice(cluster, slice_, IN_RACK | options, clock=cluster.clock)
    return [offset for batch in found for offset in batch["offset"].to_pylist()]


def asked(one: ScriptedReplica) -> list[int]:
    """The offsets from which a replica was asked."""
    return [offset for offset, _ in one.fetches]


def test_the_leader_names_a_follower_that_delivers_all() -> None:
    leader, follower = replica(names=FOLLOWER), replica("follower:1")
    cluster = brokers(leader, follower)
    assert read(cluster) == list(range(COUNT))
    assert (asked(leader), leader.racks) == ([0], ["r1"])
    assert asked(follower) == list(range(0, COUNT, 10))
    assert cluster.forgotten == 0


def test_the_next_reader_begins_with_the_follower() -> None:
    leader, follower = replica(names=FOLLOWER), replica("follower:1")
    cluster = brokers(leader, follower)
    for _ in range(3):
        assert read(cluster) == list(range(COUNT))
    assert len(leader.fetches) == 1


def test_without_a_rack_none_is_told() -> None:
    leader, follower = replica(names=FOLLOWER), replica("follower:1")
    cluster = brokers(leader, follower)
    assert read(cluster, WHOLE_SLICE, **{"kafka.client.rack": ""}) == list(range(COUNT))
    assert set(leader.racks) == {""}
    assert follower.fetches == []


def test_records_beside_a_name_are_delivered() -> None:
    """No broker is known to do so; the protocol allows it."""

    class Generous(ScriptedReplica):
        def response(self, records: bytes = b"", *args: Any, **kwargs: Any) -> memoryview:
            return super().response(records, *args, **kwargs | {"preferred": FOLLOWER})

    leader, follower = Generous(LOG, "leader:1", response_bytes=1), replica("follower:1")
    cluster = brokers(leader, follower)
    assert read(cluster) == list(range(COUNT))
    assert (asked(leader), asked(follower)[0]) == ([0], 10)


@pytest.mark.parametrize("age", ["60000", "0"])
def test_the_leader_is_asked_again_when_the_metadata_is_old(age: str) -> None:
    """In the middle of a slice, and then it may name somebody else. An age of 0 is no endless loop:
    a follower is asked once at least."""
    leader, follower = replica(names=FOLLOWER), replica("follower:1")
    cluster = brokers(leader, follower)
    found = read_slice(cluster, whole(), IN_RACK | {"kafka.metadata.max.age.ms": age})
    assert next(found)["offset"].to_pylist() == list(range(10))
    cluster.clock.now += 61
    leader.names = None
    rest = [offset for batch in found for offset in batch["offset"].to_pylist()]
    assert rest == list(range(10, COUNT))
    # The request for 10 was under way.
    assert (asked(follower), asked(leader)) == ([0, 10], [0, *range(20, COUNT, 10)])


def test_the_same_follower_may_be_named_again_without_a_pause() -> None:
    leader, follower = replica(names=FOLLOWER), replica("follower:1")
    cluster = brokers(leader, follower)
    options = IN_RACK | {"kafka.metadata.max.age.ms": "60000"}
    found = read_slice(cluster, whole(), options, clock=cluster.clock)
    offsets: list[int] = []
    for batch in found:
        offsets += batch["offset"].to_pylist()
        cluster.clock.now += 25
    assert offsets == list(range(COUNT))
    assert asked(leader) == [0, 40, 80]
    assert cluster.clock.slept == []


@pytest.mark.parametrize(
    "answer",
    [1, 3, 6, 29, 42, 74, -1, EMPTY, OSError("gone"), TimeoutError("slow")],
    ids=str,
)
def test_what_a_follower_does_not_answer_is_asked_of_the_leader(
    answer: int | str | Exception,
) -> None:
    """At once, and for a while the leader is not to name another; then it may."""
    leader = replica(names=FOLLOWER)
    follower = replica("follower:1", answers=[None, None, answer])
    cluster = brokers(leader, follower)
    assert read(cluster) == list(range(COUNT))
    # With requests under way for the one before: the fourth was never answered.
    assert asked(follower) == [0, 10, 20]
    assert asked(leader) == [0, *range(20, COUNT, 10)]
    assert leader.racks == ["r1", *[""] * 8]
    assert cluster.forgotten == isinstance(answer, Exception)  # its address may be another now
    cluster.clock.now += LEADER_ALONE_SECONDS + 1
    assert read(cluster) == list(range(COUNT))
    assert len(leader.fetches) == 10
    assert leader.racks[-1] == "r1"


def test_a_follower_that_cannot_be_reached() -> None:
    leader = replica(names=FOLLOWER)
    cluster = brokers(leader, None)
    assert read(cluster) == list(range(COUNT))
    assert cluster.opened == [LEADER, FOLLOWER, LEADER]
    assert cluster.forgotten == 1  # so that the map of addresses is asked for again


def test_a_follower_that_refuses_the_login() -> None:
    class Refusing(ScriptedReplica):
        def lease(self, address: Address) -> ScriptedLog:
            raise AuthenticationError("its certificate was not accepted")

    cluster = brokers(replica(names=FOLLOWER), Refusing(LOG, "follower:1"))
    assert read(cluster) == list(range(COUNT))


def test_a_leader_that_refuses_the_login_is_an_error() -> None:
    class Refusing(ScriptedReplica):
        def lease(self, address: Address) -> ScriptedLog:
            raise AuthenticationError("its certificate was not accepted")

    cluster = brokers(Refusing(LOG, "leader:1"), None)
    with pytest.raises(AuthenticationError):
        read(cluster)


def test_a_follower_that_lags_is_no_data_loss() -> None:
    """It holds 30 records: at its end it has nothing, and behind its end it is out of range."""
    for start in (0, 50):
        leader, follower = replica(names=FOLLOWER), replica("follower:1", batches=LOG[:3])
        cluster = brokers(leader, follower)
        assert read(cluster, whole(start)) == list(range(start, COUNT))
        assert asked(leader)[1] == max(30, start)


def test_what_the_leader_does_not_hold_either_is_lost() -> None:
    leader, follower = replica(names=FOLLOWER), replica("follower:1")
    leader.start = follower.start = 40
    cluster = brokers(leader, follower)
    with pytest.raises(
        DataLossError, match=r"offsets 7 to 100 are wanted.*holds 40 to 100"
    ) as lost:
        read(cluster, whole(7))
    assert lost.value.broker == "leader:1"
    assert read(cluster, whole(7), failOnDataLoss="false") == list(range(40, COUNT))


class Deposed(ScriptedBrokers):
    """The first leader is remembered until it is forgotten; the second one leads."""

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Leader]:
        return dict.fromkeys(partitions, ("node", 2 if self.forgotten else 1))


class Slow(ScriptedReplica):
    """Each answer takes half a second."""

    clock: Clock

    def receive_ready(self) -> memoryview | None:
        return self.receive()

    def receive(self) -> memoryview:
        self.clock.now += 0.5
        return super().receive()


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("start", [0, 50])
def test_what_a_former_leader_does_not_hold_is_asked_of_the_one_that_leads(
    start: int, fails: str
) -> None:
    """At its end it has nothing, behind it is out of range, and it knows of no other leader."""
    former, leader = Slow(LOG[:3], "former:1", response_bytes=1), replica()
    cluster = Deposed(1, {1: former, 2: leader}, Clock())
    former.clock = cluster.clock
    options = {"kafka.client.rack": "", "failOnDataLoss": fails}
    assert read(cluster, whole(start), **options) == list(range(start, COUNT))
    assert asked(leader)[0] == max(30, start)


class OpenTransaction(Slow):
    """From its last stable offset on it hands out nothing."""

    def receive_ready(self) -> memoryview | None:
        return self.receive()

    def receive(self) -> memoryview:
        if self._waiting[0].offset == self.stable:
            self.answers = [EMPTY]
        return super().receive()


@pytest.mark.parametrize("leads", [1, 2])
def test_a_transaction_that_a_former_leader_has_open_may_have_ended(leads: int) -> None:
    """The marker that ends it is in the log of the one that leads now."""
    former, leader = OpenTransaction(LOG, "former:1", response_bytes=1), replica()
    cluster = Deposed(1, {1: former, 2: leader if leads == 2 else former}, Clock())
    former.clock, former.stable = cluster.clock, 30
    options = {"kafka.client.rack": "", "kafka.isolation.level": "read_committed"}
    if leads == 2:
        assert read(cluster, whole(), **options) == list(range(COUNT))
        assert asked(leader)[0] == 30
        return
    with pytest.raises(FetchTimeoutError, match="its last stable offset is 30, and"):
        read(cluster, whole(), **options)
    assert cluster.forgotten == 1


def test_what_the_one_that_leads_does_not_hold_either_is_lost() -> None:
    former, leader = replica(batches=LOG[:3]), replica("leader:2", batches=LOG[:4])
    cluster = Deposed(1, {1: former, 2: leader}, Clock())
    with pytest.raises(DataLossError, match=r"offsets 50 to 100 are wanted.*holds 0 to 40") as lost:
        read(cluster, whole(50), **{"kafka.client.rack": ""})
    assert (lost.value.broker, asked(former), asked(leader)) == ("leader:2", [50], [50])


@pytest.mark.parametrize("rows_max", [7, 1000])
@pytest.mark.parametrize("damaged", [0, 4, 9])
def test_a_follower_whose_copy_is_damaged(
    monkeypatch: pytest.MonkeyPatch, damaged: int, rows_max: int
) -> None:
    """A flipped bit that the checksum tells: the leader's copy is read, each record once."""
    monkeypatch.setattr(reading, "SliceRecords", partial(SliceRecords, max_rows=rows_max))
    bad = bytearray(LOG[damaged])
    bad[-3] ^= 0x40
    batches = [*LOG[:damaged], bytes(bad), *LOG[damaged + 1 :]]
    leader = replica(names=FOLLOWER)
    # All in one response: what comes before the damage may have been delivered.
    follower = ScriptedReplica(batches, "follower:1", response_bytes=1 << 20)
    cluster = brokers(leader, follower)
    assert read(cluster, whole(3, 97)) == list(range(3, 97))
    assert len(follower.fetches) == 1
    cluster = brokers(leader, follower)
    follower.response_bytes = 1
    options = reader_options(IN_RACK, "t")
    (found,) = find_ends([PlannedSlice(whole(3, 97), 90)], options, brokers=cluster)
    assert (found.end, found.records) == (93, 90)
    assert len(follower.fetches) > 1
    cluster = brokers(replica(batches=batches), None)
    with pytest.raises(CorruptRecordError):
        read(cluster)


def test_a_follower_that_names_another_is_left() -> None:
    """Only a leader knows. Two that name each other would be asked for ever."""
    leader, follower = replica(names=FOLLOWER), replica("follower:1", names=LEADER)
    cluster = brokers(leader, follower)
    assert read(cluster) == list(range(COUNT))
    assert asked(follower) == [0]


class Stubborn(ScriptedReplica):
    """A leader that names a follower whatever the rack, as a replica.selector.class may.

    Args:
        gives_in_after: Number of requests after which it names none; None for never.
    """

    def __init__(self, gives_in_after: int | None = None) -> None:
        super().__init__(LOG, "leader:1", names=FOLLOWER, response_bytes=1)
        self._gives_in_after = gives_in_after

    def send(self, request: Any) -> None:
        request.rack_id = "any"
        super().send(request)
        if self._gives_in_after is not None and len(self.fetches) > self._gives_in_after:
            self.names = None


def test_a_follower_is_read_without_a_rack_if_the_leader_says_so() -> None:
    leader = Stubborn()
    cluster = brokers(leader, replica("follower:1"))
    assert read(cluster, WHOLE_SLICE, **{"kafka.client.rack": ""}) == list(range(COUNT))
    assert asked(leader) == [0]


def test_a_leader_that_names_a_dead_follower_for_ever() -> None:
    """The leader is asked with pauses; if it gives in, the reader goes on, else an error tells."""
    options = {"kafka.retry.backoff.ms": "40", "kafka.default.api.timeout.ms": "300"}
    leader = Stubborn()
    cluster = brokers(leader, None)
    with pytest.raises(FetchTimeoutError, match="the leader names a follower that answers nothing"):
        read(cluster, WHOLE_SLICE, **options)
    assert 2 < len(leader.fetches) < 12
    cluster = brokers(Stubborn(gives_in_after=4), None)
    assert read(cluster, WHOLE_SLICE, **options) == list(range(COUNT))


def test_the_log_tells_where_records_come_from(caplog: pytest.LogCaptureFixture) -> None:
    cluster = brokers(replica(names=FOLLOWER), replica("follower:1", answers=[74]))
    with caplog.at_level(logging.INFO, "kshare.kafka.protocol.brokers"):
        read(cluster)
    assert caplog.messages == [
        "t-0: the leader names broker 2 to be read (client.rack: r1)",
        "t-0: back from follower 2 to the leader: FENCED_LEADER_EPOCH",
    ]


def test_a_response_is_delivered_though_the_next_request_cannot_be_sent() -> None:
    """That one is sent before the response is decoded; the broker may go away in between."""

    class Closing(ScriptedReplica):
        def send(self, request: Any) -> None:
            if len(self.fetches) % 3 == 2:
                self.fetches.append((-1, 0))
                self.racks.append("")
                raise BrokenPipeError("gone")
            super().send(request)

    for rack in ("", "r1"):
        leader = Closing(LOG, "leader:1", response_bytes=1, names=FOLLOWER)
        follower = Closing(LOG, "follower:1", response_bytes=1)
        cluster = brokers(leader, follower)
        assert read(cluster, WHOLE_SLICE, **{"kafka.client.rack": rack}) == list(range(COUNT))


ANSWERS = st.none() | st.sampled_from([3, 5, 6, 74, EMPTY, OSError("gone")])


@given(
    st.lists(ANSWERS, max_size=6),
    st.lists(ANSWERS | st.just(1), max_size=6),
    st.integers(1, 10),
    st.tuples(st.integers(0, COUNT - 1), st.integers(1, COUNT))
    .map(sorted)
    .filter(lambda ends: ends[0] < ends[1]),
    st.sampled_from([1, 300, 1 << 20]),
)
def test_whoever_answers_what_the_rows_are_those_of_the_log(
    leads: list[Any],
    follows: list[Any],
    held: int,
    ends: list[int],
    response_bytes: int,
) -> None:
    class Ending(ScriptedReplica):
        """A leader that names nobody after a while, which ends the to and fro."""

        def receive_ready(self) -> memoryview | None:
            return self.receive()

        def receive(self) -> memoryview:
            if len(self.fetches) > len(leads) + len(follows) + 1:
                self.names = None
            return super().receive()

    class Forgetful(ScriptedBrokers):
        """A leader may name the follower that failed at once again."""

        def prefer(
            self, topic_partition: TopicPartition, node_id: int | None, seconds: float
        ) -> None:
            super().prefer(topic_partition, node_id, -1.0 if node_id is None else seconds)

    answers = [*leads, *[None] * 99]
    leader = Ending(LOG, "leader:1", names=FOLLOWER, answers=answers, response_bytes=response_bytes)
    follower = ScriptedReplica(
        LOG[:held], "follower:1", answers=follows, response_bytes=response_bytes
    )
    cluster = Forgetful(LEADER, {LEADER: leader, FOLLOWER: follower}, Clock())
    assert read(cluster, whole(*ends)) == list(range(*ends))


# -- over sockets, on librdkafka's mock brokers ---------------------------------------------------


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    memory = ProcessLocal(broker_pool.PoolMemory, keeps_copy=False)
    monkeypatch.setattr(broker_pool, "_memory", memory)
    with FakeCluster(2, topics={"t": 1}) as running:
        running.move_leader("t", 0, LEADER)
        running.produce("t", [Record(b"k%d" % (i % 7), b"v%d" % i) for i in range(COUNT)])
        yield running
        broker_pool.close_idle()


def read_over_sockets(**options: str) -> list[int]:
    found = kshare.read_slice(whole(), IN_RACK | options)
    return [offset for batch in found for offset in batch["offset"].to_pylist()]


def fetches(cluster: FakeCluster) -> dict[int, int]:
    return {broker: n for (broker, api), n in cluster.requests().items() if api == "Fetch"}


def test_over_sockets_the_follower_is_asked(cluster: FakeCluster) -> None:
    cluster.set_follower("t", 0, FOLLOWER)
    cluster.track_requests()
    servers = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    assert read_over_sockets(**servers) == list(range(COUNT))
    assert fetches(cluster) == {LEADER: 1, FOLLOWER: 1}
    cluster.track_requests()
    assert read_over_sockets(**servers) == list(range(COUNT))
    assert fetches(cluster) == {FOLLOWER: 1}
    cluster.stop_broker(FOLLOWER)
    cluster.set_follower("t", 0, None)  # this leader would name it whatever the rack
    assert read_over_sockets(**servers) == list(range(COUNT))


def test_an_old_broker_is_not_told_the_rack(cluster: FakeCluster) -> None:
    cluster.set_follower("t", 0, FOLLOWER)
    cluster.limit_api_version("Fetch", 0, 10)
    cluster.track_requests()
    assert read_over_sockets(**{"kafka.bootstrap.servers": cluster.bootstrap_servers}) == list(
        range(COUNT)
    )
    assert fetches(cluster).keys() == {LEADER}  # how often is the mock broker's affair


def test_a_broker_that_the_metadata_does_not_hold(cluster: FakeCluster) -> None:
    """The mock leader names broker 2 while nobody has told where that is."""
    cluster.set_follower("t", 0, FOLLOWER)
    servers = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    read_over_sockets(**servers)
    memory = broker_pool.process_memory()
    ((brokers_of, _),) = memory.brokers.items()
    memory.preferences.clear()
    memory.brokers[brokers_of] = {}
    cluster.track_requests()
    assert read_over_sockets(**servers) == list(range(COUNT))
    # Whatever the rack, this leader names it again: by then it is known.
    assert fetches(cluster) == {LEADER: 2, FOLLOWER: 1}
    assert sorted(memory.brokers[brokers_of]) == [LEADER, FOLLOWER]  # asked for again
