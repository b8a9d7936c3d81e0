"""What progress events show of a stream."""

from kshare.core.hashing import key_hash
from tests.support.planner import KEYS, T0, Log, Query


def test_the_report_tells_what_each_range_does() -> None:
    log = Log()
    log.grow(KEYS * 200)
    query = Query(log, targetTaskDuration="1s", keyRanges="2")
    query.pace = lambda key: 0.002
    query.trigger()
    query.trigger()
    report = query.planner.seen_offsets()
    assert report is not None
    assert report["t"] == {"0": 2400}
    told = report["@kshare"]["report"]["t"]["0"]
    assert told["stable"] >= 0
    assert told["gaps"] >= 0
    assert [len(entry["h"]) for entry in told["ranges"]] == [1, 1]
    for entry in told["ranges"]:
        assert entry["records"] > 0
        assert entry["seconds"] > 0
        assert entry["position"] + entry["lag"] == 2400
    assert all(entry["limit"] for entry in told["ranges"])


def test_only_what_offsets_do_not_say_is_reported() -> None:
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
    assert [entry["h"] for entry in told["0"]["ranges"] if entry.get("parked")] == [
        [[hash_, hash_ + 1]]
    ]


def test_how_many_gaps_there_may_be_and_which_keys_are_parked() -> None:
    log = Log(partitions=2)
    log.keys[T0] += KEYS * 5
    query = Query(log, maxRangesInCheckpoint="77")
    query.parking.keys |= {("t", b"key-3"), ("t", b"key-4")}
    query.trigger()
    report = query.planner.seen_offsets()
    assert report is not None
    told = report["@kshare"]["report"]["t"]
    assert told["0"]["gaps_max"] == 77
    # Also where nothing of them is pending.
    assert told["0"]["parked"] == told["1"]["parked"] == {"keys": 2, "since": 1_700_000_000.0}
