"""Which callbacks are called, with what, and when."""

from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from threading import Condition, Lock
from typing import Any, cast

import pytest

from kshare.core.hashing import ALL_HASHES, WHOLE, HashRange, KeyRanges, split
from kshare.core.progress import TopicPartition
from kshare.errors import AuthorizationError, ConsumerClosedError
from kshare.group.consumer import subscriber as subscriber_module
from kshare.group.consumer.subscriber import Callbacks, Host, Subscriber, partitions_only
from kshare.group.consumer.topic_lookup import SubscribedTopics
from kshare.group.membership import handle as handle_module
from kshare.group.membership.handle import MemberHandle
from kshare.group.protocol.membership import holdings as holdings_module
from kshare.group.protocol.membership import membership_state as membership_module
from kshare.group.protocol.membership.holdings import Change
from kshare.group.protocol.membership.subscription import MemberAssignment
from kshare.kafka.cluster import Cluster
from kshare.kafka.protocol.background import Beside
from tests.support.clock import WAIT_S
from tests.support.groups import group_config
from tests.support.interrupts import Interrupt, interrupt

ORDERS, AUDIT = TopicPartition("orders", 0), TopicPartition("orders", 1)
LOWER, UPPER = split(WHOLE, 2)
MODULES = (subscriber_module, handle_module, membership_module, holdings_module)
Hashes = Mapping[TopicPartition, tuple[HashRange, ...]]


