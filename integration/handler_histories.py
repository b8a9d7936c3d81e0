"""Histories of handlers: processors are killed, suspended and ended, under each failure policy.

Coroutine functions and plain ones are in one group. Some records fail a few times, some for good,
some hang, some are to come later (:mod:`integration.handler_process`); what has failed for good
and waits is healed after a while. :mod:`integration.histories` runs them.
"""

import random
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from integration import handler_process
from integration.conditions import (
    CLIENT,
    TIMEOUTS,
    Observer,
    Verdict,
    set_back,
    while_it_goes_on,
)
from integration.handler_judge import Handlers, Letter, Process, calls_of
from integration.history import Delivery, Events, History, OwnerChange, check_history
from integration.members import Member, end_all
from integration.rounds import Round, copies_of, group_round
from integration.topics import Topics
from integration.transactions import read_to_end, reader_of
from kshare.cli import main as kshare
from kshare.core.progress import TopicPartition
from kshare.dead_letters.writer import HEADERS
from kshare.group.config.consumer_config import consumer_config
from kshare.kafka.parked_keys import ParkedKeys

__all__ = ["handlers_round"]

_PROCESSES: Final = 3
_RECORDS: Final = 60
"""So many are written each second."""
_KEYS: Final = 61
_GENERATION: Final = 900
"""After so many records there are other keys: a sequence holds its key for good."""
_BYTES: Final = 200
_NS: Final = 1_000_000_000


