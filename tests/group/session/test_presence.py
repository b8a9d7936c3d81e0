"""Beats that brokers do not take: tried again, after pauses."""

import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest

from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError
from kshare.group.core.ownerships import Ownerships
from kshare.group.log.tail import Throttle
from kshare.group.protocol.commit_log.record_codec import decode
from kshare.group.protocol.commit_log.records import Member
from kshare.group.session.presence import Presence
from kshare.group.session.shared import Shared
from kshare.kafka.protocol.error_codes import Kind
from kshare.kafka.protocol.fetch import FetchResponse
from tests.support.clock import Clock
from tests.support.groups import GROUP, LOG, group_config

PAUSE_S = 1.2
"""The longest pause: ``retry.backoff.max.ms``, and its jitter."""


class Log:
    """A log that refuses records, until it is asked not to."""

    def __init__(self, clock: Clock) -> None:
        self.takes = False
        self.asked: list[float] = []
        self.partition = TopicPartition(LOG, 0)
        self.denied = None
        self.writer = self
        self.last: Member | None = None
        self.tail = SimpleNamespace(
            last=SimpleNamespace(caught_up=True, read_at=0.0, has_holes=False, is_relied_upon=True),
            throttle=Throttle(),
        )
        self.truncated = ""
        self._clock = clock

    def append(self, _: TopicPartition, key: bytes, value: bytes, failed: Any) -> None:
        self.asked.append(self._clock.now)
        if self.takes:
            record = decode(key, value)[1]
            assert isinstance(record, Member)
            self.last = record
        else:
            failed(KafkaError("the record is refused"), Kind.PERMANENT)

    def not_taken(self, error: KafkaError, kind: Kind) -> None:
        assert kind is Kind.PERMANENT
        assert "refused" in str(error)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(clock: Clock) -> Log:
    return Log(clock)


@pytest.fixture
def presence(clock: Clock) -> Presence:
    shared = Shared(Ownerships("me", GROUP, 0.4, uniform=lambda *_: 0.0))
    actions: Any = SimpleNamespace(note=lambda _: None)
    return Presence(group_config("127.0.0.1:1"), "me", shared, actions, clock.monotonic)


def run(presence: Presence, log: Any, clock: Clock, seconds: float) -> None:
    """Beat as the session's thread does, which waits until it is time."""
    until = clock.now + seconds
    while clock.now < until:
        presence.beat(log)
        presence.look_at_signs(log)
        presence._look_at = until
        assert presence.next_time > clock.now, "the thread would turn without a pause"
        clock.now = min(presence.next_time, until)


@pytest.mark.parametrize("is_doubted", [False, True])
def test_a_beat_that_is_refused_is_sent_again_after_a_pause(
    presence: Presence, log: Log, clock: Clock, is_doubted: bool
) -> None:
    """Also one that is to prove that the log is the present one."""
    if is_doubted:
        presence.right.beats.lapsed(clock.now)
    run(presence, log, clock, 60)
    assert 60 / PAUSE_S <= len(log.asked) <= 100
    pauses = [later - now for now, later in zip(log.asked, log.asked[1:], strict=False)]
    assert min(pauses) > 0
    assert max(pauses) <= PAUSE_S


def test_pauses_begin_anew_once_a_beat_is_read_back(
    presence: Presence, log: Log, clock: Clock
) -> None:
    run(presence, log, clock, 60)
    log.takes = True
    run(presence, log, clock, 2)
    assert log.last is not None
    assert time.time() * 1000 >= log.last.seen_ms
    presence._shared.ownerships.log.members["me"] = log.last
    presence.look_at_signs(log)  # type: ignore[arg-type]
    log.takes, log.asked = False, []
    run(presence, log, clock, 20)
    assert log.asked[1] - log.asked[0] < 0.2


def test_a_log_that_is_throttled_is_said_and_its_leader_is_not_blamed(
    presence: Presence,
    log: Log,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, "kshare.group")
    started: Any = {TopicPartition("orders", 0): None}
    monkeypatch.setattr(Ownerships, "started", lambda _: started)
    presence._shared.trouble = "an old trouble"
    presence.right.log_read(clock.now)
    throttled = FetchResponse(0, 90.0, {}).throttle("billing-log")
    log.tail.throttle = Throttle(clock.now + 90, throttled)
    for _ in range(40):
        presence.look(log)  # type: ignore[arg-type]
        clock.now += 1
    said = [record.getMessage() for record in caplog.records]
    quotas = "throttles what is read by the quotas of client.id 'billing-log' and of its user"
    assert len(said) == 2
    assert all(quotas in text and text.endswith("or they are raised") for text in said)
    assert "now for 90 s" in said[0]
    assert "the group's log was not read" in said[1]
    log.tail.throttle = Throttle()
    presence.look(log)  # type: ignore[arg-type]
    assert "over after 40 s: the broker throttles" in caplog.text
