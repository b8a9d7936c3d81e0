"""How long waits look in a log."""

import logging

import pytest

from kshare.core.waits import Wait
from kshare.kafka.protocol.wait_log import WaitLog

LOG = logging.getLogger("kshare.waits")


def test_the_lines_of_a_wait(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = [0.0]
    waits = WaitLog(LOG, "group g", clock=lambda: now[0], wall_clock=lambda: 3_631.0 + now[0])
    late = Wait("its claim is not in the log", "it is read back", "t-0", "broker 1 is silent")
    for _ in range(4):
        waits.look({0: late, 1: Wait(late.state, late.until, "t-1")})
        now[0] += 20.0
    waits.over()
    long, over = [(each.levelname, each.getMessage()) for each in caplog.records]
    what = "its claim is not in the log (broker 1 is silent); until it is read back"
    said = f"group g: t-0, t-1: waits for 40 s, since 01:00:31 UTC: {what}"
    assert long == ("WARNING", said)
    assert over == ("INFO", "group g: t-0, t-1: over after 80 s: its claim is not in the log")


def test_one_who_waits_for_one_thing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    waits = WaitLog(LOG, clock=lambda: 0.0, wall_clock=lambda: 0.0)
    waits.wait(Wait("nothing is read", "there is room"), lasts=29.0)
    assert not caplog.records
    assert waits.is_waiting
    waits.wait(Wait("nothing is read", "there is room"), lasts=30.0)
    assert caplog.messages == [
        "waits for 0 s, since 00:00:00 UTC: nothing is read; until there is room"
    ]