def key_of(offset: int) -> bytes:
    """The key of a record."""
    return b"key-%d-%d" % (offset // _GENERATION, offset * offset % _KEYS)


@dataclass
class Processors(Round):
    """Processors of one group, and what is done to their records.

    Args:
        group: The processes.
        chance: What happens.
        policy: One of :data:`integration.handler_process.POLICIES`.
        folder: Where processes write.
    """

    member_chance = 0.4
    broker_chance = 0.06

    policy: str
    folder: Path
    letters: str = ""
    sent: list[tuple[bytes, str]] = field(default_factory=list)
    healed: set[int] = field(default_factory=set)

    def start(self) -> Member:
        """Start a processor."""
        chance = self.chance
        config: dict[str, Any] = {
            "policy": self.policy,
            "letters": self.letters,
            "healed": str(self.folder / "healed"),
            "plain": chance.random() < 0.5,
            "auto.commit.interval.ms": chance.choice([200, 5_000, 5_000]),
            "client.id": CLIENT,
            **TIMEOUTS,
        }
        return self.group.start_handlers(**config)

    def keep(self) -> None:
        for _ in range(_PROCESSES - len(self.living())):
            self.start()

    def disturb(self) -> None:
        if self.chance.random() < 0.1:
            self.start()
        if self.chance.random() < 0.2:
            self.heal()

    def write(self) -> None:
        chance, begun = self.chance, len(self.sent)
        for offset in range(begun, begun + _RECORDS):
            key = key_of(offset)
            whats = ["fails 1", "fails 2", "later", "hangs"]
            what = chance.choice(whats) if chance.random() < 0.04 else "ok"
            if key.endswith(b"3") and chance.random() < 0.1:
                what = "bad"
            self.sent.append((key, what))
        rows = [(key, what.ljust(_BYTES)) for key, what in self.sent[begun:]]
        self.group.broker.produce(self.group.topic, rows)

    def heal(self) -> None:
        """Let what has failed for good, and waits, be well."""
        if self.policy not in {"stop", "park"}:
            return
        calls = [call for each in self.processes().values() for call in each.calls]
        last = handler_process.ATTEMPTS
        failed = {call.offset for call in calls if call.attempt >= last and call.how == "failed"}
        with (self.folder / "healed").open("a") as file:
            file.writelines(f"{offset}\n" for offset in sorted(failed - self.healed))
        self.healed |= failed
        if self.policy == "park":
            self._unpark()

    def _unpark(self) -> None:
        servers, topic = self.group.broker.bootstrap_servers, self.group.topic
        kafka = consumer_config({"bootstrap.servers": servers, "group.id": topic}).kafka
        with closing(ParkedKeys(kafka)) as table:
            keys = [key.decode() for of, key in table.parked() if of == topic]
        if keys:
            kshare(["unpark", "--topic", topic, "--bootstrap-servers", servers, *keys])

    def processes(self) -> Mapping[str, Process]:
        """What the processes have done, and what was done to them."""
        found = {}
        for member in self.group.members:
            name, lines = member.file.name, member.lines()
            lost = [int(line[1]) for line in lines if line[0] in {"lost", "anew"}]
            found[name] = Process(calls_of(name, lines), member.interrupted, lost)
        return found

    def history(self) -> Handlers:
        """All that has happened until now."""
        ns = int(handler_process.FIRST_SECONDS * (1 - handler_process.JITTER) * _NS)
        return Handlers(
            self.processes(),
            self.sent,
            self.policy,
            handler_process.ATTEMPTS,
            ns,
            int(handler_process.LATER_SECONDS * _NS),
            read_letters(self.group.broker, self.letters) if self.letters else [],
        )

    def owners(self, observer: Observer) -> list[str]:
        """What is wrong with who handled what, and with what came again."""
        at = TopicPartition(self.group.topic, 0)
        events = {"observer": observer.events()}
        for member in self.group.members:
            name = member.file.name
            mine = member.events(self.group.topic)
            lines: list[Any] = [line for line in mine.lines if isinstance(line, OwnerChange)]
            lines += [
                Delivery(call.began, at, call.offset, call.key)
                for call in calls_of(name, member.lines())
                if call.how == "handled"
            ]
            lines.sort(key=lambda line: line.time)
            events[name] = Events(lines, mine.resumed, anew=mine.anew)
        return [str(each) for each in check_history(History(processes=events))]


def read_letters(broker: Topics, topic: str) -> list[Letter]:
    """The dead letters of a topic of one partition, in the order of their log."""
    _, _, of_offset, of_error, *_ = HEADERS
    found = []
    with closing(reader_of(broker, topic)) as reader:
        for message in read_to_end(reader):
            headers: dict[str, Any] = dict(message.headers() or ())
            offset, error = int(headers[of_offset]), headers[of_error].decode()
            found.append(Letter(message.key() or b"", offset, error))
    return found


def handlers_round(
    policy: str, where: Any, cluster: Any, seconds: float, chance: random.Random, folder: Path
) -> Verdict:
    """Let processors of a new topic handle records while they are killed and suspended.

    Args:
        policy: What becomes of a record that has failed for good.
        where: Makes topics.
        cluster: Whose brokers are killed and frozen, too; None for none.
        seconds: For how long.
        chance: What happens.
        folder: Where processes write what they do.
    """
    (folder / "healed").touch()
    with group_round(where, cluster, folder, key_of) as (group, observer):
        run = Processors(group, chance, policy, folder)
        if policy in {"dead letters", "sequences"}:
            run.letters = where.create_topic(**copies_of(cluster))
        run.chaos(seconds, cluster)
        _await(run)
        for member in group.members:
            member.is_over = member.process.poll() == 1 and _has_stopped(run, member)
        end_all(group)
        history = run.history()
        found = [*history.faults(), *run.owners(observer), *set_back(observer.looks)]
        bad = sum(what == "bad" for _, what in run.sent)
        calls = sum(len(each.calls) for each in history.processes.values())
        text = f"{len(run.sent)} records, {bad} of them bad; {calls} calls; "
        text += f"{len(history.letters)} letters; {group.history()}; {len(observer.looks)} looks"
    return Verdict(text, found)


def _await(run: Processors) -> None:
    """Heal all, and wait until each record has its outcome."""

    def missing() -> int:
        run.keep()
        run.heal()
        return len(run.history().missing())

    run.group.wake()
    if while_it_goes_on(missing):
        print(f"without an outcome: {run.history().missing()[:20]}", flush=True)


def _has_stopped(run: Processors, member: Member) -> bool:
    """Whether a processor has ended as Stop() says."""
    return run.policy == "stop" and "ProcessingError" in member.errors()
