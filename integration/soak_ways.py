"""Members that receive in all ways, and are killed and stopped, for as long as one wants.

``python -m integration.soak_ways [--seconds 600] [--brokers 3] [--mode MODE] [--seed N]``

Four members share a partition. Every second or two one of them is killed, ended, or stopped for 1
or 8 s; with several brokers, these are killed and frozen as well. At the end it says how many
records were returned that must not have been (see
:meth:`integration.members.Group.faults_of_returns`); an error if not all came. With transactions,
each record has one output, and those of a key are in order.
"""

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from integration.cluster import KafkaCluster
from integration.kafka import BrokerError, KafkaBroker
from integration.members import Group, Member, end_all, eventually, fill
from integration.transactions import outputs
from kshare.group.offsets import list_offsets

__all__ = ["MODES", "brokers_of", "members_round"]

MODES: Final[dict[str, dict[str, Any]]] = {
    "implicit": {},
    "implicit, commit()": {"enable.auto.commit": False},
    "explicit": {"acknowledgement.mode": "explicit"},
    "explicit, one of a key": {"acknowledgement.mode": "explicit", "max.in.flight.per.key": 1},
    "no order": {"consumption.order": "none", "cooperative.chunk.records": "50"},
    "transactions": {"transaction.timeout.ms": 20_000},
}
_MEMBERS: Final = 4
_RECORDS: Final = 60
"""So many are written each second."""


def start(group: Group, mode: str, chance: random.Random) -> Member:
    """Start a member."""
    config: dict[str, Any] = {"ways": chance.randrange(1_000_000), "pause": 0.002, **MODES[mode]}
    if mode == "transactions":
        name = f"{group.topic}-{len(group.members)}"
        config |= {"transactional.id": name, "output": group.output}
    return group.start(**config)


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
        _start_again(broker)
    else:
        group.faults.append("a broker frozen")
        broker.freeze()
        time.sleep(chance.choice([1.0, 7.0]))
        broker.thaw()


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


@contextmanager
def brokers_of(brokers: int) -> Iterator[tuple[Any, Any]]:
    """Start brokers: where topics are made, and the cluster of several; None for one."""
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
    wanted = {(0, offset) for offset in range(total)}

    def come() -> set[tuple[int, int]]:
        if not group.output:
            return group.delivered()
        return {(0, offset) for offset, _ in outputs(group.broker, group.output)}

    try:
        eventually(lambda: come() >= wanted, 180)
    except AssertionError:
        for member in group.members:
            if member.process.poll() is None:
                member.process.send_signal(signal.SIGUSR1)
        missing = sorted(wanted - come())
        print(f"{len(missing)} of {total} records did not come: {missing[:20]} ... {missing[-20:]}")
        print(f"the log ends at {group.broker.latest(group.topic)}")
        where = {"bootstrap.servers": group.broker.bootstrap_servers}
        print(f"committed: {list_offsets(group.topic, where)}", flush=True)
        raise


def faults_of_outputs(group: Group, total: int) -> list[str]:
    """What is wrong with the outputs of transactional members, of which there is one a record."""
    found = outputs(group.broker, group.output)
    times = Counter(offset for offset, _ in found)
    faults = [
        f"offset {offset} has {times[offset]} outputs" for offset in times if times[offset] > 1
    ]
    faults += [f"offset {offset} has no output" for offset in range(total) if not times[offset]]
    last: dict[bytes, int] = {}
    for offset, key in found:
        if offset < last.get(key, -1):
            faults.append(f"{key!r}: offset {offset} comes after {last[key]}")
        last[key] = offset
    return faults


def members_round(
    where: Any, cluster: Any, mode: str, seconds: float, chance: random.Random, folder: Path
) -> list[str]:
    """Let members of a new topic receive while they are killed and stopped; what is wrong.

    Args:
        where: Makes topics.
        cluster: Whose brokers are killed and frozen, too; None for none.
        mode: One of :data:`MODES`.
        seconds: For how long.
        chance: What happens.
        folder: Where members write what they return.
    """
    copies = {} if cluster is None else {"replication": len(cluster.brokers)}
    with closing(Group(where, where.create_topic(**copies), folder)) as group:
        if mode == "transactions":
            group.output = where.create_topic(**copies)
        try:
            total = chaos(group, mode, seconds, chance, cluster)
            await_all(group, total)
            end_all(group)
        except BaseException:
            traceback.print_exc()  # brokers that do not stop then may hide it
            raise
        found = group.faults_of_returns(has_order=mode != "no order")
        found += faults_of_outputs(group, total) if group.output else []
        print(f"{mode}: {group.history()}; {len(found)} faults", flush=True)
    return found


def main(arguments: list[str]) -> int:
    """Run, and return the number of faults."""
    parser = argparse.ArgumentParser(prog="integration.soak_ways")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--mode", choices=[*MODES, "all"], default="all")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    faults = 0
    with tempfile.TemporaryDirectory() as folder, brokers_of(given.brokers) as (where, cluster):
        for number, mode in enumerate(MODES if given.mode == "all" else [given.mode]):
            own = Path(folder) / f"{number}"  # what members of another mode wrote does not count
            own.mkdir()
            chance = random.Random(given.seed)
            found = members_round(where, cluster, mode, given.seconds, chance, own)
            for fault in found[:10]:
                print(f"  {fault}", flush=True)
            faults += len(found)
    return faults


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
