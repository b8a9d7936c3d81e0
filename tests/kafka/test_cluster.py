"""The control path on a mock cluster: partitions, offsets, and what goes wrong."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaException, Uuid
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka.admin import (
    AdminClient,
    ListOffsetsResultInfo,
)

from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import TopicPartition
from kshare.errors import AuthorizationError, KafkaError, UnknownTopicError
from kshare.kafka.cluster import Cluster
from kshare.kafka.examination import log_bounds
from kshare.options import Assign, Subscribe, SubscribePattern, parse_options
from kshare.options.frozen import FrozenMapping
from kshare.testing import FakeCluster, Record
from tests.support.clock import Clock

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
QUICK = {"kafka.retry.backoff.ms": "10", "fetchOffset.numRetries": "1"}


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"t": 2, "u": 1}) as running:
        yield running


def cluster_of(
    servers: str,
    *,
    admin: Callable[..., AdminClient] = AdminClient,
    clock: Clock | None = None,
    options: Mapping[str, str] | None = None,
) -> Cluster:
    given = {"kafka.bootstrap.servers": servers, "subscribe": "t", **QUICK, **(options or {})}
    kafka = parse_options(given, streaming=True).options.kafka
    return Cluster(kafka, admin=admin, clock=clock or time)


@pytest.fixture
def cluster(fake: FakeCluster) -> Iterator[Cluster]:
    with closing(cluster_of(fake.bootstrap_servers)) as made:
        yield made


@pytest.fixture
def one_pause(fake: FakeCluster) -> Iterator[Cluster]:
    """A cluster that has to answer after one pause at most: who pauses again fails."""

    def refuse(number: int) -> None:
        assert number == 1

    clock = Clock(on_sleep=refuse)
    with closing(cluster_of(fake.bootstrap_servers, clock=clock)) as made:
        yield made
    assert clock.slept == pytest.approx([0.01], rel=0.2)


def test_partitions_of_each_kind_of_subscription(fake: FakeCluster, cluster: Cluster) -> None:
    assert cluster.partitions(Subscribe(("u", "t"))) == (T0, T1, U0)
    assert cluster.partitions(Subscribe(("t", "t"))) == (T0, T1)
    assert cluster.partitions(SubscribePattern("[a-t]")) == (T0, T1)
    assert cluster.partitions(SubscribePattern("none")) == ()
    chosen = Assign(FrozenMapping({T1: ALL_HASHES, T0: ()}))
    assert cluster.partitions(chosen) == (T0, T1)


def test_the_racks_of_replicas(cluster: Cluster) -> None:
    racks = cluster.replica_racks(["t", "u"])
    assert racks.keys() == {T0, T1, U0}
    assert all(each and set(each) == {None} for each in racks.values())  # the mock has none
    with pytest.raises(UnknownTopicError):
        cluster.replica_racks(["nowhere"])


def test_a_broker_that_says_no_has_answered(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most clusters have no list of parked keys: they are not looked at for their silence."""

    def diagnosis() -> None:
        pytest.fail("asked why the cluster does not answer")

    monkeypatch.setattr("kshare.kafka.silence.wire_diagnosis", diagnosis)
    clock = Clock()
    with closing(cluster_of(fake.bootstrap_servers, clock=clock)) as cluster:
        for _ in range(2):
            with pytest.raises(UnknownTopicError):
                cluster.partitions(Subscribe(("nowhere",)))
            clock.now += 100


class Described:
    """A client that describes a partition with replicas in two racks."""

    topic_id = Uuid(0, 0)

    def __call__(self, _: object, *, logger: object) -> Any:
        return self

    def describe_topics(self, topics: Any, **_: Any) -> dict[str, Future[Any]]:
        nodes = [SimpleNamespace(rack=rack) for rack in ("r1", None, "r2", "")]
        partitions = [SimpleNamespace(id=1, replicas=nodes)]
        topic = SimpleNamespace(partitions=partitions, topic_id=self.topic_id)
        future: Future[Any] = Future()
        future.set_result(topic)
        return {"t": future}

    def poll(self, seconds: float) -> int:
        return 0


def test_a_broker_without_a_rack_is_told_from_one_with_a_rack() -> None:
    cluster = cluster_of("localhost:1", admin=Described())
    assert cluster.replica_racks(["t"]) == {T1: ("r1", None, "r2", None)}


