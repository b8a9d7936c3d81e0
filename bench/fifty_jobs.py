"""A rebalance of fifty members, which are simulated, by one thread.

Nobody reads or claims: what is measured is joining, planning and the two rounds. On a real broker:
librdkafka's mock refuses a member that joins while others wait for the leader's plan.
"""

import itertools
import time
from collections.abc import Callable
from contextlib import closing
from threading import Condition

from bench.data import new_topic
from bench.rows import Row
from kshare.core.hashing import HASH_SPACE
from kshare.core.progress import TopicPartition
from kshare.group.config.consumer_config import consumer_config
from kshare.group.log.log_link import Written
from kshare.group.membership.handle import MemberHandle
from kshare.group.protocol.commit_log.records import Epoch
from kshare.kafka.protocol.background import Beside, Waker

MEMBERS = 50
PARTITIONS = 5
HEARTBEAT_MS = 300
_SECONDS = 60.0


class Group:
    """Members whose epochs are written to no log, driven and polled by one thread."""

    def __init__(self, servers: str, topic: str) -> None:
        self.members: list[MemberHandle] = []
        self._topic = topic
        self._waker = Waker().open()
        self._beside = Beside(self._waker.wake)
        self._lock = Condition()
        self._epochs = itertools.count()
        self._config = consumer_config(
            {
                "bootstrap.servers": servers,
                "group.id": topic,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "session.timeout.ms": 30_000,
            }
        )

    def start(self) -> None:
        """Start another member."""
        name = f"m{len(self.members):02}"
        wake = self._waker.wake
        member = MemberHandle(
            self._config, name, self._lock, self._beside, self._write, lambda: None, wake
        )
        member.subscribe((self._topic,))
        self.members.append(member)

    def _write(self, _: Epoch, written: Written, _is_wanted: Callable[[], bool]) -> None:
        written(next(self._epochs), "log")

    def settle(self) -> float:
        """Seconds until all hashes are owned, and each member has some."""
        began = time.perf_counter()
        while not self._is_settled():
            assert time.perf_counter() - began < _SECONDS, "the group does not come to rest"
            self._step()
            for member in self.members:
                member.polled()
                if member.has_change and member.take() is not None:
                    member.applied()
        return time.perf_counter() - began

    def _step(self) -> None:
        """Wait for something to do, and do it."""
        sockets: dict[int, int] = {}
        for member in self.members:
            sockets |= member.sockets
        seconds = min(member.seconds_until_due for member in self.members)
        ready = self._waker.wait(min(seconds, 0.1), sockets)
        self._beside.take()
        for member in self.members:
            member.step(ready)

    def _is_settled(self) -> bool:
        widths = dict.fromkeys((TopicPartition(self._topic, i) for i in range(PARTITIONS)), 0)
        for member in self.members:
            owned = member.owned()
            if not owned:
                return False
            for partition, hashes in owned.items():
                widths[partition] += sum(part.width for part in hashes) or HASH_SPACE
        return set(widths.values()) == {HASH_SPACE}

    def close(self) -> None:
        """End all members."""
        until = time.monotonic() + 10
        for member in self.members:
            member.is_closing = True
        while not all(each.is_closed for each in self.members) and time.monotonic() < until:
            self._step()
        self._waker.close()


def rows(servers: str, runs: int) -> list[Row]:
    """The table's line."""
    times = sorted(_join(servers) for _ in range(max(runs // 2, 1)))
    best, median = times[0], times[len(times) // 2]
    return [
        Row(
            f"member {MEMBERS} of {MEMBERS} joins (simulated)",
            "-",
            f"{best:.2f} ({median:.2f}) s",
            "-",
            "< 2 s",
            median < 2,
        )
    ]


def _join(servers: str) -> float:
    topic = new_topic(servers, "fifty", PARTITIONS)
    with closing(Group(servers, topic)) as group:
        for _ in range(MEMBERS - 1):
            group.start()
        group.settle()
        group.start()
        return group.settle()
