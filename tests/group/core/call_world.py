"""A small world of calls: members that collect records, lose and get the right to them, and commit.

Each member is made of what decides in production: :class:`.Ownerships`, :class:`.Right`,
:class:`.Delivery` and :class:`.Call`. The world has one clock, the group's log, primary offsets,
and two partitions of records of one key. The broker of a member may freeze: then it answers
nothing. After a freeze that is longer than the claim timeout, it shows the log as it was until the
member finds the present one. (After a shorter one it hears of its successor before anybody has
waited for the claim timeout.)
"""

import random
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pyarrow as pa

from kshare.core.hashing import WHOLE
from kshare.core.progress import Progress, TopicPartition
from kshare.group.core.call import Call
from kshare.group.core.delivery import Delivery
from kshare.group.core.ownership import Ownership
from kshare.group.core.ownerships import Ownerships
from kshare.group.core.right import Right
from kshare.group.message import NO_ROWS, Chunk, Message, Rows
from kshare.group.protocol.actions import (
    Action,
    Delete,
    FetchPrimary,
    ResolveInitial,
    Write,
    WritePrimary,
)
from kshare.group.protocol.records import Member, key_of
from kshare.group.protocol.start import Primary
from tests.group.protocol.process import Log, replay
from tests.group.protocol.world import LawBrokenError, Step, is_pending

PARTITIONS = (TopicPartition("orders", 0), TopicPartition("orders", 1))
RECORDS, CHUNK, HASH = 6, 2, 5
TIMEOUT = 4.0


@dataclass
class Returned:
    """What a call has returned of a partition."""

    partition: TopicPartition
    start: Progress
    offsets: list[int]
    chunks: frozenset[int]


@dataclass
class Process:
    """A member, and what its user has got and done."""

    name: str
    explicit: bool
    ownerships: Ownerships
    right: Right
    broker: str = "present"  # or away, or old
    frozen_at: float = 0.0
    asked_at: float | None = None  # a read is under way
    late: list[Member] = field(default_factory=list)  # beats that the present log has not got yet
    inbox: list[tuple[Ownership, int, Action]] = field(default_factory=list)
    answers: list[tuple[Ownership, int, Primary | None, int]] = field(default_factory=list)
    deliveries: dict[TopicPartition, Delivery] = field(default_factory=dict)
    rows: dict[TopicPartition, Rows] = field(default_factory=dict)
    call: Call = field(default_factory=Call)
    is_open: bool = False
    next: dict[TopicPartition, int] = field(default_factory=dict)  # to be returned next
    returned: list[Returned] = field(default_factory=list)  # to be acknowledged
    last: list[Returned] = field(default_factory=list)  # by the last call
    done: dict[TopicPartition, set[int]] = field(default_factory=dict)  # since the start
    ever: dict[TopicPartition, set[int]] = field(
        default_factory=lambda: {tp: set() for tp in PARTITIONS}
    )
    work: tuple[dict[TopicPartition, Progress], dict[TopicPartition, Progress]] | None = None

    def processed(self, each: Returned) -> None:
        """Its user has processed what a call has returned."""
        self.done[each.partition] |= set(each.offsets)
        self.ever[each.partition] |= set(each.offsets)

    def may_deliver(self, now: float) -> bool:
        """Whether it would hand out records."""
        return self.ownerships.fenced() is None and self.right.seconds_left(now) >= 0


