"""How long a rebalance keeps records waiting: ``python -m bench --only membership``.

Records come all the time, on one partition. Four processes share it, a fifth joins, and later one is
killed. What each delivers is written down with its time; see :mod:`integration.member_process`.
"""

import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from confluent_kafka import Producer

from bench.rows import Row
from integration.members import Group, Member, eventually
from integration.topics import Topics

KEYS, EACH_SECONDS, AT_ONCE = 200, 0.01, 10
WATCHED_SECONDS = 6.0
CONFIG = {"pause": 0, "heartbeat.interval.ms": 500, "session.timeout.ms": 6_000}


@dataclass
class Rebalance:
    """What one rebalance did.

    Attributes:
        undisturbed: The longest time without a record of hashes that stay, before it, in seconds.
        gap: The same during it, of the member where it was longest.
        resumed: The longest time from ``on_revoked`` until a record of each key that moved was
            delivered at the new owner.
        replaced: From a kill until a record of each of its keys was delivered elsewhere.
    """

    undisturbed: float
    gap: float
    resumed: float
    replaced: float


@contextmanager
def produced(broker: Topics, topic: str) -> Iterator[None]:
    """Records of all keys in turn, a thousand a second, until the end of the block."""
    ended = threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 1})
        number = 0
        while not ended.wait(EACH_SECONDS):
            for _ in range(AT_ONCE):
                producer.produce(topic, b"v", f"key-{number % KEYS}", 0)
                number += 1
            producer.poll(0)
        producer.flush()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def shares(members: list[Member], each: float) -> None:
    eventually(lambda: all(abs(member.share() - each) < 0.01 for member in members))


def deliveries(member: Member, since: int) -> dict[str, list[int]]:
    """Times of a member's records from some time on, by key."""
    times = defaultdict(list)
    for at, _, _, key in member.records():
        if at >= since:
            times[key].append(at)
    return times


def longest_gap(times: list[int], since: int, until: int) -> float:
    within = sorted(t for t in times if since <= t <= until)
    gaps = [later - t for t, later in pairwise(within)]
    return max(gaps, default=until - since) / 1e9


def measure(broker: Topics, folder: Path) -> Rebalance:
    """One rebalance by a fifth member, and one by a kill."""
    topic = broker.create_topic()
    with produced(broker, topic), closing(Group(broker, topic, folder)) as group:
        members = [group.start(**CONFIG) for _ in range(4)]
        shares(members, 1 / 4)
        time.sleep(WATCHED_SECONDS)
        began = time.monotonic_ns()
        fifth = group.start(**CONFIG)
        shares([*members, fifth], 1 / 5)
        time.sleep(3)
        ended = time.monotonic_ns()
        before = began - int((WATCHED_SECONDS - 2) * 1e9)
        its_keys = deliveries(fifth, began)
        undisturbed, gap, resumed = 0.0, 0.0, 0.0
        for member in members:
            times = deliveries(member, before)
            stay = [t for key, of_key in times.items() if key not in its_keys for t in of_key]
            undisturbed = max(undisturbed, longest_gap(stay, before, began))
            gap = max(gap, longest_gap(stay, began, ended))
            revoked = [int(line[1]) for line in member.lines() if line[0] == "revoked"]
            moved = [its_keys[key][0] for key in times if key in its_keys]
            if moved:
                resumed = max(resumed, (max(moved) - revoked[-1]) / 1e9)
        assert resumed, "nothing has moved"
        dead = members[0]
        keys = deliveries(dead, ended - int(1e9)).keys()
        dead.process.kill()
        killed = time.monotonic_ns()
        living = [*members[1:], fifth]

        def seen() -> dict[str, int]:
            first: dict[str, int] = {}
            for member in living:
                for key, times in deliveries(member, killed).items():
                    first[key] = min(times[0], first.get(key, times[0]))
            return first

        eventually(lambda: keys <= seen().keys())
        replaced = max(at for key, at in seen().items() if key in keys) - killed
        return Rebalance(undisturbed, gap, resumed, replaced / 1e9)


class _Broker(Topics):
    """A broker that runs already."""

    def __init__(self, servers: str) -> None:
        self._servers = servers

    @property
    def bootstrap_servers(self) -> str:
        return self._servers


def rows(servers: str, runs: int) -> list[Row]:
    """The table's lines."""
    broker = _Broker(servers)
    with tempfile.TemporaryDirectory() as folder:
        measured = []
        for run in range(runs):
            (run_folder := Path(folder) / str(run)).mkdir()
            measured.append(measure(broker, run_folder))

    def row(name: str, each: list[float], most: float, peer: str = "-") -> Row:
        shown = f"{min(each) * 1000:.0f} ({statistics.median(each) * 1000:.0f}) ms"
        met = statistics.median(each) <= most
        return Row(name, peer, shown, "-", f"<= {most * 1000:.0f} ms", met)

    quiet = statistics.median(each.undisturbed for each in measured) * 1000
    return [
        row(
            "a fifth member joins: longest wait for a record of hashes that stay",
            [each.gap for each in measured],
            0.1,
            f"{quiet:.0f} ms without a rebalance",
        ),
        row(
            "the same: from on_revoked until all keys are there", [e.resumed for e in measured], 1.0
        ),
        row("a member is killed, session 6 s: all its keys", [e.replaced for e in measured], 7.5),
    ]
