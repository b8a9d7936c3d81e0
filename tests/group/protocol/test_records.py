"""The records of the individual commit log: there and back, golden bytes, what is refused."""

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import ALL_HASHES, HASH_SPACE, NO_HASHES, WHOLE, HashRange, KeyRanges
from kshare.core.offsets import OFFSET_MAX, START_MAX, OffsetRange, from_pairs
from kshare.core.progress import TopicPartition
from kshare.errors import CommitLogError, LaterVersionError, OtherHashError
from kshare.group.protocol.commit_log.consumer_protocol import HASH
from kshare.group.protocol.commit_log.group_reader import GroupReader
from kshare.group.protocol.commit_log.log import GroupLog
from kshare.group.protocol.commit_log.record_codec import decode, decode_key, encode, encode_key
from kshare.group.protocol.commit_log.records import (
    READS,
    STRETCH,
    Block,
    Claim,
    Epoch,
    EpochMember,
    Lease,
    Member,
    Record,
    Reset,
    Stable,
    key_of,
)
from tests.support.groups import T0

GOLDEN = Path(__file__).parent / "golden" / "records.json"
EARLIER = GOLDEN.with_name("earlier_records.json")
"""Of the versions that named no key hash, and said neither what they read nor settings."""
HALF = HashRange(0, HASH_SPACE // 2)
EXAMPLES: dict[str, Record] = {
    "claim": Claim(T0, "m-1", KeyRanges([HashRange(0, 10), HashRange(20, HASH_SPACE)])),
    "claim of a group's member": Claim(T0, "m-1", KeyRanges([HALF]), 7, "billing-1"),
    "block": Block(
        T0, 1, "m-1", HALF, 2, (2 * STRETCH, 2 * STRETCH + 3, 3 * STRETCH - 1, 3 * STRETCH)
    ),
    "stable": Stable(T0, 1, 10_432, 4, "by hand", "m-1"),
    "reset": Reset(T0, 2, 40, "m-1", 1),
    "member": Member("m-1", "pod-3", 1_767_323_045_000),
    "member that says what it reads and its settings": Member(
        "m-1", "pod-3", 1_767_323_045_000, READS, (("claim.timeout.ms", "3000"), ("keys", "all"))
    ),
    "claim of a member that fences itself": Claim(
        T0, "m-1", KeyRanges([HALF]), 7, self_fencing=True
    ),
    "claim of a member that shares": Claim(T0, "m-1#2", ALL_HASHES, shared=True),
    "lease": Lease(T0, 1, "m-1#2", 12, OffsetRange(10_000, 10_500)),
    "epoch": Epoch(
        3,
        "m-1",
        (
            EpochMember("m-1", "kshare-5f0c", "pod-3:8080", ((T0, KeyRanges([HALF])),)),
            EpochMember(
                "m-2", "kshare-77aa", "pod-4", ((TopicPartition("orders", 1), ALL_HASHES),)
            ),
        ),
    ),
}

topics = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
partitions = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1))
json_values = st.none() | st.booleans() | st.integers() | st.lists(st.text("ab", max_size=2))
offsets = st.integers(0, OFFSET_MAX)
starts = st.integers(0, START_MAX)
cuts = st.lists(st.integers(0, HASH_SPACE), min_size=2, max_size=6, unique=True).map(sorted)


