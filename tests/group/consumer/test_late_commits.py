"""Consumers without key order whose jobs outlast their leases: what is processed late counts.

Time is put ahead while a job runs, so that its lease ends without waiting.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer

from kshare.core.progress import TopicPartition
from kshare.errors import CommitFailedError, FencedError
from kshare.group import AsyncKeySharedConsumer, KeySharedConsumer, Message
from kshare.group.log.topic import log_partition
from kshare.group.protocol.commit_log.record_codec import encode
from kshare.group.protocol.commit_log.records import Reset
from kshare.group.protocol.owners.cooperator import Cooperator
from kshare.group.session import log_follower
from kshare.group.session.session import GroupSession
from kshare.group.tools.offsets import GroupOffsets
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S, Ahead
from tests.support.groups import GROUP, LOG, T0, eventually, group_config, quick_settings
from tests.support.policies import FakePolicies

RECORDS = 6
TIMEOUT_S = 60.0
Job = Callable[["Member"], bool]
"""Takes some records, works on them for longer than the lease, and says so; whether it got some."""


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 2, LOG: 3}) as running:
        running.produce("orders", [(None, f"{i}") for i in range(RECORDS)], partition=0)
        yield running


class Member:
    """A consumer with a clock of its own.

    Attributes:
        runs: How often each record was worked on.
        answers: What commits in the background were answered.
    """

    def __init__(self, servers: str, settings: Mapping[str, Any]) -> None:
        self.clock = Ahead()
        self.runs: Counter[int] = Counter()
        self.answers: list[tuple[Exception | None, Any]] = []
        base: dict[str, Any] = {
            **quick_settings(servers, session_timeout_ms=600_000, claim_timeout_ms=600_000),
            "max.poll.interval.ms": 1_200_000,
            "cooperative.lease.timeout.ms": int(TIMEOUT_S * 1000),
            "consumption.order": "none",
            "cooperative.chunk.records": 2,
            "auto.commit.interval.ms": 100,
            "on_commit": lambda error, stable: self.answers.append((error, stable)),
        }
        self.consumer = KeySharedConsumer(
            {**base, **settings},
            session=partial(GroupSession, now=self.clock.monotonic),
            policies=FakePolicies(),
        )

    def begin(self, *, subscribes: bool) -> None:
        if subscribes:
            self.consumer.subscribe(["orders"])
        else:
            self.consumer.assign({T0: []})

    def leases(self) -> tuple[str, bool, bool]:
        """The name of its claim, whether it has leased something, and whether that is timed."""
        owned = self.consumer._session._shared.ownerships
        each = owned.by_partition.get(T0)
        if each is None or not isinstance(each.owner, Cooperator):
            return "", False, False
        return each.owner.claim_name, bool(each.owner.leased), bool(owned._leases._since)

    def outlasts_its_lease(self) -> None:
        """A job takes 1.5 time-outs: the session goes on under another name meanwhile.

        But if the log says by then that others have processed all it has leased.
        """
        name, *_ = self.leases()

        def is_noted() -> bool:
            now, has_leased, is_timed = self.leases()
            return now != name or not has_leased or is_timed

        eventually(is_noted)

        def is_over() -> bool:
            # Again, as a commit that ends meanwhile lets the lease's time begin anew.
            leases = self.consumer._session._shared.ownerships._leases
            if leases.next_time() > self.clock.monotonic():
                self.clock.seconds += 1.5 * TIMEOUT_S
            return self.leases()[0] != name or not self.leases()[1]

        eventually(is_over)

    def works_on(self, messages: list[Message]) -> None:
        self.runs.update(message.offset() for message in messages)
        self.outlasts_its_lease()


def nothing_more(member: Member) -> bool:
    message = member.consumer.poll(0.05)
    if message is not None:
        member.works_on([message])
    return message is not None


def commits_it(member: Member) -> bool:
    message = member.consumer.poll(0.05)
    if message is not None:
        member.works_on([message])
        assert member.consumer.commit(message) is not None
    return message is not None


def commits_it_in_the_background(member: Member) -> bool:
    message = member.consumer.poll(0.05)
    if message is not None:
        member.works_on([message])
        member.consumer.commit(message, asynchronous=True)
    return message is not None


def acknowledges_it(member: Member) -> bool:
    messages = member.consumer.consume(2, 0.05)
    if messages:
        member.works_on(messages)
        for message in messages:
            member.consumer.acknowledge(message)
    return bool(messages)


def acknowledges_a_batch(member: Member) -> bool:
    batch = member.consumer.consume_batch(0.05)
    if batch is not None:
        member.runs.update(batch["offset"].to_pylist())
        member.outlasts_its_lease()
        member.consumer.acknowledge_batch(batch)
    return batch is not None


EXPLICIT = {"acknowledgement.mode": "explicit"}
BY_HAND = {"enable.auto.commit": False}
WAYS: dict[Job, dict[str, Any]] = {
    nothing_more: {},
    commits_it: BY_HAND,
    commits_it_in_the_background: BY_HAND,
    acknowledges_it: EXPLICIT,
    acknowledges_a_batch: EXPLICIT,
}


@pytest.fixture
def start(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Member]]:
    # The mock cluster answers a fetch of the log late, though there is something.
    monkeypatch.setattr(log_follower, "_LONGEST_WAIT_MS", 200)
    with ExitStack() as stack:

        def member(
            settings: Mapping[str, Any] | None = None, *, subscribes: bool = False
        ) -> Member:
            made = Member(cluster.bootstrap_servers, settings or {})
            stack.callback(made.consumer.close)
            made.begin(subscribes=subscribes)
            return made

        yield member


@pytest.fixture
def committed(cluster: FakeCluster) -> Iterator[Callable[[], int]]:
    kafka = group_config(cluster.bootstrap_servers).kafka
    with closing(GroupOffsets(GROUP, kafka, LOG)) as offsets:

        def stable() -> int:
            found = offsets.committed([T0]).get(T0)
            return 0 if found is None else found.offset

        yield stable


@pytest.mark.parametrize("job", WAYS, ids=lambda job: job.__name__)
@pytest.mark.parametrize("members", [1, 2])
def test_a_job_of_one_and_a_half_time_outs_is_committed_by_its_second_run(
    start: Callable[..., Member], committed: Callable[[], int], job: Job, members: int
) -> None:
    """Alone by its first one, if what it has processed is known as it leases again."""
    all_members = [start(WAYS[job]) for _ in range(members)]

    def are_done() -> bool:
        for member in all_members:
            job(member)
        return committed() == RECORDS

    assert eventually(are_done)
    runs = sum((member.runs for member in all_members), Counter[int]())
    assert set(runs) == set(range(RECORDS))
    assert max(runs.values()) <= 2
    assert not [error for member in all_members for error, _ in member.answers if error]


def test_what_is_processed_late_is_not_handed_out_again(
    start: Callable[..., Member], committed: Callable[[], int]
) -> None:
    """It is known before it is committed."""
    member = start(BY_HAND)
    (first,) = member.consumer.consume(1, WAIT_S)
    member.works_on([first])
    rest = member.consumer.consume(RECORDS - 1, WAIT_S)
    assert sorted(message.offset() for message in rest) == list(range(1, RECORDS))
    member.consumer.commit()
    assert committed() == RECORDS


def test_a_record_in_work_in_another_thread_counts_when_it_is_acknowledged(
    start: Callable[..., Member], committed: Callable[[], int]
) -> None:
    """It outlasts several leases; all else is committed meanwhile."""
    member = start(EXPLICIT)
    (slow,) = member.consumer.consume(1, WAIT_S)

    def others_are_committed() -> bool:
        for message in member.consumer.consume(2, 0.05):
            if message.offset() != slow.offset():
                member.consumer.acknowledge(message)
        found = member.consumer.committed([T0]).get(T0)
        done = found.individual_commits if found is not None else ()
        return sum(len(piece.offsets) for piece in done) == RECORDS - 1

    for _ in range(3):
        member.outlasts_its_lease()
        assert eventually(others_are_committed)
    member.consumer.acknowledge(slow)
    assert eventually(lambda: member.consumer.poll(0.05) is None and committed() == RECORDS)


def test_a_member_that_has_joined_again_commits_what_it_had_in_work(
    start: Callable[..., Member], committed: Callable[[], int]
) -> None:
    """Its job was longer than max.poll.interval.ms, so its partitions were lost."""
    short = {"max.poll.interval.ms": 3_000, "session.timeout.ms": 3_000}
    member = start({**EXPLICIT, **short}, subscribes=True)
    slow = member.consumer.consume(2, WAIT_S)

    eventually(lambda: member.consumer._receiver.subscriber.member.is_lost)  # type: ignore[union-attr]
    offsets, again = {message.offset() for message in slow}, set[int]()

    def comes_again() -> bool:
        """All of it, as nothing of it is processed yet; the rest is done now."""
        message = member.consumer.poll(0.05)
        if message is not None:
            again.add(message.offset())
            if message.offset() not in offsets:
                member.consumer.acknowledge(message)
        return len(again) == RECORDS

    assert eventually(comes_again)
    for message in slow:
        member.consumer.acknowledge(message)
    assert eventually(lambda: comes_again() and committed() == RECORDS)


def test_what_is_processed_late_of_a_partition_that_has_gone_is_said(
    start: Callable[..., Member], committed: Callable[[], int]
) -> None:
    """It counts if the partition comes back."""
    member = start(EXPLICIT | BY_HAND)
    slow = member.consumer.consume(2, WAIT_S)
    member.consumer.assign({TopicPartition("orders", 1): []})
    assert member.consumer.commit() == {}  # it is not processed yet
    for message in slow:
        member.consumer.acknowledge(message)
    with pytest.raises(CommitFailedError, match="offsets 0 to 1: this member does not have the"):
        member.consumer.commit()
    assert committed() == 0
    member.consumer.assign({T0: []})
    eventually(lambda: member.consumer.poll(0.05))
    member.consumer.commit()
    assert committed() == 2


def test_what_was_handed_out_before_a_reset_is_said_once_and_not_committed(
    cluster: FakeCluster, start: Callable[..., Member], committed: Callable[[], int]
) -> None:
    member = start(EXPLICIT | BY_HAND)
    slow = member.consumer.consume(2, WAIT_S)
    eventually(lambda: member.leases()[1])
    reset = encode(GROUP, Reset(T0, 9, 1))
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce(LOG, reset[1], reset[0], log_partition(GROUP, 3))
    assert producer.flush(WAIT_S) == 0
    again = member.consumer.consume(RECORDS - 1, WAIT_S)
    assert sorted({message.offset() for message in again}) == list(range(1, RECORDS))
    for message in slow:
        member.consumer.acknowledge(message)
    with pytest.raises(CommitFailedError, match="offsets 1 to 1: its offsets were reset") as error:
        member.consumer.commit()
    assert error.value.offsets == {("orders", 0): ((1, 2),)}
    assert member.consumer.commit() is not None  # it is said once
    assert committed() == 1


def test_with_key_order_what_was_handed_out_before_a_lapse_is_refused_or_counts(
    cluster: FakeCluster, start: Callable[..., Member], committed: Callable[[], int]
) -> None:
    """Nobody has claimed it: it counts. Somebody has: FencedError, however late."""
    settings = {"consumption.order": "key", "claim.timeout.ms": 500}
    member = start({**BY_HAND, **settings, "cooperative.chunk.records": 1_000})
    messages = member.consumer.consume(2, WAIT_S)
    member.clock.seconds += 700  # longer than claim.timeout.ms
    assert member.consumer.commit(messages[0]) == {T0: 1}
    quick = quick_settings(cluster.bootstrap_servers, claim_timeout_ms=500)
    with KeySharedConsumer(quick, policies=FakePolicies()) as other:
        other.assign({T0: []})
        eventually(lambda: other.poll(0.05))
        with pytest.raises(FencedError):
            member.consumer.commit(messages[1])
    assert committed() == 1


@pytest.mark.parametrize("keeps_log", [True, False])
def test_with_key_order_a_commit_of_a_partition_that_has_gone_is_refused(
    start: Callable[..., Member], committed: Callable[[], int], keeps_log: bool
) -> None:
    """What is committed of it is no part of what is refused, as far as a log says so."""
    settings = {"consumption.order": "key", "allow.individual.commit": keeps_log}
    member = start({**BY_HAND, **settings, "cooperative.chunk.records": 1_000})
    messages = member.consumer.consume(4, WAIT_S)
    assert member.consumer.commit(messages[1]) == {T0: 2}
    member.consumer.assign({TopicPartition("orders", 1): []})
    with pytest.raises(CommitFailedError, match="this member does not have the partition") as error:
        member.consumer.commit(messages[3])
    assert error.value.offsets == {("orders", 0): ((2 if keeps_log else 0, 4),)}
    if keeps_log:
        assert member.consumer.commit(messages[0]) == {}  # it is done
    assert committed() == 2


def test_asyncio(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, committed: Any) -> None:
    monkeypatch.setattr(log_follower, "_LONGEST_WAIT_MS", 200)
    member = Member(cluster.bootstrap_servers, BY_HAND)

    async def work() -> None:
        consumer = AsyncKeySharedConsumer({}, consumer=lambda _: member.consumer)
        await consumer.assign({T0: []})
        while committed() < RECORDS:
            message = await consumer.poll(0.05)
            if message is not None:
                await asyncio.to_thread(member.works_on, [message])
                await consumer.commit(message)
        await consumer.close()

    asyncio.run(work())
    assert set(member.runs) == set(range(RECORDS))
    assert max(member.runs.values()) <= 2
