"""After a lane is parked none of its records is handled, until it is read anew; seeded faults."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, given
from hypothesis import settings as configured
from hypothesis import strategies as st

from kshare.dead_letters.record import Record, Status
from kshare.processing.core.lane import Lane, State
from kshare.processing.core.scheduler import Scheduler
from kshare.processing.core.settings import OnFailure, RetryPlan, Settings
from tests.processing.core.simulation import Attempt, Simulation, record_of

KEYS = 3
SETTINGS = st.builds(
    Settings,
    concurrency=st.integers(1, 3),
    records_max=st.integers(1, 8),
    retry=st.builds(RetryPlan, st.integers(1, 2), st.just(0.2), st.just(5.0), st.just(0.0)),
    on_failure=st.just(OnFailure.PARK),
    batch_size=st.sampled_from([1, 3]),
    mixes_keys=st.booleans(),
)
RECORDS = st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=24)
POISON = st.sets(st.integers(0, 23), min_size=1, max_size=4)


def is_of(key: int) -> Callable[[Record], bool]:
    return lambda record: record.lane == str(key).encode()


CASES = given(SETTINGS, RECORDS, POISON, st.integers(0, 24), st.integers(0, KEYS - 1))


def law(settings: Settings, keys: list[int], poison: set[int], arrived: int, revoked: int) -> None:
    """Some records arrive after the keys were parked: they were on their way from the reader."""
    heals = False

    def attempt(record: Record) -> Attempt:
        return Attempt(0.01, fails=record.offset in poison and not heals)

    run = Simulation(settings, attempt)
    records = [record_of(at, key) for at, key in enumerate(keys)]
    run.run(records[:arrived])
    run.run(records[arrived:])
    stopped = dict[int, int]()
    for key in range(KEYS):
        own = [record.offset for record in records if is_of(key)(record)]
        first = min(poison & set(own), default=len(records))
        assert run.of_key(key, Status.DONE) == [at for at in own if at < first]
        assert run.of_key(key, Status.PARKED) == [at for at in own if at == first]
        assert run.of_key(key, Status.LEFT_OVER) == [at for at in own if at > first]
        stopped[key] = first
    assert run.scheduler.room == settings.records_max
    assert not run.remembered

    heals = True
    run.scheduler.revoke(is_of(revoked))
    pending = [at for at, key in enumerate(keys) if at >= stopped[key]]
    run.outcomes.clear()
    run.run([record_of(at, keys[at]) for at in pending])
    done = [at for at in pending if keys[at] == revoked]
    assert run.of_key(revoked, Status.DONE) == done
    assert len(run.outcomes) == len(pending)
    assert sum(each.status is Status.DONE for each in run.outcomes) == len(done)


test_no_record_of_a_parked_lane_is_handled_until_it_is_read_anew = CASES(law)


def test_a_lane_that_is_revoked_while_it_is_parked_is_handled_when_it_comes_back() -> None:
    fails = True
    settings = Settings(retry=RetryPlan(1, 0.2, 1.0, 0.0), on_failure=OnFailure.PARK)
    run = Simulation(settings, lambda _: Attempt(0.01, fails=fails))
    run.run([record_of(0, 0)], until=0.1)
    run.scheduler.revoke(is_of(0))
    run.run([])
    fails = False
    run.run([record_of(0, 0), record_of(1, 0)])
    assert run.of_key(0, Status.DONE) == [0, 1]


def test_attempts_of_a_record_that_others_got_while_it_is_parked_are_theirs() -> None:
    settings = Settings(retry=RetryPlan(2, 0.2, 1.0, 0.0), on_failure=OnFailure.PARK)
    run = Simulation(settings, lambda _: Attempt(0.01, fails=True))
    run.run([record_of(0, 0)], until=0.5)
    assert run.scheduler.is_running(is_of(0))
    run.scheduler.revoke(is_of(0))
    run.run([])
    assert run.remembered == {0: 1}


UNPARKED = given(SETTINGS, RECORDS, POISON, st.integers(0, KEYS - 1))


def unparking(settings: Settings, keys: list[int], poison: set[int], unparked: int) -> None:
    """A key that is unparked goes on with the record that has failed, and no other does."""
    heals = False
    settings = replace(settings, gives_back=True)
    run = Simulation(settings, lambda r: Attempt(0.01, fails=r.offset in poison and not heals))
    run.run([record_of(at, key) for at, key in enumerate(keys)])
    heals = True
    before = len(run.outcomes)
    run.scheduler.unparked(str(unparked).encode())
    run.run([])
    assert all(is_of(unparked)(each.record) for each in run.outcomes[before:])
    run.run([record_of(len(keys), unparked)])
    own = [at for at, key in enumerate(keys) if key == unparked]
    assert run.of_key(unparked, Status.DONE) == [*own, len(keys)]
    parked = {str(key).encode() for at, key in enumerate(keys) if at in poison}
    assert set(run.scheduler.parked_lanes) == parked - {str(unparked).encode()}


test_an_unparked_key_goes_on_in_order = UNPARKED(unparking)

BY_OPERATORS = given(
    SETTINGS,
    st.sampled_from([OnFailure.STOP, OnFailure.DEAD_LETTER, OnFailure.PARK]),
    RECORDS,
    POISON,
    st.integers(0, KEYS - 1),
    st.floats(0.0, 1.0),
)


def parking(
    settings: Settings,
    on_failure: OnFailure,
    keys: list[int],
    poison: set[int],
    parked: int,
    when: float,
) -> None:
    """After an operator has parked a key, none of its records begins, fails or gets a letter.

    Unparked, it goes on in order.
    """
    settings = replace(settings, gives_back=True, on_failure=on_failure)
    poison = {at for at in poison if at < len(keys) and keys[at] == parked}
    heals = False
    lane = str(parked).encode()
    run = Simulation(settings, lambda r: Attempt(0.3, fails=r.offset in poison and not heals))
    run.run([record_of(at, key) for at, key in enumerate(keys)], until=when)
    held = run.scheduler._held.lanes.get(lane)
    is_ending = held is not None and held.state is State.ENDING
    halted, letters, begun = run.halted, len(run.letters), len(run.started)
    run.scheduler.park([lane])
    later = [record for record in run.todo if record.lane == lane]  # a consumer keeps them, too
    run.todo = [record for record in run.todo if record.lane != lane]
    run.run([])
    assert lane not in [record.lane for _, record, _ in run.started[begun:]]
    assert run.halted is halted
    assert len(run.letters) == letters + (is_ending and on_failure is OnFailure.DEAD_LETTER)
    if halted is not None:
        return
    assert lane not in run.scheduler._held.lanes
    assert not run.remembered
    done = [Status.DONE, Status.DEAD_LETTERED]
    for key in range(KEYS):
        own = [at for at, each in enumerate(keys) if each == key]
        assert key == parked or run.of_key(key, *done) == own
    heals = True
    run.scheduler.park([])
    run.scheduler.unparked(lane)
    run.run(later)
    assert run.of_key(parked, *done) == [at for at, key in enumerate(keys) if key == parked]


test_no_record_of_a_key_that_operators_park_is_begun = BY_OPERATORS(parking)


@pytest.mark.parametrize("fails", [True, False])
def test_a_key_that_is_unparked_while_its_call_is_under_way_was_never_parked(fails: bool) -> None:
    settings = Settings(retry=RetryPlan(2, 0.2, 1.0, 0.0), gives_back=True)
    run = Simulation(settings, lambda r: Attempt(1.0, fails=fails and r.attempt == 1))
    run.run([record_of(0, 0), record_of(1, 0)], until=0.5)
    run.scheduler.park([b"0"])
    run.scheduler.park([])
    run.run([])
    assert run.of_key(0) == [0, 1]
    assert not run.scheduler.parked_lanes


def test_without_giving_back_an_operator_parks_nothing_that_is_held() -> None:
    run = Simulation(Settings(), lambda _: Attempt(1.0))
    run.scheduler.add([record_of(0, 0)], 0.0)
    run.scheduler.park([b"0"])
    run.run([])
    assert run.of_key(0, Status.DONE) == [0]


def test_a_letter_that_fails_while_its_key_is_parked_is_not_tried_again() -> None:
    settings = Settings(
        retry=RetryPlan(1, 0.2, 1.0, 0.0), on_failure=OnFailure.DEAD_LETTER, gives_back=True
    )
    run = Simulation(settings, lambda _: Attempt(0.1, fails=True), writes=lambda *_: False)
    run.run([record_of(0, 0)], until=0.2)
    run.scheduler.park([b"0"])
    run.run([])
    assert run.of_key(0, Status.PARKED) == [0]
    assert list(run.scheduler.parked_lanes) == [b"0"]


_parked, _revoke = Scheduler.parked, Scheduler.revoke


def _forgets(scheduler: Scheduler, lane: Lane) -> list[Record]:
    left = _parked(scheduler, lane)
    scheduler._absent.parked.clear()
    return left


def _releases_all(scheduler: Scheduler, is_gone: Callable[[Record], bool]) -> None:
    _revoke(scheduler, is_gone)
    scheduler._absent.parked.clear()


def _releases_none(scheduler: Scheduler, is_gone: Callable[[Record], bool]) -> None:
    parked = dict(scheduler._absent.parked)
    _revoke(scheduler, is_gone)
    scheduler._absent.parked.update(parked)


@pytest.mark.parametrize(
    ("method", "fault"),
    [("parked", _forgets), ("revoke", _releases_all), ("revoke", _releases_none)],
)
def test_seeded_faults_are_found(
    method: str, fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scheduler, method, fault)
    once = configured(phases=[Phase.generate], report_multiple_bugs=False, database=None)
    with pytest.raises(AssertionError):
        once(CASES(law))()
