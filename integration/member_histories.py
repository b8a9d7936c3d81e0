"""Histories of members: they receive in all ways, and are killed, suspended, ended and replaced.

Four members share a partition. Every second or two one of them is killed, ended, or suspended, also
for longer than every time-out; brokers are killed and frozen as well, and leaders are moved. In a
standalone group, processes take key ranges over from those that live. In a group that keeps no log
(`plain`), they have whole partitions of several. :mod:`integration.histories` runs them.
"""

import random
import signal
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from integration.conditions import (
    CLIENT,
    TIMEOUTS,
    Verdict,
    set_back,
    signal_later,
    while_it_goes_on,
)
from integration.members import Member, end_all, key_at
from integration.rounds import Round, copies_of, group_round
from integration.transactions import faults_of_outputs, outputs
from kshare.core.hashing import WHOLE, HashRange, split
from kshare.group.tools.offsets import list_offsets

__all__ = ["MODES", "members_round"]

MODES: Final[Mapping[str, Mapping[str, Any]]] = {
    "implicit": {},
    "implicit, commit()": {"enable.auto.commit": False},
    "explicit": {"acknowledgement.mode": "explicit"},
    "assign": {},
    "assign, explicit": {"acknowledgement.mode": "explicit", "enable.auto.commit": False},
    "no order": {
        "consumption.order": "none",
        "cooperative.chunk.records": "50",
        "cooperative.lease.timeout.ms": 8_000,
    },
    "transactions": {"transaction.timeout.ms": 10_000},
    "plain": {"allow.individual.commit": False},
    "plain, commit()": {"allow.individual.commit": False, "enable.auto.commit": False},
}
_MEMBERS: Final = 4
_PARTITIONS: Final[Mapping[str, int]] = {"plain": 4, "plain, commit()": 4}
"""Of the topic; one, where members share it."""
_RECORDS: Final = 60
"""So many are written each second, the same number to each partition."""
_VISIT_SECONDS: Final = 7.0
_BYTES: Final = 300
"""So large that members who read what they have missed meet their quota."""


