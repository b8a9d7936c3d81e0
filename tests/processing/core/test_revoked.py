"""Records that others get while a handler has them, or while those before them wait."""

import pytest

from kshare.dead_letters.record import Record, Status
from kshare.processing.core.effects import Remember
from kshare.processing.core.scheduler import Scheduler
from kshare.processing.core.settings import OnFailure, RetryPlan, Settings
from tests.processing.core.simulation import record_of

RETRY = RetryPlan(3, 0.2, 5.0, 0.0)
ERROR = OSError("no")


def is_of(record: Record) -> bool:
    return record.raw_key == b"0"


def of_partition(*keys: int) -> list[Record]:
    """Records of one lane, with these keys."""
    records = [record_of(at, key) for at, key in enumerate(keys)]
    for record in records:
        record.lane = b"partition"
    return records


def test_a_record_that_fails_when_others_have_it_is_not_tried_again() -> None:
    scheduler = Scheduler(Settings(retry=RETRY))
    scheduler.add([record_of(0, 0), record_of(1, 0)], 0.0)
    call = scheduler.next_call(0.0)
    assert call is not None
    scheduler.revoke(is_of)
    assert scheduler.is_running(is_of)
    scheduler.failed(call, ERROR, 0.1)
    assert not scheduler.is_running(is_of)
    scheduler.tick(100.0)
    assert scheduler.next_call(100.0) is None
    assert [each.status for each in scheduler.outcomes] == [Status.LEFT_OVER]
    assert scheduler.figures().records == 0


@pytest.mark.parametrize("after", [None, 7.0])
def test_whoever_gets_a_record_in_order_is_told_of_the_attempt_that_fails_meanwhile(
    after: float | None,
) -> None:
    """Of one that is lost, others may know more by now: nothing is said of it."""
    for in_order in (True, False):
        scheduler = Scheduler(Settings(retry=RETRY))
        scheduler.add([record_of(0, 0)], 0.0)
        call = scheduler.next_call(0.0)
        assert call is not None
        scheduler.revoke(is_of, in_order=in_order)
        scheduler.failed(call, ERROR, 0.1, after=after)
        record = call.records[0]
        told = [effect.record for effect in scheduler.effects if isinstance(effect, Remember)]
        assert told == ([record] if in_order else [])
        assert record.failures == (0 if after else 1)
        assert record.due == 0.1 + (after or 0.2)
        assert [each.status for each in scheduler.outcomes] == [Status.LEFT_OVER]


def test_what_was_given_up_in_order_and_is_lost_then_is_not_told_of() -> None:
    scheduler = Scheduler(Settings(retry=RETRY))
    scheduler.add([record_of(0, 0)], 0.0)
    call = scheduler.next_call(0.0)
    assert call is not None
    scheduler.revoke(is_of, in_order=True)
    scheduler.revoke(is_of)
    scheduler.failed(call, ERROR, 0.1)
    assert not scheduler.effects


@pytest.mark.parametrize("then", ["kept record", "other key"])
def test_what_comes_or_is_revoked_later_lets_no_record_of_others_be_tried_again(then: str) -> None:
    scheduler = Scheduler(Settings(retry=RETRY))
    gone, kept, other = of_partition(0, 1, 2)
    scheduler.add([gone] if then == "kept record" else [gone, kept, other], 0.0)
    call = scheduler.next_call(0.0)
    assert call is not None
    scheduler.revoke(is_of)
    if then == "kept record":
        scheduler.add([kept], 0.0)
    else:
        scheduler.revoke(lambda record: record is other)
    scheduler.failed(call, ERROR, 0.1)
    assert not scheduler.is_running(is_of)
    scheduler.tick(100.0)
    call = scheduler.next_call(100.0)
    assert call is not None
    assert call.records == [kept]
    assert [each.record for each in scheduler.outcomes] == [gone]


@pytest.mark.parametrize("succeeds", [False, True])
def test_a_key_that_comes_back_while_a_handler_has_its_record_goes_on_with_what_came(
    *, succeeds: bool
) -> None:
    """Others may have had the record meanwhile: it has come again, as another one."""
    scheduler = Scheduler(Settings(retry=RETRY))
    scheduler.add([record_of(0, 0)], 0.0)
    call = scheduler.next_call(0.0)
    assert call is not None
    scheduler.revoke(is_of)
    again = [record_of(0, 0), record_of(1, 0)]
    scheduler.add(again, 0.1)
    if succeeds:
        scheduler.done(call, 0.2)
    else:
        scheduler.failed(call, ERROR, 0.2)
    for record in again:
        call = scheduler.next_call(0.2)
        assert call is not None
        assert call.records == [record]
        scheduler.done(call, 0.2)
    assert scheduler.is_idle
    assert scheduler.figures().records == 0


def test_a_key_that_comes_back_while_it_is_parked_here_is_parked_from_what_came_on() -> None:
    settings = Settings(
        retry=RetryPlan(1, 0.2, 5.0, 0.0), on_failure=OnFailure.PARK, gives_back=True
    )
    scheduler = Scheduler(settings)
    scheduler.add([record_of(0, 0)], 0.0)
    call = scheduler.next_call(0.0)
    assert call is not None
    scheduler.failed(call, ERROR, 0.1)
    (parks,) = scheduler.effects
    scheduler.revoke(is_of)
    scheduler.add([record_of(1, 0)], 0.2)
    scheduler.parked(parks.lane)  # type: ignore[union-attr]
    (first,) = scheduler.parked_lanes.values()
    assert (first.offset, first.raw_value) == (1, None)  # it keeps no values
    assert scheduler.figures().records == 0


