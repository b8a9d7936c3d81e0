"""A consumer's health, and how it is served."""

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from kshare.core.progress import Progress, TopicPartition
from kshare.core.waits import Wait
from kshare.errors import FencedError, KshareError
from kshare.group import ConsumerHealth, KeySharedConsumer, serve_metrics
from kshare.group.consumer.health import health_of
from kshare.group.delivery_start import DeliveryStart
from kshare.group.metrics import ConsumerMetrics, Latencies
from kshare.testing import FakeCluster
from tests.support.groups import T0, eventually

GOOD = ConsumerHealth(is_alive=True, is_ready=True)
OWNED = frozenset({T0})


class Session:
    """A session, as far as its health goes."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.seconds = 1.0
        self.places = {T0: DeliveryStart.new(Progress.at(0))}

    def check(self) -> None:
        if self.fault is not None:
            raise self.fault

    def seconds_to_deliver(self) -> float:
        return self.seconds

    def started(self) -> dict[TopicPartition, DeliveryStart]:
        return self.places


class Member:
    """A membership, as far as its health goes."""

    is_member = True
    fault: KshareError | None = None
    poll_interval = 300.0
    seconds_since_poll = 299.0


def asked(session: Session, member: Member | None = None, **given: object) -> ConsumerHealth:
    owned = given.get("owned", OWNED)
    waits = given.get("waits", {})
    return health_of(session, member, owned, waits, is_closed=bool(given.get("is_closed")))  # type: ignore[arg-type]


def test_one_that_works() -> None:
    assert asked(Session()) == asked(Session(), Member()) == GOOD
    # More members than key ranges: the others wait, and are of use at the next failure.
    assert asked(Session(), Member(), owned=frozenset()) == GOOD


def test_what_only_a_new_process_mends() -> None:
    broken, hung, failed = Session(), Member(), Member()
    broken.fault = KshareError("no right to use the log")
    failed.fault = KshareError("it cannot be a member")
    hung.seconds_since_poll = 301.0
    for answer, reason in (
        (asked(Session(), is_closed=True), "closed"),
        (asked(broken), "no right to use the log"),
        (asked(Session(), failed), "cannot be a member"),
        (asked(Session(), hung), "nobody has polled for 300 s"),
    ):
        assert (answer.is_alive, answer.is_ready) == (False, False)
        assert reason in answer.reason


def test_what_passes() -> None:
    fenced, late, waiting, joining = Session(), Session(), Session(), Member()
    fenced.fault, fenced.places = (
        FencedError("another has it", topic="orders", partition=0, hashes=((0, 1),), other="m2"),
        {},
    )
    late.seconds = -1.0
    waiting.places = {}
    joining.is_member = False
    for answer, reason in (
        (asked(Session(), owned=frozenset()), "has not subscribed"),
        (asked(Session(), joining), "joins its group"),
        (asked(late, Member()), "not reached in time"),
        (asked(waiting, Member()), "waits for former owners of key hashes: orders-0"),
        (asked(fenced), "waits for former owners"),
        (asked(Session(), waits={"full": Wait("nothing more is read", "")}), "nothing more is"),
    ):
        assert (answer.is_alive, answer.is_ready) == (True, False)
        assert reason in answer.reason


class Served:
    """A consumer of a given health."""

    is_closed = False
    answer = GOOD

    def metrics(self) -> ConsumerMetrics:
        return ConsumerMetrics("g", "m", {}, Latencies(), 0, 0, 0.0, is_member=True, leads=False)

    def health(self) -> ConsumerHealth:
        return self.answer


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_it_is_served() -> None:
    served = Served()
    with serve_metrics(served, 0, "127.0.0.1", CollectorRegistry()) as server:
        assert get(server.port, "/healthz") == get(server.port, "/readyz") == (200, "ok\n")
        status, text = get(server.port, "/metrics")
        assert status == 200
        assert 'kshare_consumer_is_member{group="g",member="m"} 1.0' in text
        assert 'kshare_consumer_leads_group{group="g",member="m"} 0.0' in text
        served.answer = ConsumerHealth(is_alive=True, is_ready=False, reason="it joins its group")
        assert get(server.port, "/healthz?full") == (200, "ok\n")
        assert get(server.port, "/readyz") == (503, "it joins its group\n")
        served.answer = ConsumerHealth(is_alive=False, is_ready=False, reason="it is closed")
        assert get(server.port, "/healthz") == (503, "it is closed\n")
    server.close()
    with pytest.raises(OSError, match="refused"):
        get(server.port, "/healthz")


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, "__individual_commit_offsets": 1}) as running:
        yield running


def test_a_member_of_a_group(cluster: FakeCluster) -> None:
    config = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": "g",
        "claim.timeout.ms": 500,
    }
    with KeySharedConsumer(config) as consumer:
        assert not consumer.health().is_ready
        assert (consumer.metrics().is_member, consumer.metrics().leads) == (None, None)
        consumer.subscribe(["orders"])
        assert consumer.health().reason == "it joins its group"
        eventually(lambda: consumer.poll(0.05) or consumer.health() == GOOD)
        assert (consumer.metrics().is_member, consumer.metrics().leads) == (True, True)
    assert consumer.health() == ConsumerHealth(
        is_alive=False, is_ready=False, reason="it is closed"
    )
