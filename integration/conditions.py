"""What histories are run in: three brokers, quotas, a log that is compacted all the time.

Beside the members, :class:`Observer` looks at what their group has committed. What was committed
must stay so, and nobody may return it again.
"""

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Self

from integration.cluster import KafkaCluster
from integration.group_log import compacted_often
from integration.history import Committed, Events
from integration.kafka import BrokerError, KafkaBroker
from integration.members import Member
from integration.topics import Topics
from kshare.core.hashing import key_hash
from kshare.core.progress import TopicPartition
from kshare.errors import KshareError
from kshare.group.tools.offsets import list_offsets
from kshare.kafka.topics import INDIVIDUAL_COMMITS_TOPIC

__all__ = [
    "CLIENT",
    "TIMEOUTS",
    "Look",
    "Observer",
    "Stillness",
    "Verdict",
    "brokers_of",
    "disturb",
    "disturb_broker",
    "set_back",
    "signal_later",
    "while_it_goes_on",
]

CLIENT: Final = "histories"
"""Client id of the members, which has quotas."""
TIMEOUTS: Final[Mapping[str, int]] = {
    "claim.timeout.ms": 1_000,
    "session.timeout.ms": 6_000,
    "heartbeat.interval.ms": 500,
    "max.poll.interval.ms": 8_000,
}
"""Those of all members; who is suspended for 12 s is so for longer than each of them."""

_SUSPENDED_SECONDS: Final = (1.0, 1.0, 8.0, 12.0)
"""The last is longer than every time-out."""
_PARTITIONS: Final = 8  # of offsets and of the log, so that groups have other coordinators
_QUOTAS: Final = {
    CLIENT: {
        "consumer_byte_rate": 120_000,
        "producer_byte_rate": 80_000,
        "request_percentage": 2.0,
    },
    # What members ask of the log all the time fits into it; what they read anew does not. Throttled
    # all the time, they would read it later than others wait for, and claim anew for ever.
    f"{CLIENT}-log": {"consumer_byte_rate": 200_000, "request_percentage": 20.0},
}
_LOG: Final[Mapping[str, object]] = {
    **compacted_often(),
    "segment.bytes": 1 << 20,
    "segment.ms": 1_000,
    "max.compaction.lag.ms": 1_000,
}
_LOOK_SECONDS: Final = 0.5
_STILL_SECONDS: Final = 150.0
_START_SECONDS: Final = 600.0  # Spark takes 20 s; beside much else, several minutes


@dataclass
class Stillness:
    """How long nothing has gone on; a start, which takes as long as the machine needs, is none.

    Args:
        least: How much was missing first.
        since: When that was (s).
        seconds: So long may pass without a change.
        start_seconds: So long may starts take in all, without a change.
    """

    least: int
    since: float
    seconds: float = _STILL_SECONDS
    start_seconds: float = _START_SECONDS
    _started: float = 0.0
    _looked: float | None = None

    def is_over(self, now: float, missing: int, *, is_starting: bool = False) -> bool:
        """Whether nothing goes on any more.

        Args:
            now: The time (s).
            missing: How much is missing now.
            is_starting: Whether who is to bring it has not begun since it was started last.
        """
        passed, self._looked = now - (self._looked or self.since), now
        if missing < self.least:
            self.least, self.since, self._started = missing, now, 0.0
        elif is_starting:
            self.since, self._started = now, self._started + passed
        return now >= self.since + self.seconds or self._started >= self.start_seconds


def while_it_goes_on(
    missing: Callable[[], int], is_starting: Callable[[], bool] = lambda: False
) -> int:
    """Wait until nothing is missing, for as long as ever less is; return how much is in the end.

    Args:
        missing: How much is.
        is_starting: Whether who is to bring it has not begun since it was started last.
    """
    still = Stillness(missing(), time.monotonic())
    while (left := missing()) and not still.is_over(
        time.monotonic(), left, is_starting=is_starting()
    ):
        time.sleep(0.5)
    return left


@contextmanager
def brokers_of(brokers: int, *, is_hard: bool = False) -> Iterator[tuple[Any, Any]]:
    """Start brokers.

    Args:
        brokers: How many.
        is_hard: Whether :data:`CLIENT` has quotas, and the groups' log is compacted all the time.

    Yields:
        Where topics are made, and the cluster of several; None for one.
    """
    if brokers == 1:
        with KafkaBroker() as broker:
            yield broker, None
        return
    copies, least = str(brokers), str(brokers - 1)
    config = {
        "offsets.topic.num.partitions": str(_PARTITIONS),
        "offsets.topic.replication.factor": copies,
        "min.insync.replicas": least,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": least,
    }
    with KafkaCluster(brokers, config=config) as cluster:
        if is_hard:
            name = INDIVIDUAL_COMMITS_TOPIC
            cluster.create_topic(name, _PARTITIONS, replication=brokers, config=_LOG)
            for client_id, quotas in _QUOTAS.items():
                cluster.set_quotas(client_id, **quotas)
        yield cluster, cluster


