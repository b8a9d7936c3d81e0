"""The right to deliver: what may have been missed while the log was not read."""

import pytest

from kshare.group.core.right import Liveness, Right

SECONDS = 3.0


@pytest.mark.parametrize(
    ("read_at", "has_holes", "is_missed"),
    [
        pytest.param(10.0 + SECONDS, True, False, id="who takes over waits for longer"),
        pytest.param(10.1 + SECONDS, True, True, id="others have come and gone"),
        pytest.param(10.1 + SECONDS, False, False, id="all records are there"),
    ],
)
def test_claims_are_missed_if_records_are_and_the_log_was_not_read_for_too_long(
    read_at: float, has_holes: bool, is_missed: bool
) -> None:
    right = Right("a", SECONDS, by_beats=False)
    assert not right.has_missed(5.0, has_holes=True)  # nothing was owned before
    right.log_read(10.0)
    assert right.has_missed(read_at, has_holes=has_holes) is is_missed
    right.log_read(read_at)
    assert not right.has_missed(read_at, has_holes=has_holes)  # it was looked at


def test_without_a_log_the_coordinator_alone_says_whether_it_may_deliver() -> None:
    right = Right("a", 0.0, by_beats=False, keeps_log=False)
    assert right.seconds_to_deliver(0.0) == float("inf")  # `assign`: nobody keeps others away
    liveness = Liveness(session_seconds=10.0, rebalance_seconds=60.0, polled_at=0.0)
    right.joined(liveness, is_static=False)
    assert right.seconds_to_deliver(0.0) < 0  # it has not joined
    liveness.heard(5.0, is_joined=True)
    assert right.seconds_to_deliver(6.0) == 9.0
    assert right.seconds_to_deliver(15.5) < 0  # stopped for longer than the session
    assert not right.reads_late(1e9)
    liveness.heard(20.0, is_joined=True)  # there is no log that could prove more than that
    assert right.seconds_to_deliver(21.0) == 9.0
    liveness.lost()
    assert right.seconds_to_deliver(21.0) < 0
    right.left()
    right.ended()
    assert right.seconds_to_deliver(21.0) < 0
