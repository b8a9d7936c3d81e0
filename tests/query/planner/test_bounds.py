"""Parked keys, bounds and assigned ranges, where every range goes its own way in a batch."""

import random

import pytest

from kshare.core.checkpoint import decode
from kshare.core.hashing import ALL_HASHES, HASH_SPACE, WHOLE, KeyRanges, key_hash, split
from tests.support.planner import KEYS, T0, Log, Query, grown

# -- parked keys ----------------------------------------------------------------------------------


def test_a_parked_key_waits_and_the_others_do_not() -> None:
    log = grown(300)
    query = Query(log, keyRanges="2")
    query.parking.keys = {("t", KEYS[3]), ("another", KEYS[4])}
    query.drain()
    done = {log.keys[T0][offset] for _, offset in query.delivered}
    assert done == set(KEYS) - {KEYS[3]}
    assert query.at["t"] == {"0": 0}  # held by the hash that waits
    query.parking.keys = set()
    query.drain()
    query.check_all()


def test_a_key_is_parked_by_an_option_and_unparked_by_a_restart() -> None:
    log = grown(300)
    query = Query(log, parkedKeys='["key-3", {"hex": "6b65792d35"}]')
    query.drain()
    done = {log.keys[T0][offset] for _, offset in query.delivered}
    assert done == set(KEYS) - {KEYS[3], KEYS[5]}
    log.grow(KEYS)
    query.restart(parkedKeys='["key-5"]')
    query.drain()
    done = {log.keys[T0][offset] for _, offset in query.delivered}
    assert done == set(KEYS) - {KEYS[5]}
    query.restart(parkedKeys="[]")
    query.drain()
    query.check_all()


def test_the_bounds_do_not_count_a_parked_key() -> None:
    """Or it would stop all others in the end."""
    log = grown(600)
    query = Query(log, keyRanges="3", maxOffsetsAhead="40", maxRangesInCheckpoint="3")
    query.parking.keys = {("t", KEYS[3])}
    query.drain()
    assert len(query.delivered) == sum(key != KEYS[3] for key in log.keys[T0])
    query.parking.keys = set()
    query.drain()
    query.check_all()


# -- bounds ---------------------------------------------------------------------------------------


def test_no_range_is_further_ahead_than_it_may_be() -> None:
    log = Log()
    log.grow([KEYS[0]] * 200 + KEYS[1:] * 20)  # one key has the first 200 records
    query = Query(log, keyRanges="4", maxRecordsPerTask="10", maxOffsetsAhead="50")
    while query.trigger():
        reached = decode(query.at)
        slowest = min(reached.progress[T0].position(part) for part in split(WHOLE, 4))
        ends = [limit.end for limit in reached.limits.get(T0, ())]
        assert max(ends, default=0) <= max(slowest + 50, reached.progress[T0].front)
    query.check_all()


def test_with_too_many_gaps_those_that_lag_go_first() -> None:
    query = Query(Log(), keyRanges="6", maxRecordsPerTask="3", maxRangesInCheckpoint="4")
    chance, held = random.Random(1), 0
    for _ in range(30):
        query.log.grow(chance.choices(KEYS, weights=[5] + [1] * 11, k=40))
        parked = {key for key in KEYS if chance.random() < 0.2}
        query.parking.keys = {("t", key) for key in parked}
        query.trigger()
        begin = decode(query.at)
        reached = begin.progress[T0]
        readable = ALL_HASHES - KeyRanges.of_hashes(key_hash(key, 0) for key in parked)
        if reached.gaps >= 4 and reached.pending_of(reached.front, readable):
            held += 1
            assert max(limit.end for limit in begin.limits[T0]) <= reached.front
    assert held > 5
    query.parking.keys = set()
    query.drain()
    query.check_all()


def test_offsets_per_trigger_count_from_the_front() -> None:
    log = grown(400)
    query = Query(log, keyRanges="2", maxRecordsPerTask="10")
    query.trigger(30)
    limits = decode(query.at).limits[T0]
    assert {limit.end for limit in limits} == {30}
    query.drain()
    query.check_all()


# -- assigned ranges ------------------------------------------------------------------------------


def test_assigned_ranges_alone_hold_the_stable_offset() -> None:
    log = Log()
    log.grow(KEYS * 20)
    options = {
        "kafka.bootstrap.servers": "nowhere:9092",
        "assign": f'{{"t": {{"0": [[0, {HASH_SPACE // 2}]]}}}}',
        "startingOffsets": "earliest",
        "maxRecordsPerTask": "5",
    }
    query = Query(log)
    query.plan_with(options)
    query.loss = 1.0  # ends are looked for in the log
    query.drain()
    assert query.at == {"t": {"0": 240}}
    read = {log.keys[T0][offset] for _, offset in query.delivered}
    assert read == {key for key in KEYS if key_hash(key, 0) < HASH_SPACE // 2}


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_topic_that_was_compacted_since_its_batch_loses_nothing(
    is_whole: bool, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The n-th record that is left is a later one than the n-th that the task has read."""
    query = Query(grown(100), keyRanges="1", maxRecordsPerTask="10")
    query.trigger()
    assert query.delivered == [(T0, at) for at in range(10)]
    query.log.compacted = True
    query.log.vanished = set() if is_whole else set(range(5))
    if not is_told:
        query.log.topic_configs = lambda _: {}  # type: ignore[method-assign]
    query.restart()
    query.trigger()
    assert ("may have vanished" in caplog.text) is not is_whole
    assert query.delivered[10][1] == (10 if is_whole else 5)
    query.drain()
    assert {at for _, at in query.delivered} == set(range(100))


def test_small_batches_wait_for_more_although_there_are_limits() -> None:
    query = Query(grown(50), maxRecordsPerTask="30", minOffsetsPerTrigger="20")
    query.waits = True
    assert len(query.trigger()) == 1  # the first one does not wait
    assert len(query.trigger()) == 1  # what is left behind does not, either
    assert len(query.delivered) == 50
    for _ in range(4):
        query.log.grow([KEYS[0]])
        assert not query.trigger()
    query.log.grow(KEYS[:1] * 16)
    assert len(query.trigger()) == 1
    query.waits = False
    query.drain()
    query.check_all()


def test_records_of_parked_keys_are_not_enough_for_a_batch() -> None:
    log = Log()
    log.grow([KEYS[3]] * 30 + [KEYS[0]] * 30)
    query = Query(log, minOffsetsPerTrigger="20")
    query.parking.keys = {("t", KEYS[3])}
    query.waits = True
    assert len(query.trigger()) == 1
    for _ in range(4):
        log.grow([KEYS[0]])
        assert not query.trigger()
    query.parking.keys.clear()
    assert query.trigger()
    query.waits = False
    query.drain()
    query.check_all()


def test_a_batch_that_runs_again_reads_partitions_that_are_assigned_no_more() -> None:
    query = Query(grown(40, partitions=2))
    end = query.planner.latest_offsets(query.at, None)
    planned = query.planned(end)
    servers = {"kafka.bootstrap.servers": "nowhere:9092"}
    query.plan_with(servers | {"assign": '{"t":[0]}', "startingOffsets": "earliest"})
    assert [task.slice for task in query.planned(end)] == [task.slice for task in planned]
