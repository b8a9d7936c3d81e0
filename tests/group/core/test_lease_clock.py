"""When leases are over of members that live, and what it costs to look at them."""

from kshare.core.progress import TopicPartition
from kshare.group.core.lease_clock import LeaseClock
from tests.support.groups import T0, T1

AUTHOR = "m#1"
THREE = {1: (0, 10), 2: (10, 20), 3: (20, 30)}


def test_a_lease_is_over_once_nothing_more_of_it_is_committed_for_so_long() -> None:
    clock = LeaseClock(60.0)
    assert not clock.is_over(T0, AUTHOR, THREE, 0.0)
    assert clock.next_time() == 60.0
    assert not clock.is_over(T0, AUTHOR, {**THREE, 1: (5, 10), 2: (12, 20)}, 59.0)
    assert clock.next_time() == 119.0
    assert not clock.is_over(T0, AUTHOR, {2: (12, 20), 3: (20, 30)}, 118.0)
    assert clock.is_over(T0, AUTHOR, {2: (12, 20), 3: (20, 30)}, 119.0)
    assert not clock.is_over(T0, "m#2", {2: (12, 20), 3: (20, 30)}, 120.0)


def test_the_last_lease_waits_for_its_turn_unless_it_is_the_only_one() -> None:
    clock = LeaseClock(60.0)
    clock.is_over(T0, AUTHOR, {1: (0, 10), 2: (10, 20)}, 0.0)
    assert not clock.is_over(T0, AUTHOR, {2: (10, 20)}, 70.0)
    assert clock.is_over(T0, AUTHOR, {2: (10, 20)}, 130.0)


def test_partitions_are_apart() -> None:
    clock = LeaseClock(60.0)
    for at, now in ((T0, 0.0), (T1, 10.0)):
        clock.is_over(at, AUTHOR, THREE, now)
    assert clock.next_time() == 60.0
    clock.forget(T0)
    assert clock.next_time() == 70.0
    assert clock.is_over(T1, AUTHOR, THREE, 70.0)
    assert not clock.is_over(T1, AUTHOR, {}, 71.0)
    assert clock.next_time() == float("inf")


class Compared(TopicPartition):
    """A partition that counts how often any is compared with another."""

    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return super().__eq__(other)

    __hash__ = TopicPartition.__hash__


def test_a_look_at_a_partition_costs_nothing_of_others() -> None:
    """All are looked at in each step, with the session's lock held."""
    clock, partitions = LeaseClock(60.0), [Compared("orders", i) for i in range(300)]
    Compared.times = 0
    for now in (0.0, 1.0):
        for partition in partitions:
            assert not clock.is_over(partition, AUTHOR, THREE, now)
    for partition in partitions:
        clock.forget(partition)
    assert Compared.times < 10 * len(partitions)