class FakeMember:
    """A member with changes to take; it owns what they say."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.owns: dict[TopicPartition, Any] = {}
        self.is_applied = False

    def take(self) -> Change | None:
        return self.changes.pop(0) if self.changes else None

    is_lost = False

    @property
    def has_change(self) -> bool:
        return bool(self.changes)

    def applied(self) -> None:
        self.is_applied = True

    def owned(self) -> dict[TopicPartition, Any]:
        return self.owns


class FakeHost:
    """A consumer that claims what it is told to."""

    def __init__(self) -> None:
        self.claimed: list[Hashes] = []
        self.faults: list[BaseException] = []
        self.commits = self.has_lost = False

    def is_fenced(self) -> bool:
        return self.has_lost

    def commit_before_revocation(self) -> "Future[Any] | None":
        if not self.commits:
            return None
        commit: Future[Any] = Future()
        commit.set_result(None)
        return commit

    def keep(self, assignment: Hashes) -> None:
        pass

    def wake(self) -> None:
        pass

    def is_settled(self) -> bool:
        return True

    def take_over(self, assignment: Hashes, epoch: object) -> None:
        if self.faults:
            raise self.faults.pop()
        self.claimed.append(assignment)


@pytest.fixture
def member() -> FakeMember:
    return FakeMember()


@pytest.fixture
def subscriber(member: FakeMember) -> Subscriber:
    return Subscriber(cast("MemberHandle", member), cast("Host", FakeHost()), "g")


def apply(subscriber: Subscriber, member: FakeMember, *changes: Change) -> None:
    for change in changes:
        member.changes.append(change)
        subscriber.follow()


def test_what_is_gained_has_started_once_its_claim_is_in_place(
    subscriber: Subscriber, member: FakeMember
) -> None:
    told: list[tuple[str, Hashes]] = []
    subscriber.callbacks = Callbacks(
        on_assigned=lambda gained: told.append(("assigned", gained)),
        on_started=lambda started: told.append(("started", started)),
    )
    in_place: set[TopicPartition] = set()
    apply(
        subscriber,
        member,
        Change(
            {},
            {ORDERS: KeyRanges([LOWER]), AUDIT: ALL_HASHES},
            {ORDERS: KeyRanges([LOWER]), AUDIT: ALL_HASHES},
        ),
    )
    subscriber.started(in_place.__contains__)
    assert told == [("assigned", {ORDERS: (LOWER,), AUDIT: ()})]
    in_place.add(AUDIT)
    subscriber.started(in_place.__contains__)
    assert told[1:] == [("started", {AUDIT: ()})]
    apply(
        subscriber,
        member,
        Change({}, {ORDERS: KeyRanges([UPPER])}, {ORDERS: ALL_HASHES, AUDIT: ALL_HASHES}),
    )
    in_place.add(ORDERS)
    for _ in range(2):
        subscriber.started(in_place.__contains__)
    assert told[3:] == [("started", {ORDERS: ()})]


def test_what_goes_before_it_has_started_never_starts(
    subscriber: Subscriber, member: FakeMember
) -> None:
    told: list[Hashes] = []
    subscriber.callbacks = Callbacks(on_started=told.append)
    gained = Change(
        {}, {ORDERS: ALL_HASHES, AUDIT: ALL_HASHES}, {ORDERS: ALL_HASHES, AUDIT: ALL_HASHES}
    )
    revoked = Change(
        {ORDERS: KeyRanges([LOWER]), AUDIT: ALL_HASHES}, {}, {ORDERS: KeyRanges([UPPER])}
    )
    apply(subscriber, member, gained, revoked)
    subscriber.started(lambda _: True)
    assert told == [{ORDERS: (UPPER,)}]


@pytest.mark.parametrize("has_on_lost", [True, False])
def test_what_is_lost_is_revoked_for_those_who_make_no_difference(
    subscriber: Subscriber, member: FakeMember, has_on_lost: bool
) -> None:
    told: list[str] = []
    subscriber.callbacks = Callbacks(
        on_revoked=lambda _: told.append("revoked"),
        on_lost=(lambda _: told.append("lost")) if has_on_lost else None,
    )
    apply(subscriber, member, Change({ORDERS: ALL_HASHES}, {}, {}, is_lost=True))
    assert told == ["lost" if has_on_lost else "revoked"]


@pytest.mark.parametrize("has_on_lost", [True, False])
@pytest.mark.parametrize("lost", ["", "member", "session"])
def test_the_end_of_a_member_that_is_lost_is_a_loss(
    subscriber: Subscriber, member: FakeMember, lost: str, has_on_lost: bool
) -> None:
    """Others may have these hashes: nobody may save their state as if they had not."""
    told: list[tuple[str, Hashes]] = []
    subscriber.callbacks = Callbacks(
        on_revoked=lambda owned: told.append(("revoked", owned)),
        on_lost=(lambda owned: told.append(("lost", owned))) if has_on_lost else None,
    )
    member.owns = {ORDERS: ALL_HASHES}
    member.is_lost = lost == "member"
    cast("FakeHost", subscriber._host).has_lost = lost == "session"
    for _ in range(2):
        subscriber.revoke_all()
    assert told == [("lost" if lost and has_on_lost else "revoked", {ORDERS: ()})]


@pytest.mark.parametrize("fails", [False, True])
def test_what_was_revoked_when_the_consumer_closes_is_not_revoked_again(
    subscriber: Subscriber, member: FakeMember, fails: bool
) -> None:
    """A callback may close: what comes after it in the change is refused then."""
    told: list[Hashes] = []

    def on_revoked(revoked: Hashes) -> None:
        told.append(revoked)
        if fails:
            raise OSError("cannot save")

    subscriber.callbacks = Callbacks(on_revoked=on_revoked)
    cast("FakeHost", subscriber._host).faults = [ConsumerClosedError()]
    member.owns = {ORDERS: ALL_HASHES, AUDIT: ALL_HASHES}
    member.changes.append(Change({AUDIT: ALL_HASHES}, {}, {ORDERS: ALL_HASHES}))
    with pytest.raises(OSError if fails else ConsumerClosedError):
        subscriber.follow()
    with suppress(OSError):
        subscriber.revoke_all()
    assert told == [{AUDIT: ()}, {ORDERS: ()}]


def test_of_two_callbacks_that_raise_one_is_raised_and_the_other_is_logged(
    subscriber: Subscriber, member: FakeMember, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(changed: Hashes) -> None:
        raise OSError(f"not {min(changed)}")

    subscriber.callbacks = Callbacks(on_assigned=fail, on_revoked=fail)
    with pytest.raises(OSError, match="not orders-1"):
        apply(
            subscriber,
            member,
            Change({AUDIT: ALL_HASHES}, {ORDERS: ALL_HASHES}, {ORDERS: ALL_HASHES}),
        )
    (logged,) = [each for each in caplog.records if each.exc_info]
    assert "not orders-0" in logged.message
    apply(subscriber, member)
    assert member.is_applied


def test_partitions_of_which_some_hashes_stay_are_assigned_again(
    subscriber: Subscriber, member: FakeMember
) -> None:
    """A listener closes a partition that is revoked: what stays of it is read on."""
    told: list[tuple[str, list[TopicPartition]]] = []
    subscriber.callbacks = Callbacks(
        on_assigned=partitions_only(lambda some: told.append(("assigned", some))),
        on_revoked=partitions_only(lambda some: told.append(("revoked", some))),
    )
    change = Change(
        {ORDERS: KeyRanges([UPPER]), AUDIT: ALL_HASHES}, {}, {ORDERS: KeyRanges([LOWER])}
    )
    apply(subscriber, member, change)
    assert told == [("revoked", [ORDERS, AUDIT]), ("assigned", [ORDERS])]


def test_a_start_that_a_callback_did_not_bear_is_told_again(
    subscriber: Subscriber, member: FakeMember
) -> None:
    told: list[Hashes] = []

    def on_started(started: Hashes) -> None:
        told.append(started)
        if len(told) == 1:
            raise OSError("the state cannot be read")

    subscriber.callbacks = Callbacks(on_started=on_started)
    apply(subscriber, member, Change({}, {ORDERS: ALL_HASHES}, {ORDERS: ALL_HASHES}))
    with pytest.raises(OSError, match="cannot be read"):
        subscriber.started(lambda _: True)
    for _ in range(2):
        subscriber.started(lambda _: True)
    assert told == [{ORDERS: ()}] * 2


@pytest.mark.parametrize("fault", [AuthorizationError("not accepted"), KeyboardInterrupt()])
def test_what_cannot_be_claimed_is_tried_again(
    subscriber: Subscriber, member: FakeMember, fault: BaseException
) -> None:
    told: list[Hashes] = []
    subscriber.callbacks = Callbacks(on_assigned=told.append)
    host = cast("FakeHost", subscriber._host)
    host.faults = [fault, fault]
    member.changes.append(Change({}, {ORDERS: ALL_HASHES}, {ORDERS: ALL_HASHES}))
    for _ in range(2):
        assert subscriber.has_work
        with pytest.raises(type(fault)):
            subscriber.follow()
        assert not member.is_applied
    assert subscriber.has_work
    subscriber.follow()
    assert member.is_applied
    assert told == [{ORDERS: ()}]
    assert host.claimed == [{ORDERS: ALL_HASHES}]
    assert not subscriber.has_work


def test_an_interrupt_in_a_callback_leaves_the_change_to_the_next_call(
    subscriber: Subscriber, member: FakeMember
) -> None:
    faults: list[BaseException] = [KeyboardInterrupt()]

    def revoked(_: Hashes) -> None:
        if faults:
            raise faults.pop()

    subscriber.callbacks = Callbacks(on_revoked=revoked)
    member.changes.append(Change({ORDERS: ALL_HASHES}, {}, {}))
    with pytest.raises(KeyboardInterrupt):
        subscriber.follow()
    assert subscriber.has_work
    subscriber.follow()
    assert member.is_applied


@pytest.mark.parametrize("commits", [False, True])
def test_a_change_is_applied_wherever_an_interrupt_comes(commits: bool) -> None:
    before, after = {AUDIT: ALL_HASHES}, {ORDERS: KeyRanges([LOWER])}
    number, is_over = 0, False
    while not is_over:
        host, started = FakeHost(), list[Hashes]()
        host.commits = commits
        member = MemberHandle(
            group_config("b:1"), "me", Condition(), Beside(nothing), nothing, nothing, nothing
        )
        core = member._member.membership
        subscriber = Subscriber(member, cast("Host", host), "g")
        subscriber.callbacks = Callbacks(on_started=started.append)
        for assigned in ({}, before, after):
            received = MemberAssignment(tuple(assigned.items()), 1, None, "a")
            core.holdings = core.holdings.receive(received)
            if assigned is after:
                with suppress(Interrupt), interrupt(number, *MODULES) as raised:
                    follow_all(subscriber)
            follow_all(subscriber)
        assert core.holdings.change is None, raised
        assert core.owned == host.claimed[-1] == after, raised
        assert core._must_join, raised
        subscriber.started(lambda _: True)
        assert started == [after], raised
        number, is_over = number + 1, not raised
    assert number > 10


def nothing(*_: object) -> None: ...


def follow_all(subscriber: Subscriber) -> None:
    while subscriber.has_work:
        subscriber.follow()


def test_topics_that_match_are_told_with_the_sessions_lock_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A signal handler that closes amid what holds it waits for nobody who waits for it."""
    monkeypatch.setattr(Cluster, "topics", lambda _: ["orders"])
    lock = Lock()
    told: Future[bool] = Future()

    class Joining(FakeMember):
        def __init__(self) -> None:
            super().__init__()
            self.lock = lock

        def subscribe(self, _: tuple[str, ...]) -> None:
            told.set_result(lock.locked())

    subscriber = Subscriber(cast("MemberHandle", Joining()), cast("Host", FakeHost()), "g")
    config = group_config("b:1")
    subscriber.subscribe(SubscribedTopics.of("^ord"), Callbacks(), config.kafka)
    assert told.result(WAIT_S)
    subscriber.stop_looking()