class CallWorld:
    """The state of everything.

    Args:
        members: Number of members; only the first one has claimed.
        explicit: Whether records are acknowledged one by one.
    """

    def __init__(self, members: int = 2, *, explicit: bool = False) -> None:
        self.now, self.log = 0.0, Log()
        self.primary: dict[TopicPartition, Primary] = {}
        self.processes: dict[str, Process] = {}
        self.claims, self.freezes, self.rewinds, self.beats = 0, 0, 0, 0
        self.calls = 0  # that have returned something, ever
        for number in range(members):
            name = f"m{number}"
            owned = Ownerships(name, "g", TIMEOUT)
            owned.topic_id = self.log.topic_id
            right = Right(name, TIMEOUT, by_beats=False)
            self.processes[name] = Process(name, explicit, owned, right)
        self.claim(self.processes["m0"])

    def claim(self, process: Process) -> None:
        """Claim both partitions, in place of what is claimed."""
        self.claims += 1
        process.ownerships.claim(dict.fromkeys(PARTITIONS, (WHOLE,)))
        for key in process.ownerships.give_up():
            self.log.append(key, None)
        follow(process)

    # -- laws --------------------------------------------------------------------------------

    def check_return(
        self, process: Process, messages: list[Message], *, is_cancelled: bool
    ) -> None:
        """What holds when a call returns."""
        if messages and is_cancelled:
            raise LawBrokenError(f"a cancelled call of {process.name} has returned something")
        self.calls += bool(messages)
        for message in messages:
            partition, offset = message.topic_partition, message.offset()
            for other in self.processes.values():
                delivers = partition in other.ownerships.started() and other.may_deliver(self.now)
                if other is not process and delivers:
                    raise LawBrokenError(f"{message} of {process.name} is with {other.name}")
            if partition not in process.ownerships.started():
                raise LawBrokenError(f"{message} is returned without a start")
            if process.next.get(partition) != offset:
                raise LawBrokenError(f"{message} instead of offset {process.next.get(partition)}")
            process.next[partition] = offset + 1

    def check(self, process: Process) -> None:
        """What counts as processed was returned since the start, and acknowledged."""
        others = [other for other in self.processes.values() if other is not process]
        for partition, each in process.ownerships.by_partition.items():
            if each.start is None:
                continue
            done = process.done.get(partition, set())
            # Late facts of former owners are true, too.
            done = done.union(*(other.ever[partition] for other in others))
            for offset in range(RECORDS):
                counts = not is_pending(each.owner.done, offset, HASH)
                if counts and offset not in done and is_pending(each.start, offset, HASH):
                    raise LawBrokenError(f"{partition}@{offset} counts as processed, and is not")


# -- what happens ----------------------------------------------------------------------------------


def steps(world: CallWorld) -> list[Step]:
    """Everything that can happen next."""
    possible: list[Step] = [("tick", "")]
    for name, each in world.processes.items():
        possible += [(verb, name) for verb in _verbs(world, each)]
    return possible


def _verbs(world: CallWorld, each: Process) -> list[str]:
    verbs = []
    if each.broker != "away":
        verbs.append("ask" if each.asked_at is None else "read")
        verbs += ["beat"] * each.right.beats.wants_proof
    if each.inbox:
        verbs += ["act"] * (each.broker == "present") + ["fail"]
    verbs += ["answer"] * bool(each.answers)
    verbs += ["collect"] * (bool(each.deliveries) and not each.call.is_cancelled)
    verbs += ["return", "cancel"] if each.is_open else []
    verbs += ["acknowledge"] * bool(each.returned and each.explicit)
    verbs.append("commit" if each.work is not None else "work")
    verbs += ["rewind"] * (world.rewinds < 2 and bool(each.ownerships.by_partition))
    verbs += ["claim"] * (world.claims < 4)
    if each.broker == "present":
        verbs += ["freeze"] * (world.freezes < 2)
    else:
        verbs.append("thaw")
    return verbs


def take(world: CallWorld, step: Step) -> None:
    """Let something happen.

    Raises:
        LawBrokenError: A law does not hold any more.
    """
    what, name = step
    if what == "tick":
        world.now += 1
        for each in world.processes.values():
            _decide(world, each)
        return
    process = world.processes[name]
    globals()[f"_{what}"](world, process)
    _decide(world, process)
    world.check(process)


def sent_at(world: CallWorld, process: Process) -> float:
    """When the read was sent that is answered."""
    assert process.asked_at is not None
    return process.asked_at


def _ask(world: CallWorld, process: Process) -> None:
    process.asked_at = world.now


def _read(world: CallWorld, process: Process) -> None:
    if process.broker == "present":
        replay(world.log, process.ownerships.log)
    process.right.beats.read(process.ownerships.log)
    process.right.log_read(sent_at(world, process))
    process.asked_at = None


def _beat(world: CallWorld, process: Process) -> None:
    world.beats += 1
    alive = Member(process.name, "", world.beats)
    process.right.beats.sent(alive.seen_ms, world.now)
    if process.broker == "present":
        world.log.append(key_of(alive), alive)
    else:
        process.late.append(alive)  # what an old leader takes is not replicated: it is sent again


def _freeze(world: CallWorld, process: Process) -> None:
    world.freezes += 1
    process.broker, process.frozen_at = "away", world.now


def _thaw(world: CallWorld, process: Process) -> None:
    is_long = world.now - process.frozen_at > TIMEOUT
    process.broker = "old" if process.broker == "away" and is_long else "present"
    if process.broker == "present":
        for alive in process.late:
            world.log.append(key_of(alive), alive)
        process.late = []


