"""What leases say: laws, and what a member asks for."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import ALL_HASHES, WHOLE, KeyRanges, split
from kshare.core.offsets import OffsetRange, intersect, length, union
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.group.protocol.commit_log.log import GroupLog, PartitionLog
from kshare.group.protocol.commit_log.records import Block, Claim, Key, Lease, Record, key_of
from kshare.group.protocol.owners.leases import (
    LeaseShare,
    holdings,
    lease_shares,
    next_lease,
    processed_offsets,
)

T0 = TopicPartition("orders", 0)
NAMES = ("a#1", "b#1", "c#1")

leases = st.builds(
    lambda member, number, start, size: Lease(
        T0, 0, member, number, OffsetRange(start, start + size)
    ),
    st.sampled_from(NAMES),
    st.integers(0, 9),
    st.integers(0, 20),
    st.integers(1, 8),
)
claims = st.sampled_from(NAMES).map(lambda name: Claim(T0, name, ALL_HASHES, shared=True))
entries = st.lists(st.tuples(st.one_of(leases, leases, claims), st.booleans()), max_size=25)
flat = st.sets(st.integers(0, 30)).map(lambda some: union((i, i + 1) for i in some))


def log_of(entries: Sequence[tuple[Record, bool]], start: int = 0) -> PartitionLog:
    """A log of records, those with a flag as tombstones."""
    log = GroupLog("g")
    for position, (record, is_deleted) in enumerate(entries, start):
        log.apply(position, key_of(record), None if is_deleted else record)
    return log.of(T0)


@given(entries)
def test_nobody_has_what_another_one_has(entries: list[tuple[Record, bool]]) -> None:
    log = log_of(entries)
    held = holdings(log)
    assert sum(map(length, held.values())) == length(union(held.values()))
    named = [
        (lease.offsets.start, lease.offsets.end)
        for (member, _), lease in log.leases.items()
        if member in log.claims
    ]
    assert union(held.values()) == union(named)  # what a lease names that counts, somebody has


@given(entries)
def test_the_earlier_lease_has_what_is_in_both(entries: list[tuple[Record, bool]]) -> None:
    log = log_of(entries)
    taken: set[int] = set()
    for key, lease in sorted(log.leases.items(), key=lambda item: item[1].position):
        if key[0] in log.claims:
            named = set(range(lease.offsets.start, lease.offsets.end))
            has = holdings(log)[key]
            assert union((i, i + 1) for i in named - taken) == has
            taken |= named


@given(entries)
def test_shares_count_every_leased_offset_once(entries: list[tuple[Record, bool]]) -> None:
    log = log_of(entries)
    shares = lease_shares(log)
    assert shares.keys() == {name[:-2] for name in log.claims}
    assert sum(each.leased for each in shares.values()) == length(union(holdings(log).values()))


def test_what_is_committed_above_the_stable_offset_is_done() -> None:
    records: list[Record] = [
        Claim(T0, "a#1", ALL_HASHES, shared=True),
        Claim(T0, "b#1", ALL_HASHES, shared=True),
        Lease(T0, 0, "a#1", 1, OffsetRange(0, 10)),
        Lease(T0, 0, "b#1", 1, OffsetRange(10, 20)),
        Block(T0, 0, "a#1", WHOLE, 0, (0, 3)),
        Block(T0, 0, "b#1", WHOLE, 0, (12, 16)),
    ]
    shares = lease_shares(log_of([(record, False) for record in records]))
    assert shares == {"a": LeaseShare(leased=7, done=0), "b": LeaseShare(leased=6, done=4)}


@given(entries, leases)
def test_a_later_lease_takes_nothing_from_anybody(
    entries: list[tuple[Record, bool]], lease: Lease
) -> None:
    before = holdings(log_of(entries))
    after = holdings(log_of([*entries, (lease, False)]))
    assert {key: after[key] for key in before} == before


def test_a_lease_counts_while_its_author_has_a_shared_claim() -> None:
    lease = Lease(T0, 0, "a#1", 1, OffsetRange(0, 5))
    claim = Claim(T0, "a#1", ALL_HASHES, shared=True)
    assert not holdings(log_of([(lease, False)]))
    assert not holdings(log_of([(Claim(T0, "a#1", ALL_HASHES), False), (lease, False)]))
    assert holdings(log_of([(claim, False), (lease, False)])) == {("a#1", 1): (0, 5)}
    assert not holdings(log_of([(claim, False), (lease, False), (claim, True)]))


def test_the_same_number_is_the_same_lease() -> None:
    log = GroupLog("g")
    log.apply(0, Key(0, "claim", T0, ("a#1",)), Claim(T0, "a#1", ALL_HASHES, shared=True))
    for position, offsets in enumerate([OffsetRange(0, 5), OffsetRange(7, 9)], 1):
        lease = Lease(T0, 0, "a#1", 1, offsets)
        log.apply(position, key_of(lease), lease)
    assert holdings(log.of(T0)) == {("a#1", 1): (0, 5)}


def test_a_reset_ends_all_leases() -> None:
    claim, lease = (
        Claim(T0, "a#1", ALL_HASHES, shared=True),
        Lease(T0, 1, "a#1", 1, OffsetRange(0, 5)),
    )
    log = log_of([(claim, False), (lease, False)])
    assert log.leases
    later = log_of(
        [(claim, False), (lease, False), (Lease(T0, 2, "a#1", 2, OffsetRange(7, 9)), False)]
    )
    assert holdings(later) == {("a#1", 2): (7, 9)}
    assert key_of(lease) in later.outdated  # to be deleted by the lead


def test_shared_claims_do_not_exclude_each_other() -> None:
    shared = [(Claim(T0, name, ALL_HASHES, shared=True), False) for name in NAMES]
    log = log_of(shared)
    assert all(not log.is_fenced(name) and log.owned_by(name) == ALL_HASHES for name in NAMES)
    assert log.lead == "a#1"
    lower = split(WHOLE, 2)[0]
    log = log_of([*shared, (Claim(T0, "d#1", KeyRanges([lower])), False)])
    assert all(log.is_fenced(name) for name in NAMES)
    log = log_of([(Claim(T0, "d#1", KeyRanges([lower])), False), *shared])
    assert log.is_fenced("d#1")
    assert not log.is_fenced("a#1")


@given(flat, st.integers(0, 40), st.integers(1, 40), st.integers(1, 5))
def test_the_next_chunk_is_of_the_lowest_free_offsets(
    free: tuple[int, ...], first: int, size: int, members: int
) -> None:
    chunk = next_lease(free, first, size, members)
    if not free:
        assert chunk is None
        return
    assert chunk is not None
    bounds = intersect(free, (chunk.start, chunk.end))
    assert bounds[0] == chunk.start == free[0]
    assert bounds[-1] == chunk.end  # no more than what is free at its end
    assert chunk.end <= max(chunk.start, first) + size


def test_what_is_deleted_already_is_one_chunk() -> None:
    assert next_lease((10, 2_000_000), 1_000_000, 100, 1) == OffsetRange(10, 1_000_100)


def test_everybody_gets_some_of_the_last_records() -> None:
    assert next_lease((0, 10_000), 0, 100, 4) == OffsetRange(0, 100)
    assert next_lease((0, 400), 0, 100, 4) == OffsetRange(0, 50)
    assert next_lease((0, 100), 0, 100, 4) == OffsetRange(0, 13)
    assert next_lease((0, 8), 0, 100, 4) == OffsetRange(0, 6)  # but no tiny chunks
    assert next_lease((0, 1), 0, 1, 4) == OffsetRange(0, 1)


@given(flat, flat, st.integers(0, 10))
def test_processed_is_what_is_so_for_all_key_hashes(
    lower: tuple[int, ...], upper: tuple[int, ...], stable: int
) -> None:
    pieces = [
        Rectangle(OffsetRange(lo, hi), half)
        for half, bounds in zip(split(WHOLE, 2), (lower, upper), strict=True)
        for lo, hi in zip(bounds[::2], bounds[1::2], strict=True)
    ]
    below = (0, stable) if stable else ()
    found = processed_offsets(Progress.of(stable, pieces))
    assert found == union([below, intersect(lower, upper)])
