"""``minOffsetsPerTrigger``: a trigger that waits for more to read."""

from kshare.options import parse_options
from kshare.query.planner.batch_bounds import TriggerGate
from tests.support.clock import Clock
from tests.support.planner import T0


def gate(clock: Clock, **given: str) -> TriggerGate:
    base = {"kafka.bootstrap.servers": "nowhere:9092", "subscribe": "t"}
    options = parse_options({**base, **given}, streaming=True).options
    return TriggerGate(options, clock=clock.monotonic)


def test_without_a_minimum_it_is_open() -> None:
    assert not gate(Clock()).is_shut({T0: 5}, {T0: 5})


def test_it_waits_for_enough_but_not_for_ever() -> None:
    clock = Clock(0.0)
    shut = gate(clock, minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    assert not shut.is_shut({T0: 0}, {T0: 5})  # the first trigger does not wait
    clock.now = 59.0
    assert shut.is_shut({T0: 5}, {T0: 14})
    assert not shut.is_shut({T0: 5}, {T0: 15})
    clock.now = 118.0  # since the last that did not wait
    assert shut.is_shut({T0: 15}, {T0: 16})
    clock.now = 119.0
    assert not shut.is_shut({T0: 15}, {T0: 16})
