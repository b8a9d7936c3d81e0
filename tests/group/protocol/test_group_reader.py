"""Reading a group's log: what counts at its end, what is passed over, and what ends the reader."""

import json
import random
import tracemalloc
import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import ALL_HASHES, HASH_SPACE, HashRange, KeyRanges
from kshare.core.offsets import OffsetRange
from kshare.core.progress import TopicPartition
from kshare.errors import CommitLogError, LaterVersionError, OtherHashError
from kshare.group.protocol.commit_log.group_reader import GroupReader
from kshare.group.protocol.commit_log.log import GroupLog, version_read_by_all
from kshare.group.protocol.commit_log.record_codec import encode, encode_key
from kshare.group.protocol.commit_log.records import (
    READS,
    VERSION,
    Block,
    Claim,
    Epoch,
    Lease,
    Member,
    Record,
    Reset,
    Stable,
    key_of,
)
from tests.group.protocol import lease_explorer, test_membership_explorer
from tests.group.protocol.lease_world import History, lease_steps, take_lease
from tests.group.protocol.member_explorer import first_group
from tests.group.protocol.member_world import group_steps, take_group
from tests.group.protocol.process import T0

Row = tuple[int, bytes, bytes | None]
Rows = list[Row]
LOG = TopicPartition("log", 3)
HALF = HashRange(0, HASH_SPACE // 2)
CLAIM = Claim(T0, "m#1", ALL_HASHES, 7)
KINDS: dict[str, Record] = {
    "claim": CLAIM,
    "lease": Lease(T0, 1, "m#1", 4, OffsetRange(0, 9)),
    "reset": Reset(T0, 1, 40, "m#1", 1),
    "epoch": Epoch(3, "m", ()),
    "block": Block(T0, 1, "m#1", HALF, 0, (3, 5)),
    "stable": Stable(T0, 1, 7, None, "", "m#1"),
    "member": Member("m", "host", 1_000, READS, (("keys", "all"),)),
}
STOPS = {"claim", "lease", "reset", "epoch"}


def read(rows: Iterable[Row], *, group: str = "g", settles_at: int | None = None) -> GroupReader:
    """A reader of some rows; it settles before one of them, or at the end."""
    reader = GroupReader(LOG, GroupLog(group), keeps_keys=True)
    for number, row in enumerate(rows):
        if number == settles_at:
            reader.settle()
        reader.apply(*row)
    reader.settle()
    return reader


def rows_of(*records: Record | bytes, group: str = "g") -> Rows:
    """Records in their order; bytes replace the value of the record before."""
    rows: Rows = []
    for record in records:
        if isinstance(record, bytes):
            rows.append((len(rows), rows[-1][1], record))
        else:
            rows.append((len(rows), *encode(group, record)))
    return rows


@cache
def worlds() -> list[Rows]:
    """The logs of random walks of the explorers' worlds: with groups, and with leases."""
    logs = list[Rows]()
    for seed in range(4):
        draw = random.Random(seed)
        group = first_group(3)
        leases = lease_explorer.new_world(by_epochs=seed % 2 == 0)
        for _ in range(150):
            if possible := group_steps(group, test_membership_explorer.LIMITS):
                take_group(group, draw.choice(possible))
            if steps := lease_steps(leases, lease_explorer.DEEP):
                take_lease(leases, draw.choice(steps))
        shared = leases.log
        assert isinstance(shared, History)
        for records in (group.log.records, shared.all_records):
            logs.append(
                [
                    (at, encode_key("g", key), None if said is None else encode("g", said)[1])
                    for at, key, said in records
                ]
            )
    assert {json.loads(key)[3] for log in logs for _, key, _ in log} >= {
        *("claim", "block", "stable", "reset", "epoch", "lease")
    }
    return logs


# -- what counts -----------------------------------------------------------------------------------


def test_reading_to_the_end_says_what_compaction_would_leave() -> None:
    for log in worlds():
        last = {key: at for at, key, _ in log}
        compacted = [row for row in log if last[row[1]] == row[0] or b'"epoch"' in row[1]]
        whole, each, left = read(log), read(log, settles_at=0), read(compacted, settles_at=0)
        for reader in (whole, each, left):
            reader.check()
            assert reader.take_warnings() == []
        assert whole.log.epochs == each.log.epochs == left.log.epochs
        assert whole.log.members == each.log.members
        assert whole.log.of(T0) == left.log.of(T0)
        for name in ("incarnation", "reset_to", "stable", "blocks", "claims", "leases"):
            assert getattr(whole.log.of(T0), name) == getattr(each.log.of(T0), name), name


def test_what_is_replaced_is_not_decoded() -> None:
    """A bomb whose tombstone follows costs its bytes, though compaction has not come by."""
    bomb = b'{"z":"%s"}' % b64encode(zlib.compress(b'{"hashes":[' + b"[]," * (2 << 20) + b"0]}"))
    key, value = encode("g", CLAIM)
    tracemalloc.start()
    try:
        reader = read([(0, key, bomb), (1, key, value), (2, b"other", bomb)])
        reader.check()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert reader.log.of(T0).claims["m#1"].claim == CLAIM
    assert peak < 1 << 20


@pytest.mark.parametrize(
    "value",
    [
        b'{"z":"%s"}' % b64encode(zlib.compress(b'{"hashes":[' + b"[]," * (20 << 20) + b"0]}")),
        b'{"z":"%s"}' % b64encode(zlib.compress(b"[" * (8 << 20))),
        b'{"hashes":' + b"[" * 900_000,
    ],
    ids=["inflates", "deep and packed", "deep"],
)
def test_a_bomb_costs_little_and_is_named(value: bytes) -> None:
    rows: Rows = [(5, encode("g", CLAIM)[0], value)]
    tracemalloc.start()
    try:
        with pytest.raises(CommitLogError, match=r"log-3, offset 5, group g: .*--damaged"):
            read(rows).check()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20


def test_a_lease_that_was_sent_twice_is_where_it_was_first() -> None:
    mine, other = (Lease(T0, 0, name, 1, OffsetRange(0, 9)) for name in ("a#1", "b#1"))
    leases = read(rows_of(mine, other, mine)).log.of(T0).leases
    assert [placed.position for placed in leases.values()] == [0, 1]
    claims = read(rows_of(CLAIM, CLAIM)).log.of(T0).claims
    assert claims["m#1"].position == 1


# -- what cannot be read ---------------------------------------------------------------------------


@pytest.mark.parametrize("settles_at", [0, None])
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_record_costs_what_it_speaks_of(kind: str, settles_at: int | None) -> None:
    others = [record for name, record in KINDS.items() if name != kind]
    key = encode_key("g", key_of(KINDS[kind]))
    rows: Rows = [*rows_of(*others), (90, key, b"junk")]
    reader = read(rows, settles_at=settles_at)
    place = r"log-3, offset 90, group g: .*kshare offsets drop --group g --damaged"
    if kind in STOPS:
        with pytest.raises(CommitLogError, match=place):
            reader.check()
        said = reader.take_warnings()
        if kind == "claim":  # of which its partition alone can be claimed anew
            reader.check(but_claims=True)
            assert "claim orders-0 anew" in said.pop()
            assert reader.log.of(T0).damaged["m#1"].position == 90
            assert reader.log.of(T0).is_damaged_since(89)
        else:
            with pytest.raises(CommitLogError, match=place):
                reader.check(but_claims=True)
        assert said == []
    else:
        reader.check()
        (warning,) = reader.take_warnings()
        assert warning.startswith("log-3, offset 90, group g: ")
        assert "it is passed over" in warning
        assert reader.take_warnings() == []
        assert reader.log.of(T0) == read(rows[:-1]).log.of(T0)
    assert reader.damaged == {key: 90}
    reader.apply(91, key, None)
    reader.check()
    assert reader.damaged == {}
    assert not reader.log.of(T0).damaged


@pytest.mark.parametrize("key", [b'[1,"g",0,', b'[1,"g",0,"typo","x"]', b'[1,"g",-1,"claim"]'])
def test_what_is_no_record_of_ours_is_passed_over(key: bytes) -> None:
    reader = read([*rows_of(CLAIM), (8, key, b"{}")])
    reader.check()
    assert len(reader.take_warnings()) == 1
    assert reader.damaged == {key: 8}
    assert list(reader.log.of(T0).claims) == ["m#1"]


def test_records_of_optional_kinds_are_passed_over_in_silence() -> None:
    rows: Rows = [*rows_of(CLAIM), (8, b'[1,"g",5,"load?","orders",0,{"a":[1]}]', b"\xff")]
    reader = read([*rows, (9, b'[1,"g",5,"load?"]', None)], settles_at=0)
    reader.check()
    assert (reader.take_warnings(), reader.damaged) == ([], {})
    assert reader.log.of(T0).incarnation == 0


def test_what_another_version_has_written_is_not_damaged() -> None:
    key, value = encode("g", CLAIM)
    other = value.replace(b"x64-128/2", b"x64-128/3")
    with pytest.raises(OtherHashError, match="install the version that wrote it"):
        read([(4, key, other)]).check()
    with pytest.raises(LaterVersionError, match="install a later one"):
        read([(4, b'[2,"g",0,"block","orders",0]', b"{}")]).check()
    for reader in (read([(4, key, other)]), read([(4, b'[2,"g",0,"x"]', b"{}")])):
        assert reader.damaged == {}
        assert len(reader.keys) == 1


def test_the_tombstone_of_what_cannot_be_read_voids_no_facts() -> None:
    """Its key may name any incarnation."""
    rows = rows_of(KINDS["reset"], KINDS["block"])
    forged = encode_key("g", key_of(Block(T0, 2**62, "x", HALF, 0, (0, 1))))
    before = read(rows).log.of(T0)
    assert before.has_facts
    reader = read([*rows, (8, forged, b"junk"), (9, forged, None)], settles_at=0)
    assert reader.log.of(T0) == before


def test_many_warnings_are_counted() -> None:
    rows: Rows = [(n, encode_key("g", key_of(Member(f"m{n}", "h", 0))), b"") for n in range(500)]
    warnings = read(rows).take_warnings()
    assert len(warnings) == 21
    assert warnings[-1] == "log-3: 480 more records cannot be read"


# -- fuzz ------------------------------------------------------------------------------------------

_HOSTILE = [
    *(b"[" * 200, b'{"a":' * 200, b"1" + b"0" * 400, b"1e999", b"-1", b"NaN", b"null", b"true"),
    *(b'"\\ud800"', b'""', b"9223372036854775807", b"9223372036854775808", b"[]", b"{}", b"\xff"),
]


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes with some flipped, cut off, or replaced by what breaks parsers."""
    place = draw(st.integers(0, len(data)))
    match draw(st.sampled_from(["flip", "cut", "insert", "replace"])):
        case "flip":
            return data[:place] + bytes([draw(st.integers(0, 255))]) + data[place + 1 :]
        case "cut":
            return data[:place]
        case "insert":
            return data[:place] + draw(st.sampled_from(_HOSTILE)) + data[place:]
    end = draw(st.integers(place, min(place + 25, len(data))))
    return data[:place] + draw(st.sampled_from(_HOSTILE)) + data[end:]


@given(st.data())
def test_a_mutated_log_is_read_or_refused_by_name(data: st.DataObject) -> None:
    log = list(data.draw(st.sampled_from(worlds())))
    for _ in range(data.draw(st.integers(1, 4))):
        number = data.draw(st.integers(0, len(log) - 1))
        at, key, value = log[number]
        if value is None or data.draw(st.booleans()):
            key = data.draw(damaged(key))
        else:
            value = data.draw(damaged(value))
        log[number] = at, key, value
    for settles_at in (0, None):
        reader = read(log, settles_at=settles_at)
        with suppress(CommitLogError):
            reader.check()
        reader.take_warnings()
        for at, key in enumerate(reader.damaged, log[-1][0] + 1):
            reader.apply(at, key, None)
        assert not reader.damaged


# -- versions, one by one --------------------------------------------------------------------------


def beats(*reads: int | None) -> Iterator[tuple[bytes, bytes]]:
    """Beats of members; None for one of a version that did not say what it reads."""
    for number, version in enumerate(reads):
        key, value = encode("g", Member(f"m{number}", "h", 1_000, version or VERSION))
        assert (b"reads" in value) == (version not in {None, VERSION})
        yield key, value


@pytest.mark.parametrize(
    ("reads", "by_all"), [([], 2), ([2, 2], 2), ([3, 2], 2), ([2, None], 1), ([None, None], 1)]
)
def test_what_all_living_members_read(reads: list[int | None], by_all: int) -> None:
    log = read([(n, *beat) for n, beat in enumerate(beats(*reads))]).log
    assert version_read_by_all(log, READS, 1_000) == by_all
    assert version_read_by_all(log, READS, 1_001) == READS  # those are dead


def test_a_group_is_upgraded_member_by_member() -> None:
    """What each version writes, all read, until the last member of the earlier one has gone.

    The later version is simulated: it has another field in each value, an optional kind, and a
    kind that nobody may miss, for which the version in the key rises.
    """
    key, value = encode("g", CLAIM)
    earlier = value.replace(b'"hash":"murmur3-x64-128/2",', b"")
    later = value.replace(b"{", b'{"weight":[1,2],', 1)
    expected = read([(3, key, value)]).log.of(T0)
    optional = (b'[1,"g",0,"weights?","orders",0]', b'{"w":1}')
    needed = (b'[3,"g",0,"swap","orders",0]', b"{}")
    rows: Rows = []
    for first, second, written in (
        (None, None, earlier),
        (READS, None, earlier),  # one of this version beside one of an earlier version
        (READS, READS, value),
        (3, READS, later),  # one of a later version
        (3, 3, later),
    ):
        rows = [(n, *beat) for n, beat in enumerate(beats(first, second))]
        by_all = version_read_by_all(read(rows).log, 3, 1_000)
        rows.append((3, key, written))
        rows += [(4, *optional)] if by_all >= 2 else []
        if by_all >= 3:
            rows.append((5, *needed))
            continue
        reader = read(rows, settles_at=0)
        reader.check()
        assert reader.take_warnings() == []
        assert reader.log.of(T0) == expected
    with pytest.raises(LaterVersionError):  # who comes back with this version is told
        read(rows).check()


def test_another_group_goes_on() -> None:
    key = encode_key("other", key_of(CLAIM))
    rows: Rows = [(0, key, b"junk"), *((n + 1, *row[1:]) for n, row in enumerate(rows_of(CLAIM)))]
    read(rows).check()
    assert read(rows).log.of(T0).claims["m#1"].claim.hashes == KeyRanges(ALL_HASHES)
