"""A small world of calls: members that collect records, lose and get the right to them, and commit.

Each member is made of what decides in production (:mod:`tests.group.core.calling`). The world has
one clock, the group's log, primary offsets, and two partitions. The broker of a member may freeze:
then it answers nothing. After a freeze that is longer than the claim timeout, it shows the log as
it was until the member finds the present one. (After a shorter one it hears of its successor before
anybody has waited for the claim timeout.)

Either anybody claims all, in place of others, or a group hands halves on: a member keeps what stays
and reads on, commits, claims that, and then another one claims the rest.
"""

import random
from collections import Counter

from kshare.core.hashing import ALL_HASHES, NO_HASHES, KeyRanges
from kshare.core.progress import TopicPartition
from kshare.group.core.handing_out import Call
from kshare.group.core.ownerships import Ownerships
from kshare.group.core.right import Right
from kshare.group.message import Message
from kshare.group.protocol.commit_log.records import Member, key_of
from kshare.group.protocol.commit_log.start import Primary
from kshare.group.protocol.owners.actions import (
    Delete,
    FetchPrimary,
    ResolveInitial,
    Write,
    WritePrimary,
)
from tests.group.core.calling import LOG, PARTITIONS, RECORDS, Held, Process
from tests.group.core.driver import Driver
from tests.group.protocol.process import Log, replay
from tests.group.protocol.world import LawBrokenError, Step
from tests.support.groups import LOWER, UPPER

TIMEOUT = 4.0


class CallWorld:
    """The state of everything.

    Args:
        members: Number of members; only the first one has claimed.
        explicit: Whether records are acknowledged one by one.
    """

    def __init__(self, members: int = 2, *, explicit: bool = False, is_group: bool = False) -> None:
        self.now, self.log, self.is_group = 0.0, Log(), is_group
        self.primary: dict[TopicPartition, Primary] = {}
        self.processes: dict[str, Process] = {}
        self.claims, self.freezes, self.rewinds, self.beats, self.anew = 0, 0, 0, 0, 0
        self.returned: Counter[str] = Counter()  # records, by what had happened to their member
        for number in range(members):
            name = f"m{number}"
            owned = Ownerships(name, "g", TIMEOUT)
            owned.topic_id = self.log.topic_id
            right = Right(name, TIMEOUT, by_beats=False)
            driver = Driver(LOG, LOG, explicit=explicit)
            self.processes[name] = Process(name, explicit, owned, right, driver)
        self.claim(self.processes["m0"], ALL_HASHES)

    def claim(self, process: Process, hashes: KeyRanges, *, keeps: bool = False) -> None:
        """Claim some hashes of both partitions, in place of what is claimed."""
        self.claims += 1
        process.give_back()
        process.ownerships.claim(dict.fromkeys(PARTITIONS, hashes) if hashes else {})
        for key in process.ownerships.give_up():
            self.log.append(key, None)
        process.assign(hashes, keeps=keeps)

    def others(self, process: Process) -> list[Process]:
        return [other for other in self.processes.values() if other is not process]

    def free(self, process: Process) -> KeyRanges:
        """The hashes that a group may assign to a member: no other one has them, or is to."""
        taken = KeyRanges(part for each in self.others(process) for part in each.hashes)
        taken |= (part for each in self.others(process) for part in each.target or ())
        return ALL_HASHES - taken

    def check_return(
        self, process: Process, messages: list[Message], *, is_cancelled: bool
    ) -> None:
        """What holds when a call returns."""
        if messages and is_cancelled:
            raise LawBrokenError(f"a cancelled call of {process.name} has returned something")
        started = process.ownerships.started()
        process.check_return(messages, self.others(process), started, self.now)
        self.returned["records"] += len(messages)
        settled = process.driver.state.is_settled()
        self.returned["provisional"] += 0 if settled else len(messages)


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
    verbs += ["collect 1", "collect 2"] * (bool(each.hashes) and not each.call.is_cancelled)
    verbs += ["return", "cancel"] if each.is_open else []
    if each.explicit:  # in any order, so that gaps are left
        verbs += [f"acknowledge {which}" for which in (0, -1)[: len(each.held)]]
    verbs.append("commit" if each.work is not None else "work")
    verbs += _verbs_of_group(world, each) if world.is_group else _verbs_alone(world, each)
    if each.broker == "present":
        verbs += ["freeze"] * (world.freezes < 2)
    else:
        verbs.append("thaw")
    return verbs