def disturb(member: Member, chance: random.Random) -> None:
    """Kill, end or suspend a process."""
    number = chance.choice([signal.SIGKILL, signal.SIGTERM, *[signal.SIGSTOP] * 4])
    member.signal(number)
    if number is signal.SIGSTOP:
        signal_later(member, signal.SIGCONT, chance.choice(_SUSPENDED_SECONDS))


def signal_later(member: Member, number: signal.Signals, seconds: float) -> None:
    """Send a process a signal after some seconds."""
    timer = threading.Timer(seconds, member.signal, [number])
    timer.daemon = True
    timer.start()


def disturb_broker(topic: str, cluster: KafkaCluster, chance: random.Random) -> str:
    """Kill or freeze a broker, which then goes on, or move a leader; say what was done."""
    broker = cluster.brokers[chance.choice([*cluster.brokers])]
    what = chance.choice(["killed", "frozen", "moved"])
    if what == "killed":
        broker.kill9()
        time.sleep(chance.choice([0.0, 3.0]))
        _start_again(broker)
        return "a broker killed"
    if what == "frozen":
        broker.freeze()
        time.sleep(chance.choice([1.0, 7.0]))
        broker.thaw()
        return "a broker frozen"
    cluster.move_leader(topic, 0, broker.node_id)
    return "a leader moved"


def _start_again(broker: KafkaBroker) -> None:
    """Start a broker that was killed; on a busy machine it may take longer than it is given."""
    for _ in range(3):
        try:
            broker.start()
        except BrokerError as error:
            print(f"a broker did not start: {str(error)[:200]}", flush=True)
            broker.kill9()
        else:
            return
    broker.start()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a history.

    Attributes:
        text: What has happened, in numbers.
        faults: What is wrong.
    """

    text: str
    faults: list[str]


@dataclass(frozen=True, slots=True)
class Look:
    """What a group had committed of partition 0 at a time.

    Attributes:
        time: When it was known (ns).
        stable: The stable offset.
        above: The offsets above it that were committed individually.
    """

    time: int
    stable: int
    above: frozenset[int] = frozenset()


@dataclass
class Observer:
    """Looks again and again at what a group has committed of partition 0.

    Args:
        broker: Where the group is.
        topic: The topic.
        group: The group's id.
        key_of: The key of each offset.

    Attributes:
        looks: What was seen.
    """

    broker: Topics
    topic: str
    group: str
    key_of: Callable[[int], bytes]
    looks: list[Look] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            try:
                self.look()
            except KshareError:  # brokers are down
                continue

    def look(self) -> Look | None:
        """Look once; None if the group has committed nothing yet."""
        config = {"bootstrap.servers": self.broker.bootstrap_servers}
        said = list_offsets(self.group, config).get(TopicPartition(self.topic, 0))
        if said is None:
            return None
        above = frozenset(
            offset
            for piece in said.individual_commits
            for offset in range(piece.offsets.start, piece.offsets.end)
            if key_hash(self.key_of(offset), offset) in piece.hashes
        )
        self.looks.append(Look(time.monotonic_ns(), said.offset, above))
        return self.looks[-1]

    def events(self) -> Events:
        """What it has seen, as the events of a process that knows of commits."""
        at, lines, known = TopicPartition(self.topic, 0), list[Committed](), set[int]()
        for look in self.looks:
            lines.append(Committed(look.time, at, look.stable, is_below=True))
            lines += [Committed(look.time, at, offset) for offset in look.above - known]
            known |= look.above
        return Events(lines)


def set_back(looks: Sequence[Look]) -> list[str]:
    """What was committed, and was not any more in the next look."""
    faults = []
    for before, now in pairwise(looks):
        if now.stable < before.stable:
            faults.append(f"the stable offset went back from {before.stable} to {now.stable}")
        gone = sorted(at for at in before.above - now.above if at >= now.stable)
        if gone:
            faults.append(
                f"offsets {gone[:5]} were committed at {before.time}, and not at {now.time}"
            )
    return faults
