"""Consumers without key order on the mock cluster: they share a partition by chunks."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as RdTopicPartition

from kshare.core.hashing import ALL_HASHES, KeyRanges
from kshare.core.offsets import OffsetRange
from kshare.errors import FencedError, KafkaError, KshareError, OptionsError, PolicyError
from kshare.group import KeySharedConsumer
from kshare.group.delivery import shared_dispatcher
from kshare.group.log.topic import log_partition
from kshare.group.protocol.commit_log.record_codec import encode, encode_key
from kshare.group.protocol.commit_log.records import Claim, Key, Lease, Record, Reset
from kshare.group.session import log_follower
from kshare.group.session.session import GroupSession
from kshare.kafka.policies import INDIVIDUAL_COMMIT, RANGE_FETCH, Policy
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S, Ahead
from tests.support.groups import GROUP, LOG, LOWER, T0, eventually, quick_settings
from tests.support.policies import FakePolicies

RECORDS = 300
CHUNK = 50


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 2, LOG: 3}) as running:
        running.produce("orders", [(None, f"{i}") for i in range(RECORDS)], partition=0)
        yield running


@pytest.fixture
def make(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., KeySharedConsumer]]:
    # The mock cluster answers a fetch of the log late, though there is something.
    monkeypatch.setattr(log_follower, "_LONGEST_WAIT_MS", 200)
    with ExitStack() as stack:

        def consumer(
            policies: FakePolicies | None = None,
            session: Callable[..., GroupSession] = GroupSession,
            **config: Any,
        ) -> KeySharedConsumer:
            given = {name.replace("__", "."): value for name, value in config.items()}
            base = {
                # Busy machine or not: what is leased again would come again.
                **quick_settings(cluster.bootstrap_servers, claim_timeout_ms=20_000),
                "cooperative.lease.timeout.ms": 60_000,
                "consumption.order": "none",
                "cooperative.chunk.records": CHUNK,
            }
            made = KeySharedConsumer(
                base | given, session=session, policies=policies or FakePolicies()
            )
            stack.callback(made.close)
            return made

        yield consumer


class Worker:
    """A consumer that is polled in a thread."""

    def __init__(self, consumer: KeySharedConsumer, *, subscribes: bool) -> None:
        self.consumer = consumer
        self.offsets: list[int] = []
        self.faults: list[Exception] = []
        self._subscribes = subscribes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        if self._subscribes:
            self.consumer.subscribe(["orders"])
        else:
            self.consumer.assign({T0: []})
        while not self._stop.is_set():
            try:
                message = self.consumer.poll(0.05)
            except Exception as error:
                self.faults.append(error)
                return
            if message is not None:
                self.offsets.append(message.offset())
                time.sleep(0.001)

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self.consumer.close()


@pytest.fixture
def start(make: Callable[..., KeySharedConsumer]) -> Iterator[Callable[..., Worker]]:
    with ExitStack() as stack:

        def worker(*, subscribes: bool = False, **config: Any) -> Worker:
            each = Worker(make(**config), subscribes=subscribes)
            stack.callback(each.end)
            return each

        yield worker


def test_the_lag_is_what_nobody_has_processed(
    make: Callable[..., KeySharedConsumer], start: Callable[..., Worker]
) -> None:
    """Also that of a member that has paused, while others go on."""
    first = make(auto__commit__interval__ms=50)
    first.assign({T0: []})
    assert eventually(lambda: first.poll(0.05))
    first.pause([T0])
    before = first.metrics().partitions[T0].lag
    assert before is not None
    assert before >= RECORDS - CHUNK
    start(auto__commit__interval__ms=50)

    def lag() -> int | None:
        assert first.poll(0.05) is None
        return first.metrics().partitions[T0].lag

    leased = 2 * CHUNK  # at most, of its own
    assert eventually(lambda: (left := lag()) is not None and left <= leased)
    first.resume([T0])
    assert eventually(lambda: first.poll(0.05) is None and first.metrics().partitions[T0].lag == 0)


def has_all(workers: list[Worker], count: int) -> bool:
    """Whether they have been given so many records."""
    return len(all_of(workers)) >= count


def all_of(workers: list[Worker]) -> list[int]:
    """What they have been given."""
    return [offset for worker in workers for offset in worker.offsets]


def write(cluster: FakeCluster, *records: Record) -> None:
    append(cluster, *(encode(GROUP, record) for record in records))


def append(cluster: FakeCluster, *pairs: tuple[bytes, bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for key, value in pairs:
        producer.produce(LOG, value, key, log_partition(GROUP, 3))
    assert producer.flush(WAIT_S) == 0


def stable(consumer: KeySharedConsumer) -> int:
    found = consumer.committed([T0]).get(T0)
    return 0 if found is None else found.offset


@pytest.mark.parametrize("subscribes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_members_share_a_partition_and_each_record_comes_once(
    cluster: FakeCluster, start: Callable[..., Worker], subscribes: bool
) -> None:
    workers = [start(subscribes=subscribes) for _ in range(3)]
    eventually(partial(has_all, workers, RECORDS))
    count = RECORDS
    for _ in range(20):  # the first may have had all before the others had begun
        if sum(bool(each.offsets) for each in workers) > 1:
            break
        cluster.produce("orders", [(None, "more")] * 5 * CHUNK, partition=0)
        count += 5 * CHUNK
        eventually(partial(has_all, workers, count))
    assert sum(bool(each.offsets) for each in workers) > 1
    assert sorted(all_of(workers)) == list(range(count))
    eventually(lambda: stable(workers[0].consumer) == count)


def test_records_that_come_later_go_to_whoever_is_free(
    cluster: FakeCluster, start: Callable[..., Worker]
) -> None:
    workers = [start() for _ in range(2)]
    eventually(partial(has_all, workers, RECORDS))
    for count in range(RECORDS + 1, RECORDS + 6):
        cluster.produce("orders", [(None, "later")], partition=0)
        eventually(partial(has_all, workers, count))
    assert sorted(all_of(workers)) == list(range(RECORDS + 5))


def test_a_chunk_is_committed_once(start: Callable[..., Worker]) -> None:
    commits: list[Any] = []
    worker = start(on_commit=lambda error, offsets: commits.append((error, offsets)))
    eventually(partial(has_all, [worker], RECORDS))
    eventually(lambda: stable(worker.consumer) == RECORDS)
    assert all(error is None for error, _ in commits)
    assert len(commits) <= -(-RECORDS // CHUNK) + 6  # smaller ones at the end


def test_what_is_not_acknowledged_comes_again(make: Callable[..., KeySharedConsumer]) -> None:
    first = make(acknowledgement__mode="explicit")
    first.assign({T0: []})
    messages = first.consume(50, WAIT_S)
    assert [message.offset() for message in messages] == list(range(50))
    for message in messages:
        if message.offset() % 10:
            first.acknowledge(message)
    assert first.commit() == {T0: 0}
    first.close()
    second = make()
    second.assign({T0: []})
    again = [message.offset() for message in second.consume(RECORDS - 45, WAIT_S)]
    assert again == [*range(0, 50, 10), *range(50, RECORDS)]


def test_batches(make: Callable[..., KeySharedConsumer]) -> None:
    consumer = make(cooperative__chunk__records=100)
    consumer.assign({T0: []})
    seen: list[int] = []
    while len(seen) < RECORDS:
        batch = consumer.consume_batch(WAIT_S)
        assert batch is not None
        assert batch.num_rows <= 100
        seen += batch.column("offset").to_pylist()
    assert seen == list(range(RECORDS))
    assert consumer.commit() == {T0: RECORDS}


def test_a_restart_goes_on_where_it_was(make: Callable[..., KeySharedConsumer]) -> None:
    first = make(enable__auto__commit=False)
    first.assign({T0: []})
    first.consume(70, WAIT_S)
    assert first.commit() == {T0: 70}
    first.consume(10, WAIT_S)
    first.close()
    second = make()
    second.assign({T0: []})
    messages = second.consume(RECORDS - 70, WAIT_S)
    assert [message.offset() for message in messages] == list(range(70, RECORDS))


def test_what_a_dead_member_has_leased_is_delivered_once_it_is_silent(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    write(
        cluster,
        Claim(T0, "dead#1", ALL_HASHES, shared=True),
        Reset(T0, 1, 0),
        Lease(T0, 1, "dead#1", 1, OffsetRange(0, 50)),
    )
    clock = Ahead()
    consumer = make(session=partial(GroupSession, now=clock.monotonic), claim__timeout__ms=600_000)
    consumer.assign({T0: []})
    seen = [message.offset() for message in consumer.consume(RECORDS - 50, WAIT_S)]
    assert sorted(seen) == list(range(50, RECORDS))
    consumer.commit()  # for so long it has not heard of the log either, and would get its own again
    clock.seconds += 600
    late = [message.offset() for message in consumer.consume(50, WAIT_S)]
    assert sorted(late) == list(range(50))


def test_a_member_that_others_took_for_dead_goes_on_under_another_name(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer], caplog: pytest.LogCaptureFixture
) -> None:
    consumer = make()
    consumer.assign({T0: []})
    consumer.consume(30, WAIT_S)
    consumer.commit()
    name = f"{consumer.memberid()}#1"
    append(cluster, (encode_key(GROUP, Key(0, "claim", T0, (name,))), None))
    seen: set[int] = set()
    while len(seen) < RECORDS - 30:
        message = consumer.poll(WAIT_S)
        assert message is not None
        seen.add(message.offset())
    assert seen == set(range(30, RECORDS))
    assert "took this one for dead" in caplog.text


def test_a_member_with_key_order_takes_over(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make()
    consumer.assign({T0: []})
    consumer.consume(1, WAIT_S)
    write(cluster, Claim(T0, "ordered", KeyRanges([LOWER])))
    with pytest.raises(FencedError, match="ordered"):
        eventually(lambda: consumer.poll(0.1) is None and False)


def test_what_retention_has_deleted_is_passed_over(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make()
    consumer.assign({T0: []})
    consumer.consume(10, WAIT_S)
    consumer.commit()
    consumer.close()
    cluster.trim("orders", 0, 200)
    again = make()
    again.assign({T0: []})
    seen = [message.offset() for message in again.consume(100, WAIT_S)]
    assert seen == list(range(200, RECORDS))
    assert again.commit() == {T0: RECORDS}


def test_pause_and_resume(make: Callable[..., KeySharedConsumer]) -> None:
    consumer = make()
    consumer.assign({T0: []})
    seen = [message.offset() for message in consumer.consume(5, WAIT_S)]
    consumer.pause([T0])
    assert consumer.poll(0.2) is None
    consumer.resume([T0])
    seen += [message.offset() for message in consumer.consume(RECORDS - 5, WAIT_S)]
    assert seen == list(range(RECORDS))


def test_what_needs_an_order_is_refused(make: Callable[..., KeySharedConsumer]) -> None:
    consumer = make()
    with pytest.raises(ValueError, match="whole partitions"):
        consumer.assign({T0: [(0, 5)]})
    with pytest.raises(ValueError, match=r"kshare offsets reset --group G --to \.\.\. sets the"):
        consumer.assign([RdTopicPartition("orders", 0, 5)])
    consumer.assign({T0: []})
    with pytest.raises(ValueError, match="take chunks"):
        consumer.seek(T0, 5)


@pytest.mark.parametrize("policy", [Policy(INDIVIDUAL_COMMIT), Policy(RANGE_FETCH, "orders")])
@pytest.mark.parametrize("subscribes", [False, True])
def test_policies_hold_for_chunks_from_the_start_and_under_way(
    make: Callable[..., KeySharedConsumer], policy: Policy, subscribes: bool
) -> None:
    def begin(consumer: KeySharedConsumer) -> None:
        if subscribes:
            consumer.subscribe(["orders"])
        else:
            consumer.assign({T0: []})

    with pytest.raises(PolicyError, match=r"consumption\.order=none is not accepted"):
        begin(make(FakePolicies(policy)))
    policies = FakePolicies(Policy(RANGE_FETCH, "other"))
    consumer = make(policies, auto__commit__interval__ms=10)
    begin(consumer)
    assert consumer.poll(WAIT_S) is not None
    policies.denied.add(policy)

    def fault() -> PolicyError | None:
        try:
            consumer.poll(0.1)
        except PolicyError as error:
            return error
        return None

    assert eventually(fault).policy == policy.name
    if subscribes:  # the leader takes the topic away
        eventually(lambda: not (fault() and consumer.assignment()))
        eventually(lambda: not consumer.assignment() and fault() is None)
        policies.denied.clear()
        eventually(lambda: fault() is None and consumer.assignment())
        return
    for _ in range(3):  # as long as it is so
        assert fault() is not None
    policies.denied.clear()
    eventually(lambda: fault() is None)


def test_what_patterns_and_later_subscriptions_mean_is_subject_to_policies(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    """The leader assigns it to nobody, and says so; all other topics go on."""
    cluster.create_topic("pictures")
    cluster.produce("pictures", [(None, f"{i}") for i in range(RECORDS)], partition=0)
    policies = FakePolicies(Policy(RANGE_FETCH, "pictures"))
    consumer = make(policies, enable__auto__commit=False)
    consumer.subscribe("^(pict|ord)")
    seen = set[str]()

    def fault() -> PolicyError | None:
        try:
            seen.update(str(message.topic()) for message in consumer.consume(CHUNK, 0.1))
        except PolicyError as error:
            return error
        return None

    said = eventually(fault)
    assert (said.policy, said.topic) == (RANGE_FETCH, "pictures")
    assert "nobody is assigned any of topic" in str(said)
    assert f"pictures ({RANGE_FETCH})" in str(said)
    eventually(lambda: fault() is None and "orders" in seen)
    assert seen == {"orders"}
    assert {tp.topic for tp in consumer.assignment()} == {"orders"}
    with pytest.raises(PolicyError, match=r"consumption\.order=none is not accepted"):
        consumer.subscribe(["pictures"])


@pytest.mark.parametrize(
    "config",
    [
        {"transactional.id": "t"},
        {"allow.individual.commit": False},
    ],
)
def test_contradictions_are_faults(config: dict[str, Any]) -> None:
    base = {"bootstrap.servers": "localhost:9", "group.id": "g", "consumption.order": "none"}
    with pytest.raises(OptionsError, match=f"contradicts {next(iter(config))}"):
        KeySharedConsumer(base | config)


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("auto", [False, True])
def test_chunks_that_are_not_committed_are_bounded(
    make: Callable[..., KeySharedConsumer],
    monkeypatch: pytest.MonkeyPatch,
    auto: bool,
    explicit: bool,
) -> None:
    """Else memory grows, as long as commits fail or nobody commits."""
    monkeypatch.setattr(shared_dispatcher, "_MOST_UNCOMMITTED", 2)
    mode = "explicit" if explicit else "implicit"
    consumer = make(
        enable__auto__commit=auto, auto__commit__interval__ms=10, acknowledgement__mode=mode
    )
    commit, answers = GroupSession.commit, [True]

    def fails(self: GroupSession, *given: Any, **named: Any) -> Any:
        if answers[0]:
            raise KafkaError("no right")
        return commit(self, *given, **named)

    monkeypatch.setattr(GroupSession, "commit", fails)
    consumer.assign({T0: []})
    seen: list[int] = []

    def fault() -> str | None:
        try:
            for message in consumer.consume(10, 0.1):
                seen.append(message.offset())
                consumer.acknowledge(message)
        except KshareError as error:
            return str(error)
        return None

    text = eventually(fault)
    # A chunk is leased ahead, while the one before is processed.
    assert re.search("orders-0: [23] chunks are processed and not committed", text)
    assert ("no right" if auto else "call commit() more often") in text
    count = len(seen)
    assert CHUNK < count <= 3 * CHUNK
    assert fault() == text
    answers[0] = False
    if not auto:
        consumer.commit()

    def has_more() -> bool:
        fault()
        return len(seen) > count

    eventually(has_more)


@pytest.mark.parametrize(
    "subscribes",
    [pytest.param(True, marks=pytest.mark.slow), False],
    ids=["subscribe", "assign"],
)
def test_what_a_member_that_hangs_has_leased_comes_again(
    cluster: FakeCluster,
    make: Callable[..., KeySharedConsumer],
    start: Callable[..., Worker],
    subscribes: bool,
) -> None:
    """It lives, and its handler does not return."""
    first = make(cooperative__lease__timeout__ms=1_500, max__poll__interval__ms=60_000)
    begin(first, subscribes=subscribes)
    hung = first.consume(10, WAIT_S)
    assert len(hung) == 10
    worker = start(subscribes=subscribes)
    assert eventually(lambda: set(worker.offsets) == set(range(RECORDS)))
    assert not worker.faults
    # What it has returned counts as processed then, and it goes on with what is new.
    assert first.consume(1, 0.5) == []

    def goes_on() -> bool:
        # One chunk goes to either of them: the other may take each that is there already.
        cluster.produce("orders", [(None, "more")] * 20, partition=0)
        return bool(first.consume(1, 0.1))

    assert eventually(goes_on)


def test_a_record_that_is_never_acknowledged_comes_again(
    make: Callable[..., KeySharedConsumer],
) -> None:
    consumer = make(
        acknowledgement__mode="explicit",
        auto__commit__interval__ms=100,
        cooperative__lease__timeout__ms=1_500,
    )
    consumer.assign({T0: []})
    seen: list[int] = []

    def comes_again() -> bool:
        # On a busy machine others come again, too, and each time they are acknowledged.
        for message in consumer.consume(100, 0.1):
            if message.offset() != 7 or 7 in seen:
                consumer.acknowledge(message)
            seen.append(message.offset())
        return seen.count(7) > 1 and len(set(seen)) == RECORDS

    assert eventually(comes_again)
    assert set(seen) == set(range(RECORDS))
    assert eventually(lambda: comes_again() and stable(consumer) == RECORDS)
    assert eventually(lambda: consumer.consume(10, 0.1) == [])


def begin(consumer: KeySharedConsumer, *, subscribes: bool) -> None:
    if subscribes:
        consumer.subscribe(["orders"])
    else:
        consumer.assign({T0: []})