@pytest.mark.parametrize(("told", "known"), [(Uuid(1, 2), True), (Uuid(0, 0), False)])
def test_the_id_of_a_topic(told: Uuid, known: bool) -> None:
    admin = Described()
    cluster = cluster_of("localhost:1", admin=admin)
    assert cluster.topic_ids() == {}
    admin.topic_id = told
    assert cluster.partitions(Subscribe(("t",))) == (T1,)
    assert cluster.topic_ids() == ({"t": str(told)} if known else {})


def test_a_pattern_matches_no_internal_topic(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create_topic("__consumer_offsets")
    fake.create_topic("__kshare_parked_keys")
    fake.create_topic("__individual_commit_offsets")
    fake.create_topic("__individual_commit_offsets.billing")
    fake.create_topic("__mine")
    found = cluster.partitions(SubscribePattern(".*"))
    assert {tp.topic for tp in found} == {"t", "u", "__mine"}


def test_a_topic_that_does_not_exist_is_named(cluster: Cluster) -> None:
    with pytest.raises(UnknownTopicError, match="topic v does not exist on 127") as raised:
        cluster.partitions(Subscribe(("t", "v")))
    assert (raised.value.topic, raised.value.partition) == ("v", None)


def test_offsets(fake: FakeCluster, cluster: Cluster) -> None:
    fake.produce("t", [(b"k", b"v")] * 10, partition=0)
    fake.trim("t", 0, 4)
    assert cluster.earliest([T0, T1]) == {T0: 4, T1: 0}
    assert cluster.latest([T0, T1]) == {T0: 10, T1: 0}
    assert cluster.latest([]) == {}


@pytest.mark.parametrize("beside", [(), (T0,)], ids=["alone", "beside one that exists"])
@pytest.mark.parametrize(
    ("missing", "text"),
    [(TopicPartition("t", 9), "has no partition 9"), (TopicPartition("v", 0), "does not exist")],
)
def test_a_partition_that_does_not_exist(
    one_pause: Cluster, beside: tuple[TopicPartition, ...], missing: TopicPartition, text: str
) -> None:
    with pytest.raises(UnknownTopicError, match=f"topic {missing.topic} {text} on 127") as raised:
        one_pause.latest([*beside, missing])
    assert (raised.value.topic, raised.value.partition) in {(*missing,), (missing.topic, None)}


def test_it_is_told_from_one_without_a_leader(fake: FakeCluster, one_pause: Cluster) -> None:
    fake.move_leader("t", 0, None)
    with pytest.raises(UnknownTopicError, match="topic t has no partition 9 on 127"):
        one_pause.earliest([T0, TopicPartition("t", 9)])


@pytest.mark.parametrize("beside", [(), (T0,)], ids=["alone", "beside one that exists"])
def test_a_topic_of_which_a_broker_hears_a_moment_later(
    fake: FakeCluster, beside: tuple[TopicPartition, ...]
) -> None:
    new = TopicPartition("new", 0)
    clock = Clock(on_sleep=lambda _: fake.create_topic("new"))
    with closing(cluster_of(fake.bootstrap_servers, clock=clock)) as cluster:
        assert cluster.latest([*beside, new]) == dict.fromkeys([*beside, new], 0)
    assert clock.slept


@pytest.mark.parametrize("beside", [(), (T0,)], ids=["alone", "beside one that exists"])
def test_a_partition_of_which_a_broker_hears_a_moment_later(
    fake: FakeCluster, beside: tuple[TopicPartition, ...]
) -> None:
    new = TopicPartition("t", 2)
    with FakeCluster(topics={"t": 3}) as grown:
        servers = [fake.bootstrap_servers]

        def admin(config: dict[str, Any], **more: Any) -> AdminClient:
            return AdminClient({**config, "bootstrap.servers": servers[-1]}, **more)

        clock = Clock(on_sleep=lambda _: servers.append(grown.bootstrap_servers))
        with closing(cluster_of(servers[0], admin=admin, clock=clock)) as cluster:
            assert cluster.earliest([*beside, new]) == dict.fromkeys([*beside, new], 0)
        assert clock.slept


def test_a_topic_that_was_named_and_is_missing_is_told_at_once(fake: FakeCluster) -> None:
    # The table of parked keys is asked for so in each batch, and mostly there is none.
    clock = Clock()
    with (
        closing(cluster_of(fake.bootstrap_servers, clock=clock)) as cluster,
        pytest.raises(UnknownTopicError, match="topic v does not exist on 127"),
    ):
        cluster.partitions(Subscribe(("v",)))
    assert clock.slept == []


@pytest.mark.parametrize("ask", ["earliest", "latest"])
def test_a_leader_that_is_elected_meanwhile(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture, ask: str
) -> None:
    fake.produce("t", [Record(b"k", b"v")], partition=0)
    fake.trim("t", 0, 1)
    fake.move_leader("t", 0, None)

    def elect_at_the_third(number: int) -> None:
        if number == 3:
            fake.move_leader("t", 0, 1)

    clock = Clock(on_sleep=elect_at_the_third)
    caplog.set_level("INFO", logger="kshare.kafka.cluster")
    options = {"kafka.retry.backoff.max.ms": "30"}
    with closing(cluster_of(fake.bootstrap_servers, clock=clock, options=options)) as cluster:
        assert getattr(cluster, ask)([T0]) == {T0: 1}
    assert clock.slept[:3] == pytest.approx([0.01, 0.02, 0.03], rel=0.2)
    assert "No leaders found" in caplog.text


def test_what_may_pass_is_asked_again(fake: FakeCluster, cluster: Cluster) -> None:
    fake.produce("t", [Record(b"k", b"v")], partition=0)
    fake.fail("ListOffsets", ["NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE"])
    assert cluster.latest([T0]) == {T0: 1}


class FirstAnswer:
    """A client of which the first answer to a question for offsets is a test's."""

    def __init__(self, answer: ListOffsetsResultInfo | Exception) -> None:
        self.answer: ListOffsetsResultInfo | Exception | None = answer
        self.asked = 0

    def __call__(self, config: Any, **more: Any) -> Any:
        self.real = AdminClient(config, **more)
        return self

    def describe_cluster(self, **more: Any) -> Any:
        return self.real.describe_cluster(**more)

    def list_offsets(self, wanted: Any, **more: Any) -> Any:
        self.asked += 1
        answer, self.answer = self.answer, None
        if answer is None:
            return self.real.list_offsets(wanted, **more)
        future: Future[Any] = Future()
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return dict.fromkeys(wanted, future)

    def poll(self, seconds: float) -> int:
        return 0


def test_a_client_is_connected_before_it_asks_for_offsets(fake: FakeCluster) -> None:
    """Else one in eight asks who leads the partition only after 3 s."""
    asked = []

    class Noting(FirstAnswer):
        def describe_cluster(self, **more: Any) -> Any:
            answer = super().describe_cluster(**more)
            answer.add_done_callback(lambda _: asked.append("answered"))
            return answer

        def list_offsets(self, wanted: Any, **more: Any) -> Any:
            asked.append("offsets")
            return super().list_offsets(wanted, **more)

    fake.produce("t", [Record(b"k", b"v")], partition=0)
    clients = [Noting(ListOffsetsResultInfo(at, 0, 0)) for at in (7, 8)]

    def admin(config: Any, **more: Any) -> Any:
        return clients.pop(0)(config, **more)

    with closing(cluster_of(fake.bootstrap_servers, admin=admin)) as cluster:
        assert cluster.latest([T0]) == {T0: 7}
        assert cluster.earliest([T0]) == {T0: 0}
        cluster.close()  # the next client knows nobody
        assert cluster.latest([T0]) == {T0: 8}
    assert asked == ["answered", "offsets", "offsets", "answered", "offsets"]


def test_a_broker_that_goes_away_amid_the_answer(fake: FakeCluster) -> None:
    """librdkafka then gives an offset that is none, and no error."""
    fake.produce("t", [Record(b"k", b"v")], partition=0)
    admin = FirstAnswer(ListOffsetsResultInfo(OFFSET_INVALID, -1, -1))
    with closing(cluster_of(fake.bootstrap_servers, admin=admin)) as cluster:
        assert cluster.latest([T0]) == {T0: 1}
    assert admin.asked == 2


@pytest.mark.parametrize("stale", [6, 74, 75])
def test_a_client_that_goes_on_by_an_old_leader(fake: FakeCluster, stale: int) -> None:
    fake.produce("t", [Record(b"k", b"v")], partition=0)

    class OldLeader(FirstAnswer):
        def list_offsets(self, wanted: Any, **more: Any) -> Any:
            self.answer = KafkaException(RdKafkaError(stale))  # as often as it is asked
            return super().list_offsets(wanted, **more)

    clients: list[Any] = [OldLeader(KafkaException(RdKafkaError(stale))), AdminClient]

    def admin(config: Any, **more: Any) -> Any:
        return clients.pop(0)(config, **more)

    with closing(cluster_of(fake.bootstrap_servers, admin=admin)) as cluster:
        assert cluster.latest([T0]) == {T0: 1}
    assert not clients


def test_not_authorized_is_not_asked_again(fake: FakeCluster, cluster: Cluster) -> None:
    fake.fail("ListOffsets", ["TOPIC_AUTHORIZATION_FAILED"])
    with pytest.raises(AuthorizationError, match="not authorized to list offsets of t-0"):
        cluster.latest([T0])
    assert cluster.latest([T0]) == {T0: 0}


def test_no_leader_in_the_stated_time(fake: FakeCluster) -> None:
    fake.move_leader("t", 0, None)
    options = {"kafka.default.api.timeout.ms": "1000"}
    with (
        closing(cluster_of(fake.bootstrap_servers, options=options)) as cluster,
        pytest.raises(KafkaError, match=r"cannot list offsets of t-0 on .* within 1 s"),
    ):
        cluster.latest([T0])


# -- what is known, for those who show it ----------------------------------------------------------


class Refusing:
    """A client of which some topics may not be described, and some partitions not be read."""

    def __init__(self, *refused: str | TopicPartition) -> None:
        self.refused = refused

    def __call__(self, config: Any, **more: Any) -> Any:
        self.real = AdminClient(config, **more)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def describe_topics(self, topics: Any, **more: Any) -> Any:
        return self.with_refusals(self.real.describe_topics(topics, **more))

    def list_offsets(self, wanted: Any, **more: Any) -> Any:
        return self.with_refusals(self.real.list_offsets(wanted, **more))

    def with_refusals(self, answers: Mapping[Any, Future[Any]]) -> Any:
        no: Future[Any] = Future()
        no.set_exception(KafkaException(RdKafkaError(RdKafkaError.TOPIC_AUTHORIZATION_FAILED)))
        return {part: no if self.is_refused(part) else each for part, each in answers.items()}

    def is_refused(self, part: Any) -> bool:
        if isinstance(part, str):
            return part in self.refused
        return TopicPartition(part.topic, part.partition) in self.refused


@pytest.mark.parametrize("ask", ["earliest", "latest", "at_timestamps"])
def test_a_partition_without_a_leader_hides_no_other(fake: FakeCluster, ask: str) -> None:
    """To show what is known, a new leader is waited for some seconds; to read, all the time."""
    fake.move_leader("t", 0, None)
    clock, faults = Clock(), list[KafkaError]()
    asked: Any = dict.fromkeys([T0, T1], 0)
    with closing(cluster_of(fake.bootstrap_servers, clock=clock)) as cluster:
        assert getattr(cluster, ask)(asked, faults.append).keys() == {T1}
        assert sum(clock.slept) == pytest.approx(3, abs=0.1)
        (fault,) = faults
        assert (fault.topic, fault.partition) == T0
        assert re.search(r"list offsets of t-0 on [\d.:]+ within 3 s: ", str(fault))
        with pytest.raises(KafkaError, match=r"within 60 s \(kafka.default.api.timeout.ms\): "):
            getattr(cluster, ask)(asked)


def test_a_leader_that_is_elected_at_once_is_no_fault(fake: FakeCluster) -> None:
    fake.move_leader("t", 0, None)
    clock, faults = Clock(on_sleep=lambda _: fake.move_leader("t", 0, 1)), list[KafkaError]()
    with closing(cluster_of(fake.bootstrap_servers, clock=clock)) as cluster:
        assert cluster.latest([T0, T1], faults.append) == {T0: 0, T1: 0}
    assert not faults


def test_what_is_refused_is_left_out_at_once(fake: FakeCluster) -> None:
    clock, faults = Clock(), list[KafkaError]()
    admin = Refusing(T1, "u")
    fake.create_topic("orders")
    with closing(cluster_of(fake.bootstrap_servers, admin=admin, clock=clock)) as cluster:
        wanted = [T0, T1, U0, TopicPartition("ordres", 0), TopicPartition("t", 9)]
        assert log_bounds(cluster, wanted, faults.append) == {T0: (0, 0)}
    assert not clock.slept
    assert {str(fault).partition(" on 127")[0] for fault in faults} == {
        "topic ordres does not exist",
        "not authorized to describe the partitions of topic u: Broker: Topic authorization failed",
        "not authorized to list offsets of t-1: Broker: Topic authorization failed",
    }
    (missing,) = [fault for fault in faults if isinstance(fault, UnknownTopicError)]
    assert str(missing).endswith("; did you mean orders?")


@pytest.mark.parametrize("refused", [("t",), (T0, T1)], ids=["topics", "partitions"])
def test_if_nothing_is_known_that_is_an_error(fake: FakeCluster, refused: Any) -> None:
    faults = list[KafkaError]()
    with (
        closing(cluster_of(fake.bootstrap_servers, admin=Refusing(*refused))) as cluster,
        pytest.raises(AuthorizationError),
    ):
        log_bounds(cluster, [T0, T1], faults.append)
    assert not faults
    with closing(cluster_of(fake.bootstrap_servers)) as cluster:  # all topics of a query are gone
        assert log_bounds(cluster, [TopicPartition("gone", 0)], faults.append) == {}
        assert log_bounds(cluster, [], faults.append) == {}
    assert len(faults) == 1


def test_nothing_is_known_of_leaders_that_are_all_away_so_long(fake: FakeCluster) -> None:
    fake.move_leader("u", 0, None)
    clock, faults = Clock(), list[KafkaError]()
    with (
        closing(cluster_of(fake.bootstrap_servers, clock=clock)) as cluster,
        pytest.raises(KafkaError, match=r"list offsets of u-0 .* within 60 s"),
    ):
        cluster.latest([U0], faults.append)
    assert not faults
    assert sum(clock.slept) == pytest.approx(60, abs=0.1), "no longer than the options say"


def test_a_cluster_that_does_not_answer_is_asked_as_often_as_said() -> None:
    clock = Clock()

    class Silent(FirstAnswer):
        def describe_cluster(self, **more: Any) -> Any:
            return next(iter(self.list_offsets([T0], **more).values()))

        def list_offsets(self, wanted: Any, **more: Any) -> Any:
            clock.now += more["request_timeout"]
            self.answer = KafkaException(RdKafkaError(RdKafkaError._TIMED_OUT))
            return super().list_offsets(wanted, **more)

    options = {
        "kafka.default.api.timeout.ms": "100",
        "fetchOffset.numRetries": "3",
        "fetchOffset.retryIntervalMs": "700",
    }
    with (
        closing(
            cluster_of("127.0.0.1:1", clock=clock, options=options, admin=Silent(KafkaException()))
        ) as cluster,
        pytest.raises(KafkaError, match=r"127\.0\.0\.1:1 within 0\.1 s"),
    ):
        cluster.latest([T0])
    assert [pause for pause in clock.slept if pause > 0.5] == [0.7, 0.7]


def test_a_closed_cluster_opens_again(fake: FakeCluster, cluster: Cluster) -> None:
    assert cluster.latest([U0]) == {U0: 0}
    cluster.close()
    fake.produce("u", [(b"k", b"v")])
    assert cluster.latest([U0]) == {U0: 1}


def test_nothing_is_opened_before_the_first_call(fake: FakeCluster) -> None:
    fake.track_requests()
    cluster_of(fake.bootstrap_servers).close()
    assert fake.requests() == {}


def test_silence_begins_with_the_reason() -> None:
    """That nobody listens is no end of the line."""
    hasty = {"kafka.default.api.timeout.ms": "1000", "fetchOffset.numRetries": "1"}
    wanted = (
        r"^localhost:1: Connection refused: cannot describe the partitions of topic t on "
        r"localhost:1 within 1 s \(kafka\.default\.api\.timeout\.ms\)$"
    )
    with (
        closing(cluster_of("localhost:1", options=hasty)) as cluster,
        pytest.raises(KafkaError, match=wanted),
    ):
        cluster.partitions(Subscribe(("t",)))


def test_the_nearest_topic_is_named_but_none_of_our_own(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.create_topic("__kshare_parked_keys")
    with pytest.raises(UnknownTopicError, match=r"does not exist on .*; did you mean orders\?$"):
        cluster.partitions(Subscribe(("order",)))
    with pytest.raises(UnknownTopicError, match=r"does not exist on [^;]*$"):
        cluster.partitions(Subscribe(("kshare_parked_keys",)))
    with pytest.raises(UnknownTopicError, match=r"^topic __kshare_policies does not [^;]*$"):
        cluster.partitions(Subscribe(("__kshare_policies",)))