@st.composite
def hash_ranges(draw: st.DrawFn) -> KeyRanges:
    """Ascending hash ranges with gaps between them."""
    some = draw(cuts)
    return KeyRanges(HashRange(lo, hi) for lo, hi in zip(some[::2], some[1::2], strict=False))


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    stretch = draw(st.integers(0, OFFSET_MAX // STRETCH - 1))
    first = stretch * STRETCH
    pairs = draw(
        st.lists(
            st.tuples(st.integers(0, STRETCH - 1), st.integers(1, 300)), min_size=1, max_size=5
        )
    )
    bounds = from_pairs(
        [first + lo for lo, _ in pairs], [first + min(lo + n, STRETCH) for lo, n in pairs]
    )
    (hashes, *_) = draw(hash_ranges())
    return Block(draw(partitions), draw(offsets), draw(topics), hashes, stretch, bounds)


spans = (
    st.tuples(offsets, offsets)
    .filter(lambda pair: pair[0] < pair[1])
    .map(lambda pair: OffsetRange(*pair))
)
epoch_members = st.builds(
    EpochMember,
    topics,
    topics,
    topics,
    st.lists(st.tuples(partitions, hash_ranges()), max_size=3).map(tuple),
)
records = st.one_of(
    st.builds(
        Claim,
        partitions,
        topics,
        hash_ranges(),
        st.none() | offsets,
        st.none() | topics,
        st.booleans(),
        st.booleans(),
    ),
    st.builds(Lease, partitions, offsets, topics, offsets, spans),
    st.builds(Epoch, offsets, topics, st.lists(epoch_members, max_size=3).map(tuple)),
    blocks(),
    st.builds(Stable, partitions, offsets, starts, st.none() | offsets, topics, topics),
    st.builds(Reset, partitions, offsets, starts, topics, offsets),
    st.builds(
        Member,
        topics,
        topics,
        offsets,
        offsets,
        st.dictionaries(topics, topics).map(lambda said: tuple(sorted(said.items()))),
    ),
)


@given(topics, records)
def test_there_and_back(group: str, record: Record) -> None:
    key, value = encode(group, record)
    assert decode(key, value) == (group, record)
    assert decode_key(key) == (group, key_of(record))
    assert encode_key(group, key_of(record)) == key


@given(records, records)
def test_one_key_for_what_compaction_keeps_one_of(one: Record, other: Record) -> None:
    assert (encode("g", one)[0] == encode("g", other)[0]) == (key_of(one) == key_of(other))


def test_the_bytes_stay() -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    written = {
        name: [part.decode() for part in encode("billing", record)]
        for name, record in EXAMPLES.items()
    }
    assert written == golden
    for name, (key, value) in golden.items():
        assert decode(key.encode(), value.encode()) == ("billing", EXAMPLES[name])


def test_records_of_earlier_versions_are_read_as_before() -> None:
    earlier = json.loads(EARLIER.read_text(encoding="utf-8"))
    assert len(earlier) == 10
    for name, (key, value) in earlier.items():
        assert decode(key.encode(), value.encode()) == ("billing", EXAMPLES[name])


@given(topics, records, st.dictionaries(st.text("xyz", min_size=1, max_size=3), json_values))
def test_fields_of_a_later_version_are_passed_over(
    group: str, record: Record, more: dict[str, Any]
) -> None:
    """That is how a later version says more, while members of this one run."""
    key, value = encode(group, record)
    assert decode(key, json.dumps({**json.loads(value), **more}).encode()) == (group, record)


@pytest.mark.parametrize("name", ["claim", "claim of a member that shares", "reset"])
@pytest.mark.parametrize("other", ["murmur3-x64-128/3", "", None, 2, ["murmur3-x64-128/2"]])
def test_hashes_of_another_function_are_refused(name: str, other: Any) -> None:
    key, value = encode("g", EXAMPLES[name])
    fields = json.loads(value)
    assert fields["hash"] == HASH
    changed = json.dumps({**fields, "hash": other}).encode()
    with pytest.raises(OtherHashError, match=r"orders-0: .* key hashes by .* and this kshare"):
        decode(key, changed)


def test_a_gap_costs_three_bytes_at_most() -> None:
    bounds = tuple(range(0, STRETCH, 1))
    _, value = encode("g", Block(T0, 0, "m", HALF, 0, bounds))
    assert len(value) <= 3 * len(bounds) / 2 + 20
    assert len(value) < 1 << 20


def test_a_later_version_is_named() -> None:
    with pytest.raises(LaterVersionError, match=r"version 2 .* reads up to version 1"):
        decode_key(b'[2,"g",0,"new kind"]')


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"\xff",
        b"{}",
        b"[1]",
        b'["1","g",0,"member","m"]',
        b'[true,"g",0,"member","m"]',
        b'[1,7,0,"member","m"]',
        b'[1,"g",-1,"member","m"]',
        b'[1,"g",0,"other","m"]',
        b'[1,"g",0,["member"],"m"]',
        b'[1,"g",0,"member"]',
        b'[1,"g",0,"member",3]',
        b'[1,"g",0,"epoch",3]',
        b'[1,"g",0,"stable"]',
        b'[1,"g",0,"stable","t",-1]',
        b'[1,"g",0,"stable","t",0]',
        b'[1,"g",0,"stable","t",0,0]',
        b'[1,"g",0,"reset","t",0]',
        b'[1,"g",0,"reset","t",0,"m"]',
        b'[1,"g",0,"reset","t",0,"m",-1]',
        b'[1,"g",0,"lease","t",0,"m"]',
        b'[1,"g",0,"lease","t",0,"m",-1]',
        b'[1,"g",0,"lease","t",0,7,1]',
        b'[1,"g",0,"block","t",0]',
        b'[1,"g",0,"block","t",0,"m",[5,5],0]',
        b'[1,"g",0,"block","t",0,"m",[0,true],0]',
        b'[1,"g",0,"block","t",0,"m",[0,5],-1]',
        b'[1,"g",0,"block","t",0,"m",[0,5],9223372036854775807]',
        b"[" * 100_000,
    ],
)
def test_what_is_no_key(key: bytes) -> None:
    with pytest.raises(CommitLogError) as raised:
        decode_key(key)
    assert not isinstance(raised.value, LaterVersionError)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("claim", b"null"),
        ("claim", b"{"),
        ("claim", b'{"hashes":[[0,5],[5,9]],"epoch":null,"transactional_id":null}'),
        ("claim", b'{"hashes":[[9,5]],"epoch":null,"transactional_id":null}'),
        ("claim", b'{"hashes":[[0,5]],"epoch":-1,"transactional_id":null}'),
        ("claim", b'{"hashes":[[0,5]],"epoch":null,"transactional_id":3}'),
        ("claim", b'{"hashes":[[0,5]]}'),
        (
            "claim",
            b'{"hashes":[[0,5]],"epoch":1,"transactional_id":null,"self_fencing":1}',
        ),
        (
            "claim of a member that shares",
            b'{"hashes":[],"epoch":1,"transactional_id":null,"shared":1}',
        ),
        ("lease", b'{"offsets":[5,5]}'),
        ("lease", b'{"offsets":[5]}'),
        ("lease", b'{"offsets":[true,5]}'),
        ("epoch", b'{"generation":-1,"leader":"m","members":[]}'),
        ("epoch", b'{"generation":1,"leader":3,"members":[]}'),
        ("epoch", b'{"generation":1,"leader":"m","members":[["m","m"]]}'),
        ("epoch", b'{"generation":1,"leader":"m","members":[["m","m","h",[["t",-1,[]]]]]}'),
        ("epoch", b'{"generation":1,"leader":"m","members":[["m","m","h",[["t",0,[[5,5]]]]]]}'),
        ("block", b'{"o":""}'),
        ("block", b'{"o":"AAE"}'),
        ("block", b'{"o":7}'),
        ("block", b'{"o":"AIGABA=="}'),
        ("stable", b'{"offset":-1,"leader_epoch":null,"metadata":""}'),
        ("stable", b'{"offset":1.0,"leader_epoch":null,"metadata":""}'),
        ("stable", b'{"offset":9223372036854775807,"leader_epoch":null,"metadata":""}'),
        ("reset", b'{"offset":9223372036854775806}'),
        ("member", b'{"host":"h","seen_ms":1,"reads":"2"}'),
        ("member", b'{"host":"h","seen_ms":1,"settings":{"keys":1}}'),
        ("member", b'{"host":"h","seen_ms":1,"settings":[["keys","all"]]}'),
        ("claim", b'{"hashes":[[0,5.0]],"epoch":null,"transactional_id":null}'),
        ("claim", b'{"hashes":[[false,5]],"epoch":null,"transactional_id":null}'),
        ("claim", b'{"hashes":[[0,1e400]],"epoch":null,"transactional_id":null}'),
        ("claim", b'{"hashes":[[0,1%s]],"epoch":null,"transactional_id":null}' % (b"0" * 400)),
        ("claim", b'{"hashes":%s,"epoch":null}' % (b"[" * 10_000 + b"]" * 10_000)),
        ("block", b'{"o":"%s"}' % (b"AQEB" * 100_000)),
        ("epoch", b'{"z":"eJyrVgIAAPkAfQ=="}'),
        ("stable", b'{"offset":1,"leader_epoch":null,"metadata":null}'),
        ("reset", b"{}"),
        ("member", b'{"host":1,"seen_ms":1}'),
    ],
)
def test_what_is_no_value(name: str, value: bytes) -> None:
    key, _ = encode("g", EXAMPLES[name])
    with pytest.raises(CommitLogError):
        decode(key, value)


