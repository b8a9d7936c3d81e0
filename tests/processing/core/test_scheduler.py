"""The scheduler's laws, in simulated time."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.dead_letters.record import EarlierFailure, Mark, Outcome, Record, Status
from kshare.processing.core.effects import Abandon, Cancel, WriteLetter
from kshare.processing.core.lane import Lane, Phase
from kshare.processing.core.scheduler import Scheduler
from kshare.processing.core.settings import OnFailure, RetryPlan, Settings
from tests.processing.core.simulation import Attempt, Simulation, record_of

TIMES = st.sampled_from([0.0, 0.001, 0.01, 0.5, 3.0])
ATTEMPTS = st.one_of(
    st.builds(Attempt, TIMES),
    st.builds(Attempt, TIMES, st.booleans(), st.booleans()),
    st.builds(Attempt, TIMES, st.just(True), st.just(False), st.sampled_from([0.0, 1.0, 60.0])),
)
SETTINGS = st.builds(
    Settings,
    concurrency=st.integers(1, 5),
    records_max=st.integers(1, 12),
    bytes_max=st.integers(1, 40),
    timeout_seconds=st.sampled_from([None, 1.0]),
    cancel_seconds=st.sampled_from([0.0, 0.5]),
    retry=st.builds(RetryPlan, st.integers(1, 4), st.just(0.2), st.just(5.0), st.just(0.2)),
    on_failure=st.sampled_from(list(OnFailure)),
    sequence=st.booleans(),
    batch_size=st.sampled_from([1, 1, 3]),
    mixes_keys=st.booleans(),
    gives_back=st.booleans(),
)
RECORDS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 20), st.sampled_from([0.0, 0.0, 7.0])), max_size=40
).map(
    lambda each: [
        record_of(at, key, size=size, due=due) for at, (key, size, due) in enumerate(each)
    ]
)


def script(choices: dict[tuple[int, int], Attempt]) -> "Script":
    return Script(choices)


class Script:
    def __init__(self, choices: dict[tuple[int, int], Attempt]) -> None:
        self.choices = choices
        self.calls = defaultdict[int, int](int)

    def __call__(self, record: Record) -> Attempt:
        self.calls[record.offset] += 1
        return self.choices.get((record.offset, self.calls[record.offset]), Attempt(0.01))


SCRIPTS = st.dictionaries(st.tuples(st.integers(0, 39), st.integers(1, 4)), ATTEMPTS).map(script)


def finals(outcomes: list[Outcome]) -> list[int]:
    return [each.record.offset for each in outcomes if each.status.is_final]


@given(SETTINGS, RECORDS, SCRIPTS)
def test_outcomes_come_once_and_in_the_order_of_each_key(
    settings: Settings, records: list[Record], handler: Script
) -> None:
    run = Simulation(settings, handler)
    run.run(records)
    by_lane = defaultdict(list)
    for each in run.outcomes:
        by_lane[each.record.lane].append(each.record.offset)
    for offsets in by_lane.values():
        assert offsets == sorted(set(offsets))
    if run.halted is None:
        parked = {record.offset for each in run.back.values() for record in each}
        assert parked <= {r.offset for r in records if r.lane in run.scheduler.parked_lanes}
        known = {offset for each in by_lane.values() for offset in each}
        assert known | parked == set(range(len(records)))
        assert run.scheduler.is_idle
        assert run.scheduler.room == settings.records_max
        assert not run.remembered


@given(SETTINGS, RECORDS, SCRIPTS)
def test_no_more_is_held_and_no_more_calls_run_than_the_bounds_say(
    settings: Settings, records: list[Record], handler: Script
) -> None:
    run = Simulation(settings, handler)
    run.run(records)
    records_peak, size_peak, calls_peak = run.peak
    assert records_peak <= settings.records_max
    assert size_peak <= max([settings.bytes_max, *(record.size for record in records)])
    assert calls_peak <= settings.concurrency


@given(st.integers(8, 40), st.integers(1, 200), st.booleans())
def test_a_key_that_waits_leaves_room_for_all_others(
    records_max: int, records: int, is_large: bool
) -> None:
    """It is given back as far as that, and comes again in order."""
    settings = Settings(
        records_max=1000 if is_large else records_max,
        bytes_max=records_max if is_large else 1000,
        retry=RetryPlan(2, 100.0, 100.0, 0.0),
        gives_back=True,
    )
    fails = {(0, 1): Attempt(0.01, fails=True)}
    run = Simulation(settings, script(fails))
    hot = [record_of(at, 0) for at in range(records)]
    others = [record_of(records + at, 1 + at) for at in range(20)]
    run.run([*hot, *others], until=50.0)
    done = {each.record.offset for each in run.outcomes}
    assert done == {each.offset for each in others}
    assert run.scheduler.room >= records_max * 3 // 4
    run.run([])
    assert run.of_key(0, Status.DONE) == list(range(records))
    assert not run.back
    assert run.scheduler.room == settings.records_max


@given(st.integers(8, 40), st.integers(1, 200))
def test_what_was_given_back_of_a_key_that_comes_again_does_too(
    records_max: int, records: int
) -> None:
    settings = Settings(
        records_max=records_max, retry=RetryPlan(2, 100.0, 100.0, 0.0), gives_back=True
    )
    run = Simulation(settings, script({(0, 1): Attempt(0.01, fails=True)}))
    hot = [record_of(at, 0) for at in range(records)]
    run.run(hot, until=50.0)
    held = [record_of(each.offset, 0) for each in hot if each not in run.back.get(each.lane, [])]
    run.scheduler.revoke(lambda record: record.lane == hot[0].lane, comes_again=True)
    assert run.scheduler.is_idle
    run.run(held)
    assert run.of_key(0, Status.DONE) == list(range(records))
    assert not run.back


@given(SETTINGS, RECORDS, SCRIPTS)
def test_a_record_starts_when_those_before_it_have_their_outcomes(
    settings: Settings, records: list[Record], handler: Script
) -> None:
    """So retries overtake nothing, and are not overtaken."""
    finished = dict[int, int]()

    def attempt(record: Record) -> Attempt:
        if settings.batch_size == 1:
            earlier = [r for r in records if r.lane == record.lane and r.offset < record.offset]
            known = {each.record.offset for each in (*run.outcomes, *run.scheduler.outcomes)}
            assert {r.offset for r in earlier} <= known
        finished[record.offset] = record.attempt
        return handler(record)

    run = Simulation(settings, attempt)
    run.run(records)


@given(SETTINGS, RECORDS, SCRIPTS)
def test_a_record_is_tried_no_more_often_than_asked_and_never_after_its_outcome(
    settings: Settings, records: list[Record], handler: Script
) -> None:
    def attempt(record: Record) -> Attempt:
        known = {each.record.offset for each in (*run.outcomes, *run.scheduler.outcomes)}
        assert record.offset not in known
        assert record.attempt <= settings.retry.attempts
        return handler(record)

    run = Simulation(settings, attempt)
    run.run(records)
    for each in run.outcomes:
        if each.status is Status.DEAD_LETTERED and each.attempts:
            assert each.error is not None


@given(st.integers(1, 4), st.integers(2, 30), st.integers(1, 5))
def test_no_lane_starves(concurrency: int, lanes: int, each: int) -> None:
    """A lane has its next turn before any other has two."""
    run = Simulation(Settings(concurrency=concurrency), lambda _: Attempt(0.01))
    run.run([record_of(at, at % lanes) for at in range(lanes * each)])
    turns = [record.offset // lanes for _, record, _ in run.started]
    assert turns == sorted(turns)


def sequence_begun() -> tuple[Scheduler, Lane]:
    """Three records of a key: the first one has failed, and its letter is under way."""
    settings = Settings(
        retry=RetryPlan(1, 0.2, 1.0, 0.0), on_failure=OnFailure.DEAD_LETTER, sequence=True
    )
    scheduler = Scheduler(settings)
    scheduler.add([record_of(at, 0) for at in range(3)], 0.0)
    call = scheduler.next_call(0.0)
    assert call is not None
    scheduler.failed(call, OSError("no"), 0.0)
    return scheduler, call.lanes[0]


def test_a_sequence_that_is_released_amid_its_letters_is_not_begun_by_one_that_follows() -> None:
    """An operator ends it: of a long backlog of its key, the next one is handled."""
    scheduler, lane = sequence_begun()
    scheduler.letter_written(lane, 0.0)
    assert scheduler.sequences.marks == {lane.key: Mark(0)}
    assert scheduler.next_call(0.0) is None  # the second follows
    scheduler.sequences.learn(dict(scheduler.sequences.marks), {})
    scheduler.letter_written(lane, 0.0)
    call = scheduler.next_call(0.0)
    assert call is not None
    assert call.records[0].offset == 2


@given(RECORDS, st.integers(0, 60), st.integers(0, 4))
def test_after_a_restart_what_lies_before_a_mark_is_handled_and_the_rest_follows_it(
    records: list[Record], offset: int, key: int
) -> None:
    """Nothing was committed before the processor was killed: all of it comes again."""
    settings = Settings(on_failure=OnFailure.DEAD_LETTER, sequence=True)
    run = Simulation(settings, script({}))
    lane = str(key).encode()
    reason = EarlierFailure("builtins.OSError", "no")
    run.scheduler.sequences.learn({}, {lane: Mark(offset, reason, failures=3, since=7.0)})
    run.run(records)
    for other in range(5):
        produced = [r.offset for r in records if r.lane == str(other).encode()]
        first = offset if other == key else 1_000
        assert run.of_key(other, Status.DONE) == [at for at in produced if at < first]
        assert run.of_key(other, Status.DEAD_LETTERED) == [at for at in produced if at >= first]
    for outcome in run.outcomes:
        if outcome.status is Status.DEAD_LETTERED:
            is_first = outcome.record.offset == offset
            assert (outcome.error is reason, outcome.attempts) == (is_first, 3 * is_first)
            assert outcome.record.since == (7.0 if is_first else None)


def test_a_record_before_a_mark_that_fails_has_a_mark_of_its_own() -> None:
    scheduler, lane = sequence_begun()
    scheduler.sequences.learn({}, {lane.key: Mark(2)})
    scheduler.letter_written(lane, 0.0)
    assert scheduler.sequences.marks == {lane.key: Mark(0)}


def test_a_mark_that_was_set_amid_a_look_is_kept() -> None:
    scheduler, lane = sequence_begun()
    had = dict(scheduler.sequences.marks)
    scheduler.letter_written(lane, 0.0)
    scheduler.sequences.learn(had, {lane.key: Mark(2)})
    assert scheduler.sequences.marks == {lane.key: Mark(0)}


@given(RECORDS, SCRIPTS, st.integers(0, 3))
def test_with_sequences_what_was_handled_and_then_the_dead_letters_are_what_was_produced(
    records: list[Record], handler: Script, failures: int
) -> None:
    settings = Settings(
        retry=RetryPlan(2, 0.2, 1.0, 0.0), on_failure=OnFailure.DEAD_LETTER, sequence=True
    )
    run = Simulation(settings, handler, lambda record, tries: tries >= failures)
    run.run(records)
    for key in range(5):
        handled = run.of_key(key, Status.DONE)
        dead = run.of_key(key, Status.DEAD_LETTERED)
        produced = [r.offset for r in records if r.lane == str(key).encode()]
        assert handled + dead == produced
        assert [r.offset for r in run.letters if r.lane == str(key).encode()] == dead


def test_a_key_that_waits_for_its_next_attempt_holds_up_nobody_else() -> None:
    fails = {(0, 1): Attempt(0.0, fails=True), (0, 2): Attempt(0.0, fails=True)}
    run = Simulation(Settings(concurrency=1, retry=RetryPlan(3, 10.0, 60.0, 0.0)), script(fails))
    run.run([record_of(0, 0), record_of(1, 0), record_of(2, 1)])
    assert [(at, record.offset, attempt) for at, record, attempt in run.started] == [
        (0.0, 0, 1),
        (0.0, 2, 1),
        (10.0, 0, 2),
        (30.0, 0, 3),
        (30.01, 1, 1),
    ]


def test_a_late_answer_does_not_count() -> None:
    scheduler = Scheduler(Settings(timeout_seconds=1.0, retry=RetryPlan(2, 0.5, 1.0, 0.0)))
    scheduler.add([record_of(0, 0)], 0.0)
    call = scheduler.next_call(0.0)
    assert call is not None
    assert scheduler.next_tick() == 1.0
    scheduler.tick(1.0)
    assert scheduler.effects[0] == Cancel(call)
    assert not scheduler.done(call, 1.2)
    assert scheduler.next_tick() == 1.5
    scheduler.tick(1.5)
    again = scheduler.next_call(1.5)
    assert again is not None
    assert again.records[0].attempt == 2
    assert scheduler.done(again, 1.6)
    assert [each.status for each in scheduler.outcomes] == [Status.DONE]


def test_a_call_that_is_cancelled_keeps_its_lane_and_slot_until_it_ends() -> None:
    settings = Settings(
        concurrency=1, timeout_seconds=1.0, cancel_seconds=5.0, retry=RetryPlan(2, 0.5, 1.0, 0.0)
    )
    scheduler = Scheduler(settings)
    scheduler.add([record_of(0, 0), record_of(1, 1)], 0.0)
    call = scheduler.next_call(0.0)
    assert call is not None
    scheduler.tick(1.0)
    assert scheduler.effects == [Cancel(call)]
    assert scheduler.next_tick() == 6.0
    assert scheduler.next_call(1.1) is None
    assert scheduler.done(call, 3.0)  # it has ended, but too late
    assert not scheduler.outcomes
    assert scheduler.next_tick() == 3.5
    other = scheduler.next_call(3.1)
    assert other is not None
    assert other.records[0].offset == 1
    scheduler.tick(4.1)
    scheduler.tick(9.1)
    assert [each for each in scheduler.effects if isinstance(each, Abandon)] == [Abandon(other)]
    assert not scheduler.done(other, 9.2)


def test_a_batch_that_fails_is_tried_again_record_by_record() -> None:
    handler = {(at, attempt): Attempt(0.0, at == 1) for at in range(3) for attempt in range(1, 5)}
    settings = Settings(
        batch_size=3, retry=RetryPlan(2, 1.0, 1.0, 0.0), on_failure=OnFailure.DEAD_LETTER
    )
    run = Simulation(settings, script(handler))
    run.run([record_of(at, 0) for at in range(3)])
    assert [(r.offset, attempt) for _, r, attempt in run.started] == [
        *[(0, 1), (1, 1), (2, 1)],
        *[(0, 1), (1, 1), (1, 2), (2, 1)],
    ]
    assert run.of_key(0, Status.DEAD_LETTERED) == [1]


def test_results_after_one_that_failed_do_not_count() -> None:
    scheduler = Scheduler(Settings(batch_size=3))
    scheduler.add([record_of(at, 0) for at in range(3)], 0.0)
    call = scheduler.next_call(0.0)
    assert call is not None
    failed = (Status.FAILED, None, ValueError("no"))
    scheduler.partly_done(call, [(Status.DONE, 7, None), failed, (Status.DONE, 9, None)], 0.0)
    assert [(each.record.offset, each.result) for each in scheduler.outcomes] == [(0, 7)]
    assert scheduler.figures().waiting == 1


def test_what_waits_is_left_over_when_it_drains() -> None:
    fails = {(0, 1): Attempt(0.0, fails=True)}
    run = Simulation(Settings(retry=RetryPlan(3, 10.0, 60.0, 0.0)), script(fails))
    run.run([record_of(0, 0), record_of(1, 0), record_of(2, 1)], until=5.0)
    run.scheduler.close(Phase.DRAINING)
    assert run.scheduler.is_idle
    assert run.scheduler.room == 0
    run.scheduler.leave_all()
    left = [each.record.offset for each in run.scheduler.outcomes]
    assert left == [0, 1]
    assert run.scheduler.figures().records == 0


def test_after_the_end_has_begun_no_further_letter_of_a_sequence_is_begun() -> None:
    scheduler, lane = sequence_begun()
    scheduler.close(Phase.CLOSING)
    is_idle = [scheduler.is_idle]  # a letter is under way
    scheduler.effects.clear()
    scheduler.letter_written(lane, 0.0)
    assert [*is_idle, scheduler.is_idle] == [False, True]
    assert not any(isinstance(each, WriteLetter) for each in scheduler.effects)
    scheduler.leave_all()
    assert [(each.record.offset, each.status) for each in scheduler.outcomes] == [
        (0, Status.DEAD_LETTERED),
        (1, Status.LEFT_OVER),
        (2, Status.LEFT_OVER),
    ]


def test_what_follows_a_record_that_ends_all_is_not_under_way() -> None:
    """Whoever is to get its key waits for other keys' handlers only."""
    scheduler = Scheduler(Settings(concurrency=2, retry=RetryPlan(1, 0.2, 1.0, 0.0)))
    scheduler.add([record_of(0, 0), record_of(1, 0), record_of(2, 1)], 0.0)
    first, other = scheduler.next_call(0.0), scheduler.next_call(0.0)
    assert first is not None
    assert other is not None
    scheduler.failed(first, OSError("no"), 0.0)
    assert not scheduler.is_running(lambda record: record.offset < 2)
    is_idle = [scheduler.is_idle]
    assert [(each.record.offset, each.status) for each in scheduler.outcomes] == [
        (0, Status.FAILED),
        (1, Status.LEFT_OVER),
    ]
    assert scheduler.done(other, 0.0)
    assert [*is_idle, scheduler.is_idle] == [False, True]
    assert scheduler.figures().records == 0


