"""How often a record was delivered is counted until its commit is answered."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kshare.core.hashing import WHOLE, KeyRanges, key_hash, split
from kshare.core.progress import Progress
from kshare.errors import KafkaError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.log.retry_log import RetryLog
from kshare.group.message import Message
from tests.group.consumer.records import offsets
from tests.group.consumer.released import RECORDS, Make, received
from tests.support.fake_session import FakeSession, FakeSessions
from tests.support.groups import SECONDS, T0


def test_deliveries_are_counted_through_a_restart_until_the_record_is_processed(
    make: Make,
) -> None:
    first = make()
    for _ in range(2):
        message = next(each for each in iter(first) if each.offset() == 0)
        first.release(message)
    first.close()
    second = make()
    (message,) = received(second, 1)
    assert (message.offset(), message.delivery_count()) == (0, 3)
    second.acknowledge(message)
    second.commit()
    second.close()
    third = make()
    (message,) = received(third, 1)
    assert (message.offset(), message.delivery_count()) == (1, 1)
    assert not third.releases.retry_log().read().attempts


def released_once(consumer: KeySharedConsumer) -> Message:
    """The first record, as it comes again."""
    consumer.release(received(consumer, 1)[0])
    message = next(each for each in iter(consumer) if each.offset() == 0)
    assert message.delivery_count() == 2
    return message


def amid_commits(
    monkeypatch: pytest.MonkeyPatch, session: FakeSession, step: Callable[[], object]
) -> None:
    """Let something happen when the consumer's session is asked to commit, before it does."""
    commit = session.commit

    def after_it(*args: Any, **named: Any) -> Any:
        step()
        return commit(*args, **named)

    monkeypatch.setattr(session, "commit", after_it)


@pytest.mark.parametrize("how", ["waited for", "in the background", "last", "revoked"])
def test_a_commit_that_fails_forgets_no_deliveries_as_the_record_comes_again(
    make: Make, group: FakeSessions, how: str
) -> None:
    """As after kill -9 before the brokers have it."""
    first = make(enable__auto__commit=how in {"last", "revoked"})
    first.acknowledge(released_once(first))
    group.members[-1].error = KafkaError("the log cannot be written")
    if how == "waited for":
        with pytest.raises(KafkaError):
            first.commit()
    elif how == "in the background":
        first.commit(asynchronous=True)
        first._commits.finish()
    elif how == "last":
        first._commits.flush()
    else:
        answer = first._commits.begin_last()
        assert answer is not None
        assert isinstance(answer.exception(SECONDS), KafkaError)
    first.releases.close(SECONDS)  # what was to be written is
    second = make()
    (message,) = received(second, 1)
    assert (message.offset(), message.delivery_count()) == (0, 2)


def test_what_is_acknowledged_while_a_commit_is_under_way_is_forgotten_by_the_next_one(
    make: Make, group: FakeSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = make()
    message = released_once(consumer)
    with monkeypatch.context() as patch:
        amid_commits(patch, group.members[-1], lambda: consumer.acknowledge(message))
        consumer.commit()
    assert not group.processed(T0, 0)
    assert message.delivery_count() == 2
    consumer.commit()
    assert group.processed(T0, 0)
    assert message.delivery_count() == 1


@pytest.mark.parametrize("half", [None, 0, 1])
def test_what_is_committed_as_its_hashes_are_given_up_is_forgotten(
    make: Make, group: FakeSessions, monkeypatch: pytest.MonkeyPatch, half: int | None
) -> None:
    """The commit before a revocation is answered once they are."""
    consumer = make()
    message = released_once(consumer)
    consumer.acknowledge(message)

    def give_up() -> None:
        stays = {} if half is None else {T0: KeyRanges([split(WHOLE, 2)[half]])}
        with consumer._state.lock:
            consumer._dispatcher.state.keep(stays)

    amid_commits(monkeypatch, group.members[-1], give_up)
    consumer.commit()
    assert group.processed(T0, 0)
    consumer.releases.close(SECONDS)
    assert not consumer.releases.retry_log().read().attempts


def test_a_record_that_comes_again_and_is_committed_amid_its_release_is_forgotten(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = make()
    (message,) = received(consumer, 1)
    remember, others = RetryLog.remember, list[threading.Thread]()

    def process() -> None:
        again = next(each for each in iter(consumer) if each.offset() == 0)
        consumer.acknowledge(again)
        consumer.commit()

    def remembers(*args: Any) -> None:
        others.append(threading.Thread(target=process))
        others[0].start()
        others[0].join(1.0)
        remember(*args)

    monkeypatch.setattr(RetryLog, "remember", remembers)
    consumer.release(message)
    others[0].join(SECONDS)
    consumer.releases.close(SECONDS)
    assert not consumer.releases.retry_log().read().attempts


def test_what_a_commit_passes_over_as_offsets_were_reset_is_not_forgotten(
    make: Make, group: FakeSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = make()
    message = released_once(consumer)
    consumer.acknowledge(message)
    session = group.members[-1]
    amid_commits(monkeypatch, session, lambda: session.restart(T0, Progress.at(0)))
    consumer.commit()
    assert not group.processed(T0, 0)
    (again,) = received(consumer, 1)
    assert (again.offset(), again.delivery_count()) == (0, 2)


def test_what_another_member_has_released_is_not_forgotten(make: Make, group: FakeSessions) -> None:
    """Not even when a member that has looked at the log has processed all of its own beyond it."""
    lower, upper = split(WHOLE, 2)
    first = make()
    first.assign({T0: [lower]})
    mine = received(first, sum(key_hash(b"k%d" % (i % 4), i) in lower for i in range(RECORDS)))
    first.release(mine[1], 60.0)
    first.close()
    other = make()
    other.assign({T0: [upper]})
    others = received(other, RECORDS - len(mine))
    for message in others:
        assert message.delivery_count() == 1
        other.acknowledge(message)
    other.commit()
    other.close()
    again = make()
    again.assign({T0: [lower]})
    counts = {message.offset(): message.delivery_count() for message in received(again, len(mine))}
    assert counts == {at: 1 + (at == mine[1].offset()) for at in offsets(mine)}