@pytest.mark.parametrize(
    "record",
    [
        Stable(T0, 0, True),
        Stable(T0, 0, OFFSET_MAX + 1),
        Stable(T0, 0, cast("int", 2.0)),
        Stable(T0, 0, cast("int", np.int64(5))),
        Stable(T0, 0, 5, leader_epoch=-1),
        Stable(TopicPartition("orders", True), 0, 5),
        Reset(T0, 1, -1),
        Reset(T0, 1, 5, number=cast("int", None)),
        Block(T0, 0, "m", WHOLE, 0, (5, 3)),
    ],
    ids=repr,
)
def test_what_would_be_refused_is_not_written(record: Record) -> None:
    """In the log it would keep all members of the group, and those to come, from going on."""
    with pytest.raises(CommitLogError):
        encode("g", record)


def test_an_epoch_of_a_large_group_fits_into_a_record() -> None:
    """1,000 members, 10,000 partitions, and names as long as Kafka allows: brokers take 1 MB."""
    topics = [f"{'t' * 245}-{number:03}" for number in range(100)]
    members = tuple(
        EpochMember(
            f"host-{number:05}",
            f"kshare-{number:05}-{'0' * 36}",
            f"host-{number:05}.example:8080",
            tuple((TopicPartition(topics[number % 100], each), ALL_HASHES) for each in range(10)),
        )
        for number in range(1_000)
    )
    epoch = Epoch(3, "host-00000", members)
    key, value = encode("g", epoch)
    assert len(key) + len(value) < 200_000
    assert decode(key, value) == ("g", epoch)
    for damaged in (value[:100] + b"x" + value[101:], value.replace(b'"}', b'AAAA"}')):
        with pytest.raises(CommitLogError, match=r"cannot be read|not JSON"):
            decode(key, damaged)


@pytest.mark.parametrize("keeps_keys", [False, True])
def test_keys_are_kept_for_those_alone_who_delete_records(keeps_keys: bool) -> None:
    """Members read logs of any length and never ask for them."""
    claim = Claim(T0, "m1", ALL_HASHES)
    reader = GroupReader(TopicPartition("log", 0), GroupLog("g"), keeps_keys=keeps_keys)
    key, value = encode("g", claim)
    reader.apply(0, key, value)
    reader.settle()
    assert list(reader.log.of(T0).claims) == ["m1"]
    assert reader.keys == [key] * keeps_keys
    reader.apply(1, key, None)
    assert reader.keys == []


def test_no_hashes_are_never_written_as_all() -> None:
    owner = EpochMember("m-1", "id", "host", ((T0, NO_HASHES),))
    with pytest.raises(AssertionError):
        encode("group", Epoch(7, "m-1", (owner,)))