@given(SETTINGS, RECORDS, SCRIPTS, st.integers(0, 4), st.floats(0.0, 10.0))
def test_what_is_revoked_is_held_no_longer_than_its_handler_takes(
    settings: Settings, records: list[Record], handler: Script, key: int, when: float
) -> None:
    run = Simulation(settings, handler)
    data = str(key).encode()
    run.run(records, until=when)
    run.scheduler.revoke(lambda record: record.lane == data)
    if not run.scheduler.is_running(lambda record: record.lane == data):
        held = run.scheduler.figures().records
        run.scheduler.revoke(lambda record: record.lane == data)
        assert run.scheduler.figures().records == held
    run.todo = [record for record in run.todo if record.lane != data]
    run.back.pop(data, None)
    run.run([])
    of_key = run.of_key(key)
    assert of_key == sorted(set(of_key))
    others = [each.record.offset for each in run.outcomes if each.record.lane != data]
    if run.halted is None:
        assert sorted(others) == [record.offset for record in records if record.lane != data]
        assert run.scheduler.figures().records == 0


@pytest.mark.parametrize("failures", [1, 2, 3, 60, 4000])
def test_delays_double_up_to_their_maximum(failures: int) -> None:
    plan = RetryPlan(5, 0.2, 30.0, 0.2)
    wanted = min(0.2 * 2.0 ** min(failures - 1, 64), 30.0)
    for offset in range(50):
        assert min(wanted * 0.8, 30.0) - 1e-9 <= plan.delay(failures, offset) <= wanted * 1.2
        assert plan.delay(failures, offset) <= 30.0
    assert len({plan.delay(2, offset) for offset in range(50)}) == 50
