"""Random calls, and what ends them: all is returned once and in order, and no commit is ahead."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from random import Random
from typing import Any

import pytest

from kshare.core.progress import Progress, TopicPartition
from kshare.errors import FencedError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.message import Message
from kshare.testing import FakeCluster
from tests.support.fake_session import FakeSessions, fake_consumers

PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
FENCED = FencedError("taken over", topic="orders", partition=0, hashes=((0, 5),), other="m2")
MODES: dict[str, dict[str, Any]] = {
    "implicit": {},
    "explicit": {"acknowledgement__mode": "explicit"},
    "limited": {"acknowledgement__mode": "explicit", "max__in__flight__per__key": 2},
}
STEPS = 40
SEEDS = range(2)


class Walk:
    """A consumer, and what it has returned of each key since the last start."""

    def __init__(
        self, random: Random, cluster: FakeCluster, group: FakeSessions, consumer: KeySharedConsumer
    ) -> None:
        self.random = random
        self.consumer = consumer
        self.held: list[Message] = []  # returned and not acknowledged
        self._cluster = cluster
        self._session = group.members[-1]
        self._keys: dict[TopicPartition, list[bytes]] = {tp: [] for tp in PARTITIONS}
        self._due: dict[tuple[TopicPartition, bytes], list[int]] = {}
        self._done: dict[TopicPartition, set[int]] = {tp: set() for tp in PARTITIONS}
        self._paused = set[TopicPartition]()

    # -- what is done ------------------------------------------------------------------------

    def produce(self) -> None:
        tp = self.random.choice(PARTITIONS)
        rows = [(f"k{self.random.randrange(3)}", "v") for _ in range(self.random.randrange(1, 6))]
        self._cluster.produce(tp.topic, rows, partition=tp.partition)
        for key, _ in rows:
            self._due.setdefault((tp, key.encode()), []).append(len(self._keys[tp]))
            self._keys[tp].append(key.encode())

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        self._take([message] if message else [])

    def consume(self) -> None:
        self._take(self.consumer.consume(self.random.randrange(1, 12), 0.02))

    def consume_batch(self) -> None:
        batch = self.consumer.consume_batch(0.02)
        for row in batch.to_pylist() if batch is not None else []:
            self._return(TopicPartition(row["topic"], row["partition"]), row["key"], row["offset"])
        if batch is not None and self._explicit:
            self.consumer.acknowledge_batch(batch)
            for row in batch.to_pylist():
                self._done[TopicPartition(row["topic"], row["partition"])].add(row["offset"])

    def iterate(self) -> None:
        """Messages that are there; an iteration would wait for more."""
        if self.consumer.receiver.next_rows(0.02):
            most = self.random.randrange(1, 5)
            self._take(list(islice(self.consumer.receiver.fresh.rows, most)))

    def cancel(self) -> None:
        self._interrupted(self.consumer.receiver.cancel)

    def lapse(self) -> None:
        def lapses(call: Any) -> None:
            self._session.can_deliver = False
            self._session.change()
            assert self.consumer.receiver.release(call) == []

        self._interrupted(lapses)
        self._session.can_deliver = True
        self._session.change()

    def fence(self) -> None:
        def is_fenced(call: Any) -> None:
            self._session.error = FENCED
            self._session.change()
            with suppress(FencedError):
                assert self.consumer.receiver.release(call) == []

        self._interrupted(is_fenced)
        self._session.error = None
        self._session.change()

    def restart(self) -> None:
        """Another start amid a call: offsets were reset."""
        tp = self.random.choice(PARTITIONS)
        offset = self.random.randrange(len(self._keys[tp]) + 1)

        def restarts(_: object) -> None:
            self._session.restart(tp, Progress.at(offset))
            self._done[tp] = set(range(offset))
            self._go_on(tp, offset)

        self._interrupted(restarts)

    def seek(self) -> None:
        tp = self.random.choice(PARTITIONS)
        offset = self.random.randrange(len(self._keys[tp]) + 1)

        def seeks(_: object) -> None:
            self.consumer.seek(tp, offset)
            self._go_on(tp, offset)

        self._interrupted(seeks)

    def pause(self) -> None:
        tp = self.random.choice(PARTITIONS)

        def pauses(_: object) -> None:
            self.consumer.pause([tp])
            self._paused.add(tp)

        self._interrupted(pauses)

    def resume(self) -> None:
        tp = self.random.choice(PARTITIONS)
        self._interrupted(lambda _: self.consumer.resume([tp]))
        self._paused.discard(tp)

    def commit(self) -> None:
        def commits(_: object) -> None:
            before = len(self._session.commits)
            self.consumer.commit()
            for commit in self._session.commits[before:]:
                for tp, processed in commit.items():
                    self._check(tp, processed)

        self._interrupted(commits)

    def acknowledge(self) -> None:
        for _ in range(self.random.randrange(len(self.held) + 1)):
            self._acknowledge(self.held.pop(self.random.randrange(len(self.held))))

    def end(self) -> None:
        """All that is due comes."""
        self.consumer.resume(PARTITIONS)
        self._paused.clear()
        until = time.monotonic() + 10
        while any(self._due.values()) and time.monotonic() < until:
            self._take(self.consumer.consume(100, 0.02))
            while self.held:
                self._acknowledge(self.held.pop())
        assert not any(self._due.values())
        self.commit()
        assert self.consumer.position() == {tp: len(keys) for tp, keys in self._keys.items()}

    # -- what is judged ----------------------------------------------------------------------

    @property
    def _explicit(self) -> bool:
        return self.consumer._config.explicit

    def _interrupted(self, what: Callable[[Any], None]) -> None:
        """Something happens when a call has collected records, and has not returned them."""
        receiver = self.consumer.receiver
        call = receiver.new_call()
        receiver.gather(call, self.random.randrange(1, 12), time.monotonic() + 0.01)
        what(call)
        with suppress(FencedError):
            self._take(receiver.release(call))

    def _take(self, messages: list[Message]) -> None:
        for message in messages:
            self._return(message.topic_partition, message.key(), message.offset())
        self.held += messages if self._explicit else []

    def _return(self, tp: TopicPartition, key: bytes | None, offset: int) -> None:
        assert key is not None
        assert tp not in self._paused
        assert self._due[tp, key][:1] == [offset]
        self._due[tp, key].pop(0)
        if not self._explicit:
            self._done[tp].add(offset)

    def _go_on(self, tp: TopicPartition, offset: int) -> None:
        keys = self._keys[tp]
        for key in set(keys):
            due = [each for each in range(offset, len(keys)) if keys[each] == key]
            self._due[tp, key] = due
        self.held = [each for each in self.held if each.topic_partition != tp]

    def _acknowledge(self, message: Message) -> None:
        self.consumer.acknowledge(message)
        self._done[message.topic_partition].add(message.offset())

    def _check(self, tp: TopicPartition, processed: Progress) -> None:
        pieces = [range(processed.stable)]
        pieces += [
            range(piece.offsets.start, min(piece.offsets.end, len(self._keys[tp])))
            for piece in processed.individual_commits
        ]
        assert {offset for piece in pieces for offset in piece} <= self._done[tp]


WAYS = ("produce", "poll", "consume", "consume_batch", "iterate", "acknowledge", "commit")
ENDS = ("cancel", "lapse", "fence", "restart", "seek", "pause", "resume")


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": len(PARTITIONS)}) as running:
        yield running


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_or_returned_twice_or_out_of_order(
    cluster: FakeCluster, mode: str, seed: int
) -> None:
    random, group = Random(seed), FakeSessions()
    with fake_consumers(cluster, group) as make:
        walk = Walk(random, cluster, group, make(**MODES[mode]))
        walk.consumer.assign(PARTITIONS)
        walk.produce()
        for _ in range(STEPS):
            getattr(walk, random.choice(WAYS + ENDS))()
        walk.end()
