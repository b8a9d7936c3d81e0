"""Which key hashes a query reads."""

import json

from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange, key_hash
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, TopicPartition
from kshare.options import SourceOptions, Subscribe, parse_options
from kshare.planner.cluster_view import ClusterView
from kshare.planner.key_selection import KeySelection
from tests.support.fake_logs import FakeCluster
from tests.support.planner import KEYS, Parking

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
HALF = HASH_SPACE // 2
LOW, HIGH = HashRange(0, HALF), HashRange(HALF, HASH_SPACE)


def options(**given: str) -> SourceOptions:
    base = {"kafka.bootstrap.servers": "nowhere:9092"}
    chosen = given if "assign" in given else {"subscribe": "t,u", **given}
    return parse_options({**base, **chosen}, streaming=True).options


def assigned(**more: str) -> KeySelection:
    return KeySelection.of(options(assign=json.dumps({"t": {"0": [[0, HALF]], "1": []}}), **more))


def test_without_options_everything_is_read() -> None:
    keys = KeySelection.of(options())
    assert keys.allowed(T0) == keys.readable(T0) == (WHOLE,)
    assert keys.chosen(T0) is None
    assert keys.unassigned(T0) == ()
    assert keys.parked(T0) == frozenset()
    pending = (Rectangle(OffsetRange(0, 9), WHOLE),)
    assert keys.within(T0, pending) == pending


def test_assigned_ranges() -> None:
    keys = assigned()
    assert keys.allowed(T0) == keys.chosen(T0) == (LOW,)
    assert keys.unassigned(T0) == (HIGH,)
    assert keys.allowed(T1) == (WHOLE,)
    assert keys.chosen(T1) is None
    assert keys.unassigned(T1) == ()
    assert keys.unassigned(U0) == ()  # read before a restart only
    pending = (Rectangle(OffsetRange(0, 9), WHOLE), Rectangle(OffsetRange(9, 10), HIGH))
    assert keys.within(T0, pending) == (Rectangle(OffsetRange(0, 9), LOW),)


@given(st.sets(st.tuples(st.sampled_from("tu"), st.sampled_from(KEYS))), st.booleans())
def test_a_parked_key_is_not_read(parked: set[tuple[str, bytes]], is_always: bool) -> None:
    parking = Parking()
    parking.keys = parked
    view = ClusterView(FakeCluster({}), Subscribe(("t",)), parking)
    keys = KeySelection.of(options(parkedKeys='["key-3"]') if is_always else options())
    now = keys.with_parked(view.parked({"t"}))
    wanted = {key for topic, key in parked if topic == "t"} | ({b"key-3"} if is_always else set())
    for key in KEYS:
        hash_ = key_hash(key, 0)
        assert any(hash_ in part for part in now.readable(T0)) == (key not in wanted)
    assert now.parked(T0) == {key_hash(key, 0) for key in wanted}
    assert now.unassigned(T0) == ()
    assert now.allowed(T0) == (WHOLE,)
    assert now.parked(U0) == frozenset()  # was not asked about
