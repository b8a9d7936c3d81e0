"""Random calls, and what ends them: all is returned once and in order, and no commit is ahead."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice, product
from random import Random
from typing import Any

import pytest

from kshare.core.hashing import ALL_HASHES, WHOLE, HashRange, KeyRanges, key_hash, split
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import FencedError, OptionsError
from kshare.group.consumer.calls import deadline_of
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.core.handing_out import Call
from kshare.group.message import Message
from kshare.testing import FakeCluster
from tests.support.clock import until
from tests.support.fake_session import FakeSessions, fake_consumers

PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
FENCED = FencedError("taken over", topic="orders", partition=0, hashes=((0, 5),), other="m2")
MODES: dict[str, dict[str, Any]] = {
    "implicit": {},
    "explicit": {"acknowledgement__mode": "explicit"},
}
PARTS = split(WHOLE, 3)
STEPS = 40
SEEDS = range(2)
FOUND = [71, 93, 113, 142, 269]
"""Walks that found faults: after a seek, keys left out went on from what was committed.

113: the position stayed before what was committed ahead of it. 269: ended early.
"""


class Walk:
    """A consumer, and what it has returned of each key since the last start."""

    def __init__(
        self, random: Random, cluster: FakeCluster, group: FakeSessions, consumer: KeySharedConsumer
    ) -> None:
        self.random = random
        self.consumer = consumer
        self.held: list[Message] = []  # returned and not acknowledged
        self._last: Message | None = None
        self._cluster = cluster
        self._group = group
        self._session = group.members[-1]
        self._keys: dict[TopicPartition, list[bytes]] = {tp: [] for tp in PARTITIONS}
        self._due: dict[tuple[TopicPartition, bytes], list[int]] = {}
        self._done: dict[TopicPartition, set[int]] = {tp: set() for tp in PARTITIONS}
        self._paused = set[TopicPartition]()
        self._owned: dict[TopicPartition, KeyRanges] = dict.fromkeys(PARTITIONS, ALL_HASHES)
        self._change: tuple[TopicPartition, KeyRanges] | None = None
        self._stale: list[Message] = []  # of key hashes that were given up since, or released
        self._releases = Counter[tuple[TopicPartition, int]]()
        self._forgettable = Counter[tuple[TopicPartition, int]]()  # as it was processed

    # -- what is done ------------------------------------------------------------------------

    def produce(self) -> None:
        tp = self.random.choice(PARTITIONS)
        rows = [(f"k{self.random.randrange(6)}", "v") for _ in range(self.random.randrange(1, 6))]
        self._cluster.produce(tp.topic, rows, partition=tp.partition)
        for key, _ in rows:
            if self._owns(tp, key.encode()):
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
                self._process(TopicPartition(row["topic"], row["partition"]), row["offset"])

    def iterate(self) -> None:
        """Messages that are there; an iteration would wait for more."""
        if self.consumer.calls.next_rows(deadline_of(0.02)):
            most = self.random.randrange(1, 5)
            self._take(list(islice(self.consumer.receiver.fresh.rows, most)))

    def cancel(self) -> None:
        self._interrupted(self.consumer.calls.cancel)

    def lapse(self) -> None:
        def lapses(call: Any) -> None:
            self._session.can_deliver = False
            self._session.change()
            assert self.consumer.calls.return_gathered(call) == []

        self._interrupted(lapses)
        self._session.can_deliver = True
        self._session.change()

    def fence(self) -> None:
        def is_fenced(call: Any) -> None:
            self._session.error = FENCED
            self._session.change()
            with suppress(FencedError):
                assert self.consumer.calls.return_gathered(call) == []

        self._interrupted(is_fenced)
        self._session.error = None
        self._session.change()

    def regroup(self) -> None:
        """The group assigns other key hashes of a partition, or goes on with what it has begun.

        As it does: what stays is read on, then all is claimed, then the claim is in place.
        """
        host = self.consumer._reading
        if self._session.waiting:
            if self.random.random() < 0.5:
                self._interrupted(lambda _: self._claimed())
            return
        if self._change is None:
            tp = self.random.choice(PARTITIONS)
            hashes = KeyRanges(part for part in PARTS if self.random.random() < 0.6)
            if hashes == self._owned[tp]:
                return
            self._change = tp, hashes
            stays = hashes & self._owned[tp]

            def keeps(_: object) -> None:
                if self.random.random() < 0.5:
                    self.consumer.commit()
                self._own(tp, stays)
                host.keep(self._assignment())

            self._interrupted(keeps)
            return
        tp, hashes = self._change

        def claims(_: object) -> None:
            self._change = None
            self._own(tp, hashes)
            host.take_over(self._assignment(), None)
            self._session.waiting |= {tp} if hashes else set()

        self._interrupted(claims)

    def restart(self) -> None:
        """Another start amid a call: offsets were reset."""
        tp = self.random.choice(PARTITIONS)
        if self._is_regrouping(tp):
            return
        offset = self.random.randrange(len(self._keys[tp]) + 1)

        def restarts(_: object) -> None:
            self._session.restart(tp, Progress.at(offset))
            self._done[tp] = set()
            for at in range(offset):
                self._process(tp, at)
            self._go_on(tp, offset)

        self._interrupted(restarts)

    def seek(self) -> None:
        tp = self.random.choice(PARTITIONS)
        if self._is_regrouping(tp):
            return
        offset = self.random.randrange(len(self._keys[tp]) + 1)

        def seeks(_: object) -> None:
            self.consumer.seek(tp, offset)
            self._go_on(tp, offset)

        self._interrupted(seeks)

    def pause(self) -> None:
        tp = self.random.choice(PARTITIONS)
        if not self._owned[tp]:
            return

        def pauses(_: object) -> None:
            self.consumer.pause([tp])
            self._paused.add(tp)

        self._interrupted(pauses)

    def resume(self) -> None:
        tp = self.random.choice(PARTITIONS)
        if not self._owned[tp]:
            return
        self._interrupted(lambda _: self.consumer.resume([tp]))
        self._paused.discard(tp)

    def commit(self) -> None:
        self._interrupted(lambda _: self._commit())

    def _commit(self) -> None:
        before = len(self._session.commits)
        self.consumer.commit()
        for commit in self._session.commits[before:]:
            for tp, processed in commit.items():
                self._check(tp, processed)

    def acknowledge(self) -> None:
        for _ in range(self.random.randrange(len(self.held) + 1)):
            self._acknowledge(self.held.pop(self.random.randrange(len(self.held))))
        while self._stale:  # which changes nothing
            self.consumer.acknowledge(self._stale.pop())

    def release(self) -> None:
        """Some come again, with all later ones of their keys that are not acknowledged."""
        if not self._explicit and self._last is not None:
            with pytest.raises(OptionsError, match=r"acknowledgement\.mode: is implicit"):
                self.consumer.release(self._last)  # which changes nothing
            assert not self._last.is_released()
        if not self.held:
            return
        message = self.random.choice(self.held)
        tp, key = message.topic_partition, message.key()
        assert key is not None

        def releases(_: object) -> None:
            again = [
                each
                for each in self.held
                if (each.topic_partition, each.key()) == (tp, key)
                and each.offset() >= message.offset()
            ]
            self.consumer.release(message, self.random.choice([0.0, 0.01, 0.2]))
            assert all(each.is_released() for each in again)
            self.held = [each for each in self.held if each not in again]
            self._stale += again
            due = {*self._due[tp, key], *(each.offset() for each in again)}
            self._due[tp, key] = sorted(due)
            if self.random.random() < 0.5:  # before anybody looks again
                self._commit()
            self._releases[tp, message.offset()] += 1

        self._interrupted(releases)

    def end(self) -> None:
        """All that is due comes."""
        if self._change is not None:
            self.regroup()
        self._interrupted(lambda _: self._claimed())
        self._interrupted(lambda _: None)  # the deliveries begin
        for tp in PARTITIONS:
            self._own(tp, ALL_HASHES)
        self.consumer._reading.take_over(self._assignment(), None)
        self._interrupted(lambda _: None)  # what was gained is to be read, too
        self.consumer.resume(PARTITIONS)
        self._paused.clear()
        ends = {tp: len(keys) for tp, keys in self._keys.items()}

        def has_all() -> bool:
            if not any(self._due.values()) and self.consumer.position() == ends:
                return True
            self._take(self.consumer.consume(100, 0.02))
            while self.held:
                self._acknowledge(self.held.pop())
            return False

        until(has_all)
        assert not any(self._due.values())
        self.commit()
        assert self.consumer.position() == ends

    def _claimed(self) -> None:
        self._session.waiting.clear()
        self._session.change()

    def _assignment(self) -> dict[TopicPartition, KeyRanges]:
        return {tp: hashes for tp, hashes in self._owned.items() if hashes}

    def _is_regrouping(self, tp: TopicPartition) -> bool:
        is_under_way = self._change is not None or bool(self._session.waiting)
        return is_under_way or not self._owned[tp]

    def _owns(self, tp: TopicPartition, key: bytes) -> bool:
        return self._owned[tp].holds(key_hash(key, 0))

    def _own(self, tp: TopicPartition, hashes: KeyRanges) -> None:
        """What is given up is due no more; what is gained begins from what is committed."""
        before = {key: self._owns(tp, key) for key in self._keys[tp]}
        self._owned[tp] = hashes
        done = self._group.done.get(tp, Progress.at(0))
        for key, was_owned in before.items():
            if was_owned == self._owns(tp, key):
                continue
            offsets = [at for at, each in enumerate(self._keys[tp]) if each == key]
            point = key_hash(key, 0)
            pending = done.pending_of(len(self._keys[tp]), (HashRange.of(point),))
            left = [at for at in offsets if any(at in piece.offsets for piece in pending)]
            self._due[tp, key] = [] if was_owned else left
            if was_owned:
                gone = [m for m in self.held if m.topic_partition == tp and m.key() == key]
                self.held = [m for m in self.held if m not in gone]
                self._stale += gone
            else:
                self._done[tp] -= set(left)
        if not hashes:
            self._paused.discard(tp)

    # -- what is judged ----------------------------------------------------------------------

    @property
    def _explicit(self) -> bool:
        return self.consumer._config.explicit

    def _interrupted(self, what: Callable[[Any], None]) -> None:
        """Something happens when a call has collected records, and has not returned them."""
        calls = self.consumer.calls
        call = Call()
        calls.gather(call, self.random.randrange(1, 12), time.monotonic() + 0.01)
        what(call)
        with suppress(FencedError):
            self._take(calls.return_gathered(call))

    def _take(self, messages: list[Message]) -> None:
        for message in messages:
            self._return(message.topic_partition, message.key(), message.offset())
            if self._explicit:
                self._check_count(message)
            self._last = message
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
            self._due[tp, key] = due if self._owns(tp, key) else []
        self.held = [each for each in self.held if each.topic_partition != tp]

    def _acknowledge(self, message: Message) -> None:
        self.consumer.acknowledge(message)
        self._process(message.topic_partition, message.offset())

    def _process(self, tp: TopicPartition, offset: int) -> None:
        self._done[tp].add(offset)
        self._forgettable[tp, offset] = self._releases[tp, offset]

    def _check_count(self, message: Message) -> None:
        """Each release counts; a commit may have forgotten those of a record that is processed."""
        at, releases = (message.topic_partition, message.offset()), message.delivery_count() - 1
        assert 0 <= self._releases[at] - releases <= self._forgettable[at]
        self._forgettable[at] -= self._releases[at] - releases
        self._releases[at] = releases

    def _check(self, tp: TopicPartition, processed: Progress) -> None:
        ahead = {
            offset
            for piece in processed.individual_commits
            for offset, key in enumerate(self._keys[tp])
            if offset in piece.offsets and key_hash(key, offset) in piece.hashes
        }
        assert {*range(processed.stable), *ahead} <= self._done[tp]


WAYS = ("produce", "poll", "consume", "consume_batch", "iterate", "acknowledge", "commit")
ENDS = ("cancel", "lapse", "fence", "restart", "seek", "pause", "resume", "regroup", "regroup")
RELEASES = ("release",) * 4


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": len(PARTITIONS)}) as running:
        yield running


@pytest.mark.parametrize(
    ("mode", "seed"),
    [*product(MODES, SEEDS), *(("explicit", seed) for seed in FOUND)],
)
def test_nothing_is_lost_or_returned_twice_or_out_of_order(
    cluster: FakeCluster, mode: str, seed: int
) -> None:
    random, group = Random(seed), FakeSessions()
    with fake_consumers(cluster, group) as make:
        walk = Walk(random, cluster, group, make(**MODES[mode]))
        walk.consumer.assign({tp: list(PARTS) for tp in PARTITIONS})
        walk.produce()
        for _ in range(STEPS):
            getattr(walk, random.choice(WAYS + ENDS + RELEASES))()
        walk.end()
