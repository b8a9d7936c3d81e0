"""Quotas: a broker that is asked too much tells for how long it wants no further request.

Since Kafka 2.0 it does so at once, in an answer without partitions (KIP-219).
"""

import logging
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kshare
from kshare.core.hashing import WHOLE
from kshare.core.progress import TopicPartition
from tests.support.batches import Rec, batch_of, numbered
from tests.support.clock import Clock
from tests.support.scripted import ScriptedBrokers, ScriptedReplica, read_slice

COUNT = 50
# Five of them, each a response of its own.
LOG = [
    batch_of(numbered([Rec(b"k", b"%d" % (base + i)) for i in range(10)]), base=base).encode()
    for base in range(0, COUNT, 10)
]
OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.retry.backoff.ms": "0"}


class Throttling(ScriptedReplica):
    """A broker that throttles whoever reads.

    Args:
        clock: what its times are of.
        throttles_ms: told in its responses, one each; then none.
        answer_seconds: how long each response takes to come.
    """

    def __init__(
        self,
        clock: Clock,
        throttles_ms: Sequence[int],
        *,
        broker: str = "leader:1",
        answer_seconds: float = 0.0,
        answers: Sequence[Any] = (),
    ) -> None:
        super().__init__(LOG, broker, response_bytes=1, answers=answers)
        self._clock, self._throttles, self._answer_seconds = clock, [*throttles_ms], answer_seconds
        self.sent: list[float] = []
        self.received: list[float] = []
        self.empty: list[int] = []  # throttle times of answers without partitions, that come first

    def send(self, request: Any) -> None:
        self.sent.append(self._clock.now)
        super().send(request)

    def receive_ready(self) -> memoryview | None:
        return self.receive()

    def receive(self) -> memoryview:
        if self.empty:
            self._waiting.pop(0)
            self.received.append(self._clock.now)
            return memoryview(struct.pack(">ihii", self.empty.pop(0), 0, 0, 0))
        body = bytearray(super().receive())
        struct.pack_into(">i", body, 0, self._throttles.pop(0) if self._throttles else 0)
        self._clock.now += self._answer_seconds
        self.received.append(self._clock.now)
        return memoryview(bytes(body))


def read(clock: Clock, *leaders: Throttling) -> list[int]:
    """The offsets that are read, of a partition whose leader is another one each time."""

    class Moving(ScriptedBrokers):
        def forget(self, topic_partition: TopicPartition) -> None:
            self.leader = min(self.leader + 1, len(leaders) - 1)

    brokers = Moving(0, dict(enumerate(leaders)), clock)
    slice_ = kshare.Slice("t", 0, (kshare.Rectangle(kshare.OffsetRange(0, COUNT), WHOLE),))
    found = read_slice(brokers, slice_, OPTIONS, clock=clock)
    return [offset for batch in found for offset in batch["offset"].to_pylist()]


@given(
    st.lists(st.integers(0, 60_000), max_size=len(LOG)),
    st.sampled_from([0.0, 0.25, 7.0]),
)
def test_no_request_is_sent_before_the_time_that_is_told(
    throttles: list[int], answer: float
) -> None:
    """And none is sent later than that, nor does anything of it show in the records."""
    clock = Clock()
    leader = Throttling(clock, throttles, answer_seconds=answer)
    assert read(clock, leader) == list(range(COUNT))
    told = [ms / 1000 for ms in throttles] + [0.0] * (len(LOG) - len(throttles))
    asked_again = zip(leader.sent[1:], leader.received, told, strict=False)
    for sent, received, seconds in asked_again:
        assert sent == pytest.approx(received + seconds)
    assert len(leader.sent) == len(LOG)
    # After the last response there is nothing to wait for.
    assert clock.slept == pytest.approx([seconds for seconds in told[:-1] if seconds])


def test_a_throttle_outlasts_a_refusal() -> None:
    """The same broker is asked again, on a connection that is taken anew."""
    clock = Clock()
    leader = Throttling(clock, [1500, 0], answers=[6])  # 6: not the leader
    assert read(clock, leader) == list(range(COUNT))
    assert clock.slept == [1.5]


def test_a_throttle_of_one_broker_is_none_of_another() -> None:
    """It throttles as it says that it leads no longer: the next leader did not ask for a pause."""
    clock = Clock()
    first = Throttling(clock, [8000], answers=[6])
    second = Throttling(clock, [], broker="leader:2")
    assert read(clock, first, second) == list(range(COUNT))
    assert len(second.sent) == len(LOG)
    assert clock.slept == []


@given(st.lists(st.integers(1, 600_000), min_size=1, max_size=20))
def test_an_answer_without_partitions_is_no_fault(throttles: list[int]) -> None:
    """It is waited for so long, on the same connection, however long that is; and nothing else."""
    clock = Clock()
    leader = Throttling(clock, [])
    leader.empty = [*throttles]
    assert read(clock, leader) == list(range(COUNT))
    assert clock.slept == pytest.approx([ms / 1000 for ms in throttles])
    assert len(leader.sent) == len(throttles) + len(LOG)
    assert len(leader.left_in_flight) == 1  # it was given back once, at the end


def test_a_fault_behind_a_long_throttle_is_tried_again() -> None:
    """Time that the broker asked for does not count as time without progress."""
    clock = Clock()
    leader = Throttling(clock, [], answers=[6])  # 6: not the leader
    leader.empty = [600_000]
    assert read(clock, leader) == list(range(COUNT))


def test_a_long_throttle_is_said(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    leader = Throttling(clock, [])
    leader.empty = [29_000, 30_000]
    read(clock, leader)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "the broker throttles what is read by the quotas of client.id" in record.getMessage()
    assert "(now for 30 s); until less is read" in record.getMessage()


def test_throttles_that_are_short_and_do_not_end_are_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    leader = Throttling(clock, [])
    leader.empty = [7_000] * 20
    read(clock, leader)
    said = [(each.levelname, each.getMessage()) for each in caplog.records]
    assert [level for level, _ in said] == ["WARNING", "INFO"]
    assert "waits for 28 s" in said[0][1]  # what is known of the next seconds counts
    assert "over after 140 s" in said[1][1]


def test_an_answer_without_partitions_and_without_a_throttle_is_a_fault() -> None:
    clock = Clock()
    leader = Throttling(clock, [])
    leader.empty = [0]
    assert read(clock, leader) == list(range(COUNT))
    assert len(leader.left_in_flight) == 2
