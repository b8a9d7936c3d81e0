"""The right to deliver: what may have been missed while the log was not read."""

import pytest

from kshare.group.core.right import Right

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
