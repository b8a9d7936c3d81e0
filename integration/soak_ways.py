"""Members that receive in all ways, and are killed and stopped, for as long as one wants.

``python -m integration.soak_ways [--seconds 600] [--brokers 3] [--mode MODE] [--seed N]``

Four members share a partition. Every second or two one of them is killed, ended, or stopped for 1
or 8 s; with several brokers, these are killed and frozen as well. At the end it says how many
records were returned that must not have been (see
:meth:`integration.members.Group.faults_of_returns`); an error if not all came.
"""

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from integration.cluster import KafkaCluster
from integration.kafka import KafkaBroker
from integration.members import Group, Member, end_all, eventually, fill

__all__ = ["MODES", "await_all", "chaos", "start"]

MODES: Final[dict[str, dict[str, Any]]] = {
    "implicit": {},
    "implicit, commit()": {"enable.auto.commit": False},
    "explicit": {"acknowledgement.mode": "explicit"},
    "explicit, one of a key": {"acknowledgement.mode": "explicit", "max.in.flight.per.key": 1},
    "no order": {"consumption.order": "none", "cooperative.chunk.records": "50"},
}
_MEMBERS: Final = 4
_RECORDS: Final = 60
"""So many are written each second."""


def start(group: Group, mode: str, chance: random.Random) -> Member:
    """Start a member."""
    return group.start(ways=chance.randrange(1_000_000), pause=0.002, **MODES[mode])


def chaos(
    group: Group, mode: str, seconds: float, chance: random.Random, cluster: Any = None
) -> int:
    """Kill and stop members, and write records; return their number.

    Args:
        group: The group.
        mode: One of :data:`MODES`.
        seconds: For how long.
        chance: What happens.
        cluster: Whose brokers are killed and frozen, too.
    """
    until, total = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        living = [each for each in group.members if each.process.poll() is None]
        while len(living) < _MEMBERS:
            living.append(start(group, mode, chance))
        began = time.monotonic()
        fill(group, total, total + _RECORDS)
        total += _RECORDS
        time.sleep(0.6 * chance.random())  # so that some are in a call, and some are in hand
        if chance.random() < 0.6:
            _disturb(chance.choice(living), chance)
        if cluster is not None and chance.random() < 0.08:
            _disturb_broker(group, cluster, chance)
        time.sleep(max(0.0, began + 1.0 - time.monotonic()))
    return total


def _disturb(member: Member, chance: random.Random) -> None:
    number = chance.choice([signal.SIGKILL, signal.SIGTERM, *[signal.SIGSTOP] * 4])
    member.signal(number)
    if number is signal.SIGSTOP:
        after = chance.choice([1.0, 1.0, 8.0])
        timer = threading.Timer(after, member.signal, [signal.SIGCONT])
        timer.daemon = True
        timer.start()


def _disturb_broker(group: Group, cluster: Any, chance: random.Random) -> None:
    broker = cluster.brokers[chance.choice([*cluster.brokers])]
    if chance.random() < 0.5:
        group.faults.append("a broker killed")
        broker.kill9()
        time.sleep(chance.choice([0.0, 3.0]))
        broker.start()
    else:
        group.faults.append("a broker frozen")
        broker.freeze()
        time.sleep(chance.choice([1.0, 7.0]))
        broker.thaw()


@contextmanager
def _cluster(brokers: int) -> Iterator[tuple[Any, Any]]:
    if brokers == 1:
        with KafkaBroker() as broker:
            yield broker, None
        return
    config = {
        "offsets.topic.num.partitions": "8",
        "offsets.topic.replication.factor": str(brokers),
        "min.insync.replicas": str(brokers - 1),
    }
    with KafkaCluster(brokers, config=config) as cluster:
        yield cluster, cluster


def await_all(group: Group, total: int) -> None:
    """Let all members go on, and wait until all records have come."""
    for member in group.members:
        member.signal(signal.SIGCONT)
    eventually(lambda: len(group.delivered()) == total, 180)


def main(arguments: list[str]) -> int:
    """Run, and return the number of faults."""
    parser = argparse.ArgumentParser(prog="integration.soak_ways")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--mode", choices=[*MODES, "all"], default="all")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    faults = 0
    with tempfile.TemporaryDirectory() as folder, _cluster(given.brokers) as (where, cluster):
        for mode in MODES if given.mode == "all" else [given.mode]:
            copies = {} if cluster is None else {"replication": given.brokers}
            topic = where.create_topic(**copies)
            chance = random.Random(given.seed)
            with closing(Group(where, topic, Path(folder))) as group:
                total = chaos(group, mode, given.seconds, chance, cluster)
                await_all(group, total)
                end_all(group)
                found = group.faults_of_returns(has_order=mode != "no order")
                faults += len(found)
                print(f"{mode}: {group.history()}; {len(found)} faults", flush=True)
                for fault in found[:10]:
                    print(f"  {fault}", flush=True)
    return faults


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
