"""Where consumption starts: every pair of a primary offset and a log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle
from kshare.group.log.primary import committed_offset
from kshare.group.protocol.commit_log.log import PartitionLog
from kshare.group.protocol.commit_log.records import Stable
from kshare.group.protocol.commit_log.start import (
    Anchor,
    Primary,
    Reason,
    Start,
    needs_initial_offset,
    resolve_start,
)
from tests.group.protocol.process import T0

HALF = HashRange(0, HASH_SPACE // 2)
IC = {("m", HALF, 0): (40, 45, 48, 50)}
FACTS = Progress.of(
    40, [Rectangle(OffsetRange(40, 45), HALF), Rectangle(OffsetRange(48, 50), HALF)]
)


def log(incarnation: int = 1, start: int | None = 30, *, facts: bool = True) -> PartitionLog:
    stable = Stable(T0, incarnation, 40) if facts else None
    return PartitionLog(incarnation, start, stable, dict(IC) if facts else {})


def primary(offset: int, incarnation: int | None = 1, position: int = 5) -> Primary:
    if incarnation is None:
        return Primary(offset)
    return Primary(offset, Anchor(incarnation, position, "topic"))


def resolved(
    found: Primary | None, said: PartitionLog, *, end: int = 9, topic_id: str = "topic"
) -> Start:
    initial = 77 if needs_initial_offset(found, said) else None
    return resolve_start(found, said, log_end=end, topic_id=topic_id, initial=initial)


def test_a_new_group_begins_where_auto_offset_reset_says() -> None:
    start = resolved(None, PartitionLog())
    assert start == Start(Reason.NEW, 1, Progress.at(77), begins=True, unanchored=True)


def test_the_first_reset_of_an_incarnation_says_where_all_begin() -> None:
    start = resolved(None, log(1, 30, facts=False))
    assert start == Start(Reason.NEW, 1, Progress.at(30), unanchored=True)


def test_a_group_goes_on_with_its_gaps() -> None:
    assert resolved(primary(40), log()) == Start(Reason.CONTINUED, 1, FACTS)


def test_the_log_may_be_ahead_of_the_primary() -> None:
    start = Start(Reason.CONTINUED, 1, FACTS, lags=True)
    assert resolved(primary(35), log()) == start


def test_the_primary_may_be_ahead_of_the_log() -> None:
    assert resolved(primary(45), log()).progress == Progress.of(
        45, [Rectangle(OffsetRange(48, 50), HALF)]
    )


@pytest.mark.parametrize("offset", [0, 35, 40, 90])
def test_kafkas_own_tool_voids_individual_commits(offset: int) -> None:
    start = resolved(primary(offset, None), log())
    assert start == Start(Reason.RESET, 2, Progress.at(offset), begins=True, unanchored=True)
    assert start.reason.voids


def test_the_offset_of_a_plain_consumer_is_adopted() -> None:
    start = resolved(primary(35, None), PartitionLog())
    assert start == Start(Reason.ADOPTED, 1, Progress.at(35), begins=True, unanchored=True)
    assert not start.reason.voids
    again = resolved(primary(35, None), log(1, 35, facts=False))
    assert again == Start(Reason.ADOPTED, 1, Progress.at(35), unanchored=True)


def test_an_expired_offset_voids_individual_commits() -> None:
    start = resolved(None, log())
    assert start == Start(Reason.EXPIRED, 2, Progress.at(77), begins=True, unanchored=True)


def test_an_operators_reset_is_completed() -> None:
    start = resolved(primary(40, 1), log(2, 10, facts=False))
    assert start == Start(Reason.RESET, 2, Progress.at(10), unanchored=True)


@pytest.mark.parametrize("offset", [0, 10, 40, 90])
def test_what_was_committed_after_a_reset_counts_whoever_sets_the_primary_back(offset: int) -> None:
    """Who has not read of the reset writes its offset with the former anchor."""
    found = primary(offset, 1)
    assert resolved(found, log(2, 10)) == Start(Reason.RESET, 2, FACTS, unanchored=True)
    listed = committed_offset(found, log(2, 10), (0, 9), "topic")
    assert listed is not None
    assert listed.progress == FACTS


@pytest.mark.parametrize(("end", "topic_id"), [(3, "topic"), (9, "another")])
def test_a_lost_log_is_told_and_what_is_left_counts(end: int, topic_id: str) -> None:
    start = resolved(primary(40), log(), end=end, topic_id=topic_id)
    assert start == Start(Reason.LOST_LOG, 1, FACTS, unanchored=True)


def test_a_log_that_lost_the_incarnation() -> None:
    start = resolved(primary(40, 3), log(1))
    assert start == Start(Reason.LOST_LOG, 3, Progress.at(40), begins=True)
    again = resolved(primary(40, 3, position=5), log(3, 40, facts=False), end=3)
    assert again == Start(Reason.LOST_LOG, 3, Progress.at(40), unanchored=True)


@given(st.builds(Anchor, st.integers(0, 2**62), st.integers(0, 2**62), st.text(max_size=30)))
def test_anchors_there_and_back(anchor: Anchor) -> None:
    assert Anchor.decode(anchor.encode()) == anchor
    assert len(anchor.encode()) < 4_096


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "",
        "by hand",
        "[]",
        "{}",
        '{"kshare":2}',
        '{"kshare":1}',
        "[" * 100_000,
        '{"kshare":1,"incarnation":"1","position":2,"topic_id":""}',
    ],
)
def test_other_metadata_are_no_anchor(metadata: str | None) -> None:
    assert Anchor.decode(metadata) is None


def test_the_whole_hash_space_is_one_range() -> None:
    whole = PartitionLog(1, 0, None, {("m", WHOLE, 0): (0, 12)})
    assert resolved(primary(0), whole).progress == Progress.at(12)
