"""Batches in which every range goes its own way: their times, and what is reported of them."""

import random

from kshare.core.hashing import HASH_SPACE, key_hash
from tests.support.planner import KEYS, T0, Log, Query, grown


def test_a_batch_takes_the_time_that_was_asked_for():
    log = grown(200_000)
    query = Query(log, targetTaskDuration="10s", keyRanges="3")
    query.pace = lambda key: 0.1

    def batch() -> float:
        before = query.now
        query.trigger()
        return query.now - before

    times = [batch() for _ in range(4)]
    assert 7 < times[3] < 13
    query.pace = lambda key: 0.01
    times = [batch() for _ in range(4)]
    assert 7 < times[3] < 13
    query.pace = lambda key: 0.001
    times = [batch() for _ in range(4)]
    assert 7 < times[3] < 13
    assert not all(query.feedback.held)  # to measure costs something


def test_a_slow_key_is_cut_out_and_the_others_run_at_their_own_speed():
    log = Log()
    chance = random.Random(3)
    log.grow(chance.choices(KEYS, k=20_000))
    slow = KEYS[4]
    query = Query(log, targetTaskDuration="5s", keyRanges="4", rangeAssignor="adaptive")
    query.pace = lambda key: 0.5 if key == slow else 0.001
    for _ in range(14):
        query.trigger()
    done = [log.keys[T0][offset] for _, offset in query.delivered]
    assert done.count(slow) < 400
    assert len(done) - done.count(slow) == sum(key != slow for key in log.keys[T0])
    query.check_order()


def test_the_report_tells_what_each_range_does():
    log = Log()
    log.grow(KEYS * 50)
    query = Query(log, targetTaskDuration="5s", keyRanges="2")
    query.pace = lambda key: 0.002
    query.trigger()
    query.trigger()
    report = query.planner.seen_offsets()
    assert report is not None
    assert report["t"] == {"0": 600}
    told = report["@kshare"]["report"]["t"]["0"]
    assert told["stable"] >= 0
    assert told["gaps"] >= 0
    assert [len(entry["h"]) for entry in told["ranges"]] == [1, 1]
    for entry in told["ranges"]:
        assert entry["records"] > 0
        assert entry["seconds"] > 0
        assert entry["position"] + entry["lag"] == 600
    assert any(entry.get("limit") for entry in told["ranges"])  # one has caught up


def test_only_what_offsets_do_not_say_is_reported():
    """Level partitions without limits read as those of Spark's own source."""
    log = Log(partitions=2)
    log.keys[T0] += KEYS * 5  # and nothing in the other one
    plain = Query(log, keyRanges="2")
    plain.trigger()
    assert plain.planner.seen_offsets() == {"t": {"0": 60, "1": 0}}

    uneven = Query(log, parkedKeys='["key-3"]')
    uneven.trigger()
    report = uneven.planner.seen_offsets()
    assert report is not None
    assert report["t"] == {"0": 60, "1": 0}
    told = report["@kshare"]["report"]["t"]
    assert list(told) == ["0"]
    hash_ = key_hash(b"key-3", 0)
    assert [hash_, hash_ + 1] in [part for entry in told["0"]["ranges"] for part in entry["h"]]


def test_assigned_ranges_alone_hold_the_stable_offset():
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