@dataclass
class Crew(Round):
    """The members that a group shall have, and who takes their places.

    Args:
        group: The group.
        chance: Which member does what.
        mode: One of :data:`MODES`.

    Attributes:
        written: The number of records in each partition.
        owners: Of a standalone group: who was given each key range last.
    """

    member_chance = 0.6
    broker_chance = 0.1

    mode: str
    written: int = 0
    owners: dict[HashRange, Member | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode.startswith("assign"):
            self.owners = dict.fromkeys(split(WHOLE, _MEMBERS))

    @property
    def partitions(self) -> range:
        """The partitions of the topic."""
        return range(_PARTITIONS.get(self.mode, 1))

    def keep(self) -> None:
        for hashes, owner in self.owners.items():
            if owner is None or owner.process.poll() is not None:
                self.owners[hashes] = self._start(hashes)
        for _ in range(0 if self.owners else _MEMBERS - len(self.living())):
            self._start(None)

    def write(self) -> None:
        count = _RECORDS // len(self.partitions)
        numbers = range(self.written, self.written + count)
        rows = [(key_at(i), f"{i}".ljust(_BYTES)) for i in numbers]
        for partition in self.partitions:
            self.group.broker.produce(self.group.topic, rows, partition=partition)
        self.written += count

    def disturb(self) -> None:
        if self.chance.random() < 0.1:
            self.swap()

    def swap(self) -> None:
        """Let somebody join: it takes the place of one that lives, or a part of two places."""
        if not self.owners:
            self._start(None)
            return
        places = sorted(self.owners)
        at = self.chance.randrange(len(places) - 1)
        what = self.chance.choice(["replace", "cut", "visit", "visit"])
        self.group.faults.append(what)
        if what == "replace":
            self.owners[places[at]] = self._start(places[at])
            return
        if what == "visit":
            self._visit(places[at])
            return
        low, high = places[at : at + 2]
        cut = low.lo + int((high.hi - low.lo) * self.chance.uniform(0.2, 0.8))
        for old, new in ((low, HashRange(low.lo, cut)), (high, HashRange(cut, high.hi))):
            del self.owners[old]
            self.owners[new] = self._start(new)

    def _visit(self, hashes: HashRange) -> None:
        """Suspend a process; another one has a part of its key hashes meanwhile, and leaves."""
        owner = self.owners[hashes]
        assert owner is not None
        owner.signal(signal.SIGSTOP)
        cut = hashes.lo + int(hashes.width * self.chance.uniform(0.2, 0.8))
        visitor = self._start(HashRange(hashes.lo, cut))
        signal_later(visitor, signal.SIGTERM, _VISIT_SECONDS)
        signal_later(owner, signal.SIGCONT, 2 * _VISIT_SECONDS)  # the claim is compacted away

    def end(self) -> None:
        """End all; those that others have replaced are fenced."""
        for member in self.group.members:
            if self.owners and member not in self.owners.values():
                member.is_over = _was_replaced(member)
        end_all(self.group)

    def _start(self, hashes: HashRange | None) -> Member:
        chance, group = self.chance, self.group
        config: dict[str, Any] = {"ways": chance.randrange(1_000_000), "pause": 0.002}
        config |= {
            "client.id": CLIENT,
            "max.partition.fetch.bytes": 100_000,
            **TIMEOUTS,
            **MODES[self.mode],
        }
        if self.mode == "transactions":
            name = f"{group.topic}-{len(group.members)}"
            config |= {"transactional.id": name, "output": group.output}
        return group.start(**config) if hashes is None else group.start_range(hashes, **config)


def _was_replaced(member: Member) -> bool:
    """Whether a process was fenced; one that has nothing to do is not told until it looks."""
    if member.process.poll() is None:
        return False
    return member.process.wait(0) == 1 and "FencedError" in member.errors()


def _await_all(crew: Crew) -> None:
    """Let all members go on, and wait until all records have come; who is fenced is replaced."""
    group = crew.group
    group.wake()
    offsets = range(crew.written)
    wanted = {(partition, offset) for partition in crew.partitions for offset in offsets}

    def come() -> set[tuple[int, int]]:
        if not group.output:
            return group.delivered()
        return {(0, offset) for offset, _ in outputs(group.broker, group.output)}

    def missing() -> int:
        crew.keep()
        return len(wanted - come())

    if while_it_goes_on(missing):
        for member in group.members:
            if member.process.poll() is None:
                member.process.send_signal(signal.SIGUSR1)
        left = sorted(wanted - come())
        text = f"{len(left)} of {len(wanted)} records did not come: {left[:20]} ... {left[-20:]}"
        print(text)
        print(f"the log ends at {group.broker.latest(group.topic)}")
        where = {"bootstrap.servers": group.broker.bootstrap_servers}
        print(f"committed: {list_offsets(group.topic, where)}", flush=True)
        raise AssertionError(text)


def members_round(
    mode: str, where: Any, cluster: Any, seconds: float, chance: random.Random, folder: Path
) -> Verdict:
    """Let members of a new topic receive while they are killed and suspended.

    Args:
        mode: One of :data:`MODES`.
        where: Makes topics.
        cluster: Whose brokers are killed and frozen, too; None for none.
        seconds: For how long.
        chance: What happens.
        folder: Where members write what they return.
    """
    partitions = _PARTITIONS.get(mode, 1)
    with group_round(where, cluster, folder, key_at, partitions) as (group, observer):
        if mode == "transactions":
            group.output = where.create_topic(**copies_of(cluster))
        crew = Crew(group, chance, mode)
        try:
            crew.chaos(seconds, cluster)
            _await_all(crew)
            crew.end()
        except BaseException:
            traceback.print_exc()  # brokers that do not stop then may hide it
            raise
        observed = {"observer": observer.events()}
        found = group.anomalies(
            is_strict=True,
            has_order=mode != "no order",
            lease_ms=MODES[mode].get("cooperative.lease.timeout.ms"),
            more=observed,
        )
        found += set_back(observer.looks)
        if group.output:
            found += faults_of_outputs(outputs(where, group.output), range(crew.written))
        fenced = sum("FencedError" in member.errors() for member in group.members)
        written = crew.written * len(crew.partitions)
        text = f"{written} records; {group.history()}; {fenced} fenced; {len(observer.looks)} looks"
        return Verdict(text, found)
