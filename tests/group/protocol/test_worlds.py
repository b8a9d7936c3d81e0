"""The worlds of the models take short cuts: they say what the long way says."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import HASH_SPACE, HashRange
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle
from kshare.group.protocol.commit_log.log import GroupLog
from tests.group.protocol import (
    grouped_explorer,
    lease_explorer,
    test_grouped_transactions,
    test_membership_explorer,
    test_transactions,
)
from tests.group.protocol.grouped_world import grouped_of, grouped_steps, may_pass, take_grouped
from tests.group.protocol.lease_world import History, lease_steps, take_lease
from tests.group.protocol.member_explorer import first_group
from tests.group.protocol.member_process import member_of
from tests.group.protocol.member_world import group_steps, has_action, take_group
from tests.group.protocol.owning import shallow
from tests.group.protocol.process import T0, Log, replay
from tests.group.protocol.transactional_explorer import first_world
from tests.group.protocol.transactional_member import action_of
from tests.group.protocol.transactional_world import TransactionalWorld, steps, take
from tests.group.protocol.world import is_pending

STEPS = 120


def read_again(log: Log) -> GroupLog:
    said = GroupLog("g")
    replay(log, said)
    return said


def same(one: GroupLog, other: GroupLog) -> bool:
    return one.of(T0) == other.of(T0) and (one.end, one.epochs) == (other.end, other.epochs)


@st.composite
def rectangles(draw: st.DrawFn) -> Rectangle:
    start, lo = draw(st.integers(0, 8)), draw(st.integers(0, 7))
    offsets = OffsetRange(start, start + draw(st.integers(1, 4)))
    return Rectangle(offsets, HashRange(lo << 60, (lo + draw(st.integers(1, 8 - lo))) << 60))


@given(st.integers(0, 6), st.lists(rectangles(), max_size=5))
def test_what_is_pending_of_one_record(stable: int, done: list[Rectangle]) -> None:
    progress = Progress.of(stable, done)
    for offset in range(14):
        for hash_ in range(0, HASH_SPACE, 1 << 60):
            pieces = progress.pending(offset + 1, HashRange.of(hash_))
            in_pieces = any(offset in piece.offsets for piece in pieces)
            assert is_pending(progress, offset, hash_) == in_pieces


def test_a_log_that_is_read_on_says_what_one_read_again_says() -> None:
    limits = replace(test_membership_explorer.LIMITS, lost_logs=1)
    for seed in range(6):
        world, draw = first_group(3), random.Random(seed)
        for _ in range(STEPS):
            if possible := group_steps(world, limits):
                take_group(world, draw.choice(possible))
                assert same(world.log.said(), read_again(world.log))
                world = world.clone()


def test_a_member_that_has_an_action_says_one() -> None:
    for seed in range(6):
        world, draw = first_group(3), random.Random(seed)
        for _ in range(STEPS):
            for process in world.processes.values():
                membership = replace(member_of(process).membership)
                assert has_action(membership) == (membership.action() is not None)
            if possible := group_steps(world, test_membership_explorer.LIMITS):
                take_group(world, draw.choice(possible))


def test_leases_before_and_after_compaction_are_read_on() -> None:
    for seed in range(6):
        world, draw = lease_explorer.new_world(by_epochs=seed % 2 == 0), random.Random(seed)
        for _ in range(STEPS):
            if possible := lease_steps(world, lease_explorer.DEEP):
                take_lease(world, draw.choice(possible))
            log = world.log
            assert isinstance(log, History)
            assert same(log.said(), read_again(log))
            assert same(log.all_said(), read_again(Log(list(log.all_records), log.end)))
            world = world.clone()


def read_all(world: TransactionalWorld) -> GroupLog:
    """What is said by all transactions that are decided, read from the beginning."""
    said = GroupLog("g")
    open_ = {each.number for each in world.transactions.open.values()}
    for at, key, record, number in world.log.records:
        if number not in open_ and number not in world.log.aborted:
            said.apply(at, key, record)
    return said


def test_transactions_that_are_read_on() -> None:
    for seed in range(12):
        world, draw = first_world(shares_ids=seed % 3 == 0), random.Random(seed)
        for _ in range(STEPS):
            if possible := steps(world, test_transactions.LIMITS):
                take(world, draw.choice(possible))
            assert world.log.said(world.transactions).of(T0) == read_all(world).of(T0)
            world = world.clone()


def test_members_with_transactions_are_not_looked_at_twice() -> None:
    for seed in range(6):
        world, draw = grouped_explorer.first_grouped(2 + seed % 2), random.Random(seed)
        for _ in range(STEPS):
            if possible := grouped_steps(world, test_grouped_transactions.LIMITS):
                take_grouped(world, draw.choice(possible))
            assert world.log.said(world.transactions).of(T0) == read_all(world).of(T0)
            for each in world.members.values():
                member = grouped_of(each)
                fresh = replace(member, left=None, _purgatory=None)
                assert may_pass(world, member) == may_pass(world, fresh)
                assert action_of(member) == action_of(fresh)
            world = world.clone()


def test_copies_have_all_that_is_copied_and_what_goes_on_alike_has_one_mark() -> None:
    for seed in range(6):
        world, draw = first_group(3), random.Random(seed)
        for _ in range(STEPS):
            if possible := group_steps(world, test_membership_explorer.LIMITS):
                take_group(world, draw.choice(possible))
            for each in world.processes.values():
                copy, member = shallow(each.ownerships), member_of(each)
                assert vars(copy) == vars(each.ownerships)
                assert shallow(member.membership) == member.membership
                fresh = replace(member, mark=None, read_mark=None)
                assert fresh.fingerprint() == member.fingerprint()
            fresh_log = Log(world.log.records, world.log.end, world.log.topic_id)
            assert fresh_log.mark() == world.log.mark()
            world = world.clone()