def _verbs_alone(world: CallWorld, each: Process) -> list[str]:
    verbs = ["rewind"] * (world.rewinds < 2 and bool(each.ownerships.by_partition))
    return verbs + ["claim"] * (world.claims < 4) + ["lose"] * bool(each.hashes)


def _verbs_of_group(world: CallWorld, each: Process) -> list[str]:
    verbs = [f"{what} {tp.partition}" for what in ("seek", "pause") for tp in PARTITIONS]
    verbs += ["anew"] * (world.anew < 2)
    verbs *= bool(each.hashes)
    if world.claims >= 8 or each.is_open or each.inbox:  # not amid a call; claims are written
        return verbs
    if each.target is not None:
        return [*verbs, "hand"]
    verbs += ["keep 0", "keep 1"] * (each.hashes == ALL_HASHES)
    verbs += ["gain"] * (world.free(each).width > each.hashes.width)
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
    process, (verb, *number) = world.processes[name], what.split()
    globals()[f"_{verb}"](world, process, *map(int, number))
    _decide(world, process)
    process.check(world.others(process))


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
    world.claim(process, ALL_HASHES)


def _lose(world: CallWorld, process: Process) -> None:
    """It is closed, or was dropped: what it has collected by then was not returned."""
    world.claim(process, NO_HASHES)
    world.claims -= 1


def _rewind(world: CallWorld, process: Process) -> None:
    """As after an abort: what was processed since counts only if the log says so."""
    world.rewinds += 1
    for each in process.ownerships.by_partition.values():
        each.rewind()


def _anew(world: CallWorld, process: Process) -> None:
    """Others may have come and gone unseen: nothing of before counts, nor is carried over."""
    world.anew += 1
    process.ownerships.look_anew()
    for key in process.ownerships.give_up():
        world.log.append(key, None)
    for user in process.users.values():
        user.carries = False
    process.void(lambda _: True)


def _keep(world: CallWorld, process: Process, half: int) -> None:
    """The group takes a half away: what was processed is committed, and the other one read on."""
    _change(world, process, KeyRanges([(LOWER, UPPER)[half]]))


def _gain(world: CallWorld, process: Process) -> None:
    """The group assigns what is free: the next claim is of all."""
    _change(world, process, world.free(process))


def _change(world: CallWorld, process: Process, target: KeyRanges) -> None:
    process.settle()
    _work(world, process)
    _commit(world, process)
    process.target = target
    if process.hashes:
        process.assign(process.hashes & target, keeps=True, is_kept=True)


def _hand(world: CallWorld, process: Process) -> None:
    """What stays, or was gained, is claimed."""
    process.settle()
    target, process.target = process.target, None
    assert target is not None
    world.claim(process, target, keeps=True)


def _seek(world: CallWorld, process: Process, number: int) -> None:
    """Now and then to another place."""
    process.seek(PARTITIONS[number], int(world.now * 7) % (RECORDS + 1))


def _pause(_: CallWorld, process: Process, number: int) -> None:
    process.pause(PARTITIONS[number])


def _collect(world: CallWorld, process: Process, most: int) -> None:
    """As a call that waits: look, then take what there is."""
    if not process.is_open:
        process.is_open, process.call = True, Call()
        process.settle()
    process.look(world.now)
    if process.ownerships.fenced() is not None:
        process.give_back()
    driver, call = process.driver, process.call
    if process.may_deliver(world.now) and driver.fetch():
        call.took(driver.out.delivery)
        driver.out.collect(most, call.messages)


def _return(world: CallWorld, process: Process) -> None:
    call, owned = process.call, process.ownerships
    present = process.driver.state.by_partition
    seconds = process.right.seconds_to_deliver(world.now)
    process.is_open = False
    is_fenced = owned.fenced() is not None
    if is_fenced or not call.may_return(seconds, present, owned.started(), owned.may_count):
        process.give_back()
        process.call = Call()
        return
    is_cancelled, messages = call.is_cancelled, call.confirm()
    world.check_return(process, messages, is_cancelled=is_cancelled)
    process.last += map(Held, messages)
    process.held += process.last