def _act(world: CallWorld, process: Process) -> None:
    ownership, number, action = process.inbox.pop(0)
    match action:
        case Write(records):
            for record in records:
                world.log.append(key_of(record), record)
        case Delete(keys):
            for key in keys:
                world.log.append(key, None)
        case FetchPrimary():
            primary = world.primary.get(ownership.owner.partition)
            process.answers.append((ownership, number, primary, world.log.end))
        case ResolveInitial() if ownership.waits_for(number):
            ownership.owner.initial_found(0)
        case WritePrimary(offset, anchor):
            world.primary[ownership.owner.partition] = Primary(offset, anchor)
            if ownership.waits_for(number):
                ownership.owner.primary_written()


def _fail(world: CallWorld, process: Process) -> None:
    ownership, number, _ = process.inbox.pop(0)
    ownership.failed(number, "it is away", world.now)


def _answer(_: CallWorld, process: Process) -> None:
    ownership, number, primary, end = process.answers.pop(0)
    if ownership.waits_for(number):
        ownership.owner.primary_read(primary, end)


def _claim(world: CallWorld, process: Process) -> None:
    world.claim(process)


def _rewind(world: CallWorld, process: Process) -> None:
    """As after an abort: what was processed since counts only if the log says so."""
    world.rewinds += 1
    for each in process.ownerships.by_partition.values():
        each.rewind()


def _collect(world: CallWorld, process: Process) -> None:
    """As a call that waits: look, then take what there is."""
    if not process.may_deliver(world.now):
        return
    if not process.is_open:
        process.is_open, process.call = True, Call()
        for delivery in process.deliveries.values():
            delivery.settle()
        for each in process.last:
            _count(process, each)
        process.last = []
    for partition, delivery in process.deliveries.items():
        rows = process.rows.get(partition, NO_ROWS)
        delivery.collect()
        if not rows.left:
            offsets = range(delivery.position, RECORDS)[:CHUNK]
            if not offsets:
                process.call.took(delivery)
                continue
            rows = delivery.begin(_chunk(partition, offsets), offsets[-1] + 1)
            process.rows[partition] = rows
        process.call.took(delivery)
        process.call.messages += islice(rows.messages, 1)


def _chunk(partition: TopicPartition, offsets: range) -> Chunk:
    columns = [pa.array([b"k"] * len(offsets), pa.binary()), pa.array(offsets, pa.int64())]
    return Chunk(partition, pa.record_batch(columns, ["key", "offset"]))


def _return(world: CallWorld, process: Process) -> None:
    call, owned = process.call, process.ownerships
    seconds = process.right.seconds_left(world.now)
    process.is_open = False
    is_fenced = owned.fenced() is not None
    if is_fenced or not call.may_return(seconds, process.deliveries, owned.started()):
        _give_back(process)
        process.call = Call()
        return
    starts = {tp: each.start for tp, each in process.deliveries.items()}
    is_cancelled, messages = call.is_cancelled, call.confirm()
    world.check_return(process, messages, is_cancelled=is_cancelled)
    for partition in PARTITIONS:
        of_it = [each for each in messages if each.topic_partition == partition]
        if of_it:
            chunks = frozenset(each[0].number for each in of_it)
            offsets = [each.offset() for each in of_it]
            process.last.append(Returned(partition, starts[partition], offsets, chunks))
    process.returned += process.last


def _give_back(process: Process) -> None:
    for partition, _ in process.call.give_back(process.deliveries):
        process.deliveries[partition].take_back()
        process.rows.pop(partition, None)


def _cancel(_: CallWorld, process: Process) -> None:
    """Amid its fetch: the thread that fetches gives back, when it looks again."""
    process.call.is_cancelled = True


def _acknowledge(_: CallWorld, process: Process) -> None:
    """What a call has returned is acknowledged; it may be of a start that is over."""
    each = process.returned.pop(0)
    delivery = process.deliveries.get(each.partition)
    if delivery is not None:
        delivery.acknowledge(np.array(each.offsets, np.int64), each.chunks)
        if delivery.start is each.start:
            process.processed(each)


def _count(process: Process, each: Returned) -> None:
    delivery = process.deliveries.get(each.partition)
    if not process.explicit and delivery is not None and delivery.start is each.start:
        process.processed(each)