def test_a_dead_letter_that_is_refused_when_others_have_the_record_is_theirs_to_write() -> None:
    settings = Settings(retry=RetryPlan(1, 0.2, 5.0, 0.0), on_failure=OnFailure.DEAD_LETTER)
    scheduler = Scheduler(settings)
    scheduler.add([record_of(0, 0)], 0.0)
    call = scheduler.next_call(0.0)
    assert call is not None
    scheduler.failed(call, ERROR, 0.1)
    (letter,) = scheduler.effects
    scheduler.effects.clear()
    scheduler.revoke(is_of)
    assert scheduler.is_running(is_of)
    scheduler.ending_failed(letter.lane, 0.2)  # type: ignore[union-attr]
    assert not scheduler.is_running(is_of)
    scheduler.tick(100.0)
    assert scheduler.effects == []
    assert scheduler.is_idle


def test_a_record_whose_time_has_not_come_waits_for_it_when_those_before_it_are_others() -> None:
    scheduler = Scheduler(Settings(retry=RETRY))
    first, second = of_partition(0, 1)
    second.due = 50.0
    scheduler.add([first, second], 0.0)
    scheduler.revoke(is_of)
    assert scheduler.next_call(1.0) is None
    assert scheduler.next_tick() == 50.0
    scheduler.tick(50.0)
    call = scheduler.next_call(50.0)
    assert call is not None
    assert call.records == [second]


@pytest.mark.parametrize("keys", [(0, 0, 0), (0, 0, 1), (0, 1, 0)])
def test_what_is_behind_a_dead_letter_in_its_batch_is_others_once_they_have_it(
    keys: tuple[int, ...],
) -> None:
    settings = Settings(batch_size=3, retry=RETRY, on_failure=OnFailure.DEAD_LETTER)
    scheduler = Scheduler(settings)
    scheduler.add(of_partition(*keys), 0.0)
    call = scheduler.next_call(0.0)
    assert call is not None
    scheduler.revoke(is_of)
    done = Status.DONE, None, None
    failed = Status.FAILED, None, ERROR
    scheduler.partly_done(call, [failed, done, done], 0.1, is_final=lambda _: True)
    (letter,) = scheduler.effects
    assert scheduler.is_running(is_of)
    scheduler.letter_written(letter.lane, 0.2)  # type: ignore[union-attr]
    assert not scheduler.is_running(is_of)
    stays = [at for at, key in enumerate(keys) if key == 1]
    call = scheduler.next_call(0.2)
    assert [record.offset for record in call.records] == stays if call else not stays
    if call is not None:
        scheduler.done(call, 0.3)
    assert scheduler.is_idle
    assert scheduler.figures().records == 0
    left = [each.record.offset for each in scheduler.outcomes if each.status is Status.LEFT_OVER]
    assert left == [at for at, key in enumerate(keys) if key == 0][1:]


@pytest.mark.parametrize("state", ["ready", "running", "waiting"])
@pytest.mark.parametrize("keys", [(0, 1, 0, 1), (1, 0, 1, 0)])
def test_of_a_lane_with_many_keys_those_that_stay_are_handled_and_the_others_are_not(
    state: str, keys: tuple[int, ...]
) -> None:
    scheduler = Scheduler(Settings(retry=RETRY))
    scheduler.add(of_partition(*keys), 0.0)
    call = scheduler.next_call(0.0) if state != "ready" else None
    if state == "waiting":
        assert call is not None
        scheduler.failed(call, ERROR, 0.0)
    scheduler.revoke(is_of)
    assert scheduler.is_running(is_of) == (state == "running" and keys[0] == 0)
    if state == "running":
        assert call is not None
        scheduler.failed(call, ERROR, 0.0)
    handled = []
    for now in range(1, 20):
        scheduler.tick(float(now))
        while call := scheduler.next_call(float(now)):
            handled.append(call.records[0].offset)
            scheduler.done(call, float(now))
    assert handled == [at for at, key in enumerate(keys) if key == 1]
    assert scheduler.is_idle
    assert scheduler.figures().records == 0


def test_only_keys_are_followed_into_the_dead_letter_topic() -> None:
    settings = Settings(
        retry=RetryPlan(1, 0.2, 5.0, 0.0), on_failure=OnFailure.DEAD_LETTER, sequence=True
    )
    scheduler = Scheduler(settings)
    record = record_of(0, 0)
    record.raw_key = None
    scheduler.add([record], 0.0)
    call = scheduler.next_call(0.0)
    assert call is not None
    scheduler.failed(call, ERROR, 0.1)
    (letter,) = scheduler.effects
    assert not letter.begins_sequence  # type: ignore[union-attr]
    scheduler.letter_written(letter.lane, 0.2)  # type: ignore[union-attr]
    assert scheduler.sequences.marks == {}