def _cancel(_: CallWorld, process: Process) -> None:
    """Amid its fetch: the thread that fetches gives back, when it looks again."""
    process.call.is_cancelled = True


def _acknowledge(_: CallWorld, process: Process, which: int) -> None:
    process.acknowledge(which)


def _work(_: CallWorld, process: Process) -> None:
    """What is to be committed: a thread of its own commits it a little later."""
    deliveries = process.driver.state.by_partition
    processed = {tp: each.processed(is_batch=True) for tp, each in deliveries.items()}
    process.work = processed, {tp: each.start for tp, each in deliveries.items()}


def _commit(_: CallWorld, process: Process) -> None:
    assert process.work is not None
    (processed, starts), process.work = process.work, None
    process.ownerships.ask_commits(processed, starts)


def _decide(world: CallWorld, process: Process) -> None:
    """Let the owners go on; deliveries follow when a call looks."""
    for ownership, actions in process.ownerships.advance(world.now):
        process.inbox += [(ownership, ownership.action_number, action) for action in actions]


# -- walks -----------------------------------------------------------------------------------------

_SELDOM = {"freeze": 0.3, "thaw": 0.5, "fail": 0.1, "cancel": 0.3, "lose": 0.1, "collect": 0.5}
_STARTS = {"freeze": 0.0, "rewind": 0.6, "claim": 0.0, "commit": 0.4, "acknowledge": 0.4}
_OWNERS = {"rewind": 0.0, "claim": 0.5, "tick": 4.0, "collect": 1.0, "thaw": 0.3}
_HANDED = {"keep": 2.0, "gain": 2.0, "hand": 4.0, "collect": 1.5, "return": 2.0, "pause": 0.2}
_WEIGHTS: tuple[dict[str, float], ...] = (
    {**_SELDOM, "rewind": 0.15, "claim": 0.15},
    {**_SELDOM, "lose": 0.0, **_STARTS},
    {**_SELDOM, "lose": 0.0, **_OWNERS},
    {**_SELDOM, "freeze": 0.05, "seek": 0.6, "anew": 0.2, **_HANDED},
)
"""How often what happens, in walks of four kinds: of all, of other starts, of other owners, and of
a group that hands halves on."""


def walk(seed: int, length: int = 80) -> tuple[Counter[str], str]:
    """One random way; how many records calls have returned, and the law that is broken if any."""
    draw, kind = random.Random(seed), seed // 2 % 4
    world = CallWorld(explicit=seed % 2 == 1, is_group=kind == 3)
    try:
        settle(world, rounds=8)
        for _ in range(length):
            possible = steps(world)
            weights = [_WEIGHTS[kind].get(what.partition(" ")[0], 1.0) for what, _ in possible]
            (step,) = draw.choices(possible, weights)
            take(world, step)
        finish(world)
    except LawBrokenError as error:
        return world.returned, str(error)
    return world.returned, ""


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
    state = process.driver.state
    has_all = all(tp in process.ownerships.started() for tp in PARTITIONS)
    if process.hashes != ALL_HASHES or process.target is not None or not has_all:
        for each in world.processes.values():
            world.claim(each, NO_HASHES)
        world.claim(process, ALL_HASHES)
        settle(world, rounds=12)
    for partition in PARTITIONS if world.is_group else ():
        process.seek(partition, 0)  # what was passed over comes, too
        process.look(world.now)
        if partition in state.paused:
            process.pause(partition)
    process.call.is_cancelled = False
    for _ in range(2 * RECORDS + 2):
        if process.is_open:
            take(world, ("return", process.name))
        take(world, ("collect 1", process.name))
        while process.explicit and process.held:
            take(world, ("acknowledge 0", process.name))
        settle(world, rounds=1)
    if process.is_open:
        take(world, ("return", process.name))
    process.settle()
    while process.explicit and process.held:
        take(world, ("acknowledge 0", process.name))
    process.work = None
    take(world, ("work", process.name))
    take(world, ("commit", process.name))
    settle(world, rounds=2)
    ends = {tp: each.offset for tp, each in world.primary.items()}
    if ends != dict.fromkeys(PARTITIONS, RECORDS):
        raise LawBrokenError(f"the group has committed {ends} in the end")