def _work(_: CallWorld, process: Process) -> None:
    """What is to be committed: a thread of its own commits it a little later."""
    deliveries = process.deliveries
    processed = {tp: each.processed(is_batch=True) for tp, each in deliveries.items()}
    process.work = processed, {tp: each.start for tp, each in deliveries.items()}


def _commit(_: CallWorld, process: Process) -> None:
    assert process.work is not None
    (processed, since), process.work = process.work, None
    process.ownerships.ask_commits(processed, since)


def _decide(world: CallWorld, process: Process) -> None:
    """Let the owners go on, and the deliveries follow them."""
    for ownership, actions in process.ownerships.advance(world.now):
        process.inbox += [(ownership, ownership.action, action) for action in actions]
    follow(process)


def follow(process: Process) -> None:
    """Deliver what has started, and stop what has not."""
    started = process.ownerships.started()
    for partition in PARTITIONS:
        start, delivery = started.get(partition), process.deliveries.get(partition)
        if delivery is not None and start is not delivery.start:
            delivery.stop()
            del process.deliveries[partition]
            process.rows.pop(partition, None)
        if start is not None and partition not in process.deliveries:
            explicit = process.explicit
            process.deliveries[partition] = Delivery(partition, start, (WHOLE,), explicit=explicit)
            process.next[partition], process.done[partition] = start.stable, set()
    if process.call.was_stopped(process.deliveries):
        _give_back(process)


# -- walks -----------------------------------------------------------------------------------------

_SELDOM = {"freeze": 0.3, "thaw": 0.5, "fail": 0.1, "cancel": 0.3}
_WEIGHTS: tuple[dict[str, float], ...] = (
    {**_SELDOM, "rewind": 0.15, "claim": 0.15},
    {**_SELDOM, "rewind": 0.6, "claim": 0.0, "freeze": 0.0, "commit": 0.4, "acknowledge": 0.4},
    {**_SELDOM, "rewind": 0.0, "claim": 0.5, "tick": 4.0, "collect": 2.0, "thaw": 0.3},
)
"""How often what happens, in walks of three kinds: of all, of other starts, of other owners."""


def walk(seed: int, length: int = 80) -> tuple[int, str]:
    """One random way; how many calls have returned something, and the law that is broken if any."""
    draw = random.Random(seed)
    world = CallWorld(explicit=seed % 2 == 1)
    try:
        settle(world, rounds=8)
        for _ in range(length):
            possible = steps(world)
            weights = [_WEIGHTS[seed % 3].get(what, 1.0) for what, _ in possible]
            (step,) = draw.choices(possible, weights)
            take(world, step)
        finish(world)
    except LawBrokenError as error:
        return world.calls, str(error)
    return world.calls, ""


def settle(world: CallWorld, *, rounds: int) -> None:
    """Let all members read, act and be answered, as time goes on."""
    for _ in range(rounds):
        for name, process in world.processes.items():
            while process.broker != "present":
                take(world, ("thaw", name))
            if process.right.beats.wants_proof:
                take(world, ("beat", name))
            for _ in range(3):
                if process.asked_at is None:
                    take(world, ("ask", name))
                take(world, ("read", name))
                for _ in range(len(process.inbox)):
                    take(world, ("act", name))
                while process.answers:
                    take(world, ("answer", name))
        take(world, ("tick", ""))


def finish(world: CallWorld) -> None:
    """Let no more go wrong: one member owns all, returns what is left, and commits it.

    Raises:
        LawBrokenError: It does not.
    """
    settle(world, rounds=12)
    process = world.processes["m0"]
    if not all(tp in process.ownerships.started() for tp in PARTITIONS):
        world.claim(process)
        settle(world, rounds=12)
    for _ in range(RECORDS + 2):
        if process.is_open:
            take(world, ("return", process.name))
        take(world, ("collect", process.name))
        while process.explicit and process.returned:
            take(world, ("acknowledge", process.name))
        settle(world, rounds=1)
    if process.is_open:
        take(world, ("return", process.name))
    for each in [*process.last]:
        _count(process, each)
    for delivery in process.deliveries.values():
        delivery.settle()
    while process.explicit and process.returned:
        take(world, ("acknowledge", process.name))
    process.work = None
    take(world, ("work", process.name))
    take(world, ("commit", process.name))
    settle(world, rounds=2)
    ends = {tp: each.offset for tp, each in world.primary.items()}
    if ends != dict.fromkeys(PARTITIONS, RECORDS):
        raise LawBrokenError(f"the group has committed {ends} in the end")
