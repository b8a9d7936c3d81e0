"""The index of chunks: bytes and back, whatever the bytes; what stays, what goes."""

import json

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.tasks import GROUP_MAX, SharedRange
from kshare.read.sharing.group import Chunk, Claim, GroupKey, LostGroupError, Owner
from kshare.read.sharing.index import CHUNKS_MAX, OWNED_MAX, ChunkIndex

KEY = GroupKey("q", "b", 0, "t", 0)
ME, OTHER = Owner(1, 10), Owner(2, 20)
SHARED = ((0, 100, 3),)


def alive(_: Owner) -> bool:
    return True


def chunk(start: int, end: int, size: int = 10, owner: Owner = ME, key: str = "") -> Chunk:
    return Chunk(f"{key}{start}-{end}", start, end, size, owner, 5, 6, 7)


def joined(
    ranges: tuple[SharedRange, ...] = SHARED, key: GroupKey = KEY, owner: Owner = ME
) -> ChunkIndex:
    index = ChunkIndex()
    for number in range(sum(count for *_, count in ranges)):
        index.join(key, ranges, number, owner, is_alive=alive, now=0)
    return index


def starts(index: ChunkIndex) -> list[int]:
    return sorted(found.start for found in index.chunks)


# -- as bytes -----------------------------------------------------------------------------------

NUMBERS = st.integers(0, 2**63 - 1)
OWNERS = st.builds(Owner, NUMBERS, NUMBERS)
CHUNKS = st.builds(
    Chunk, st.text(), *[NUMBERS] * 3, OWNERS, *[NUMBERS] * 4, st.booleans()
)  # fmt: skip


@given(
    st.lists(CHUNKS, max_size=3), st.lists(st.builds(Claim, st.just(0), OWNERS, NUMBERS, NUMBERS))
)
def test_an_index_survives_its_bytes(found: list[Chunk], claims: list[Claim]) -> None:
    index = joined()
    group = index._groups[KEY]
    group.chunks, group.claims, group.positions = found, claims, {2: 7}
    again = ChunkIndex.decode(index.encode())
    assert again._groups == index._groups
    assert list(again.chunks) == found
    assert all(type(read.rolling) is bool and type(read.owner) is Owner for read in again.chunks)
    assert again.encode() == index.encode()


@given(st.binary(max_size=200))
def test_any_bytes_make_an_index(data: bytes) -> None:
    assert ChunkIndex.decode(data).is_empty
    assert ChunkIndex.decode(b"kshare-chunks 1 %08x\n" % crc32c(data) + data).is_empty


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)


@given(st.data())
def test_another_versions_index_is_none(data: st.DataObject) -> None:
    """Its checksum is right, but somewhere in it is something else."""
    index = joined()
    group = index._groups[KEY]
    group.chunks, group.claims = [chunk(0, 5)], [Claim(0, ME, 5, 9)]
    content = json.loads(index.encode().split(b"\n", 1)[1])
    at = content
    while isinstance(at, list) and at:
        number = data.draw(st.integers(0, len(at) - 1))
        if not isinstance(at[number], list) or not at[number] or data.draw(st.booleans()):
            at[number] = data.draw(JSON)
            break
        at = at[number]
    text = json.dumps(content).encode()
    read = ChunkIndex.decode(b"kshare-chunks 1 %08x\n" % crc32c(text) + text)
    assert read.is_empty or ChunkIndex.decode(read.encode())._groups == read._groups


def test_more_siblings_than_there_can_be_are_another_versions() -> None:
    index = joined(((0, 9, GROUP_MAX),))
    assert not ChunkIndex.decode(index.encode()).is_empty
    index._groups[KEY].ranges = ((0, 9, GROUP_MAX + 1),)
    assert ChunkIndex.decode(index.encode()).is_empty


# -- who fetches --------------------------------------------------------------------------------


def test_one_sibling_fetches_and_the_others_find_what_it_fetched() -> None:
    index = joined()
    mine, others = Claim(0, ME, 0, 50), Claim(1, OTHER, 0, 50)
    assert index.find(KEY, mine, is_alive=alive) is None
    assert index.find(KEY, mine, is_alive=alive) is None  # its own claim
    assert index.find(KEY, others, is_alive=alive) == mine
    assert index.find(KEY, others._replace(start=50), is_alive=alive) is None  # beyond it
    assert index.put(KEY, 0, chunk(0, 40), 1000)
    found = index.find(KEY, others, is_alive=alive)
    assert isinstance(found, Chunk)
    assert (found.start, found.end) == (0, 40)


def test_the_claims_of_the_dead_and_the_stalled_count_no_longer() -> None:
    for options in (
        {"is_alive": lambda _: False},
        {"is_alive": alive, "stalled": Claim(0, ME, 0, 9)},
    ):
        index = joined()
        index.find(KEY, Claim(0, ME, 0, 9), is_alive=alive)
        assert index.find(KEY, Claim(1, OTHER, 0, 9), **options) is None


# -- what stays ---------------------------------------------------------------------------------


def test_a_chunk_goes_when_all_have_passed_it() -> None:
    index = joined()
    assert index.put(KEY, 0, chunk(0, 40), 1000)
    index.find(KEY, Claim(1, ME, 40, 50), is_alive=alive)
    assert starts(index) == [0]
    index.find(KEY, Claim(2, ME, 39, 50), is_alive=alive)
    assert starts(index) == [0]
    index.find(KEY, Claim(2, ME, 40, 50), is_alive=alive)
    assert starts(index) == []
    assert [gone.start for gone in index.removed] == [0]


def test_what_nobody_else_wants_is_not_kept() -> None:
    index = joined(((0, 100, 1), (60, 100, 1)))
    assert not index.put(KEY, 0, chunk(0, 60), 1000)
    assert index.put(KEY, 0, chunk(60, 80), 1000)
    assert not index.put(KEY, 1, chunk(60, 80), 1000)  # it is there


def test_what_came_first_stays_for_the_next_wave_and_the_newest_pass_through() -> None:
    index = joined()
    for start in range(0, 100, 10):
        assert index.put(KEY, 0, chunk(start, start + 10), 80)
        assert index.size <= 80
    assert starts(index) == [0, 10, 20, 30, 40, 50, 80, 90]
    assert not index.put(KEY, 0, chunk(0, 100, size=81), 80)  # larger than all


def test_there_are_no_more_chunks_than_files_that_may_be_open() -> None:
    index = joined(((0, 10**6, 3),))
    for start in range(OWNED_MAX + 20):
        index.put(KEY, 0, chunk(start, start + 1), 1 << 40)
    assert len(starts(index)) <= OWNED_MAX
    for owner in range(2, 12):
        for start in range(1000 * owner, 1000 * owner + OWNED_MAX + 5):
            index.put(KEY, 0, chunk(start, start + 1, owner=Owner(owner, 0)), 1 << 40)
    assert len(starts(index)) <= CHUNKS_MAX


def test_a_sibling_that_is_done_wants_nothing() -> None:
    index = joined()
    index.put(KEY, 0, chunk(0, 40), 1000)
    index.leave(KEY, 0, ME, done=True, now=0)
    index.leave(KEY, 1, ME, done=True, now=0)
    assert starts(index) == [0]
    index.leave(KEY, 2, ME, done=False, now=0)  # it may come again
    assert starts(index) == [0]
    index.join(KEY, SHARED, 2, ME, is_alive=alive, now=0)
    index.leave(KEY, 2, ME, done=True, now=0)
    assert index.is_empty
    with pytest.raises(LostGroupError):
        index.find(KEY, Claim(0, ME, 0, 1), is_alive=alive)


def test_older_batches_of_the_query_and_the_dead_go() -> None:
    index = joined()
    index.put(KEY, 0, chunk(0, 40), 1000)
    another = KEY._replace(query="another")
    index.join(another, SHARED, 0, ME, is_alive=alive, now=0)
    index.put(another, 0, chunk(0, 40, key="x"), 1000)
    index.join(KEY._replace(batch="c"), SHARED, 0, OTHER, is_alive=alive, now=0)
    assert [found.name for found in index.chunks] == ["x0-40"]
    only = {"is_alive": lambda owner: owner == OTHER}
    index.join(KEY._replace(batch="c"), SHARED, 1, OTHER, **only, now=60)
    assert not list(index.chunks)
    assert another in index._groups  # its positions count until it is left alone for long
    index.join(KEY._replace(batch="c"), SHARED, 1, OTHER, **only, now=61)
    assert another not in index._groups
    index.drop_query("q")
    assert index.is_empty


def test_what_nobody_comes_back_to_goes() -> None:
    """A query that never ran all its tasks, say: its holders live on, and hold files for nobody."""
    index = joined()
    index.put(KEY, 0, chunk(0, 40), 1000)
    for number in range(3):
        index.leave(KEY, number, ME, done=False, now=100)
    another = KEY._replace(query="another")
    index.join(another, SHARED, 0, ME, is_alive=alive, now=160)
    assert starts(index) == [0]
    index.join(another, SHARED, 1, ME, is_alive=alive, now=161)
    assert starts(index) == []
    assert [gone.start for gone in index.removed] == [0]


def test_waves_of_tasks_whose_processes_end() -> None:
    """What the first has passed is not waited for by it, although nobody was there in between."""
    index = ChunkIndex()
    for number in range(3):
        owner = Owner(number, 0)
        index.join(KEY, SHARED, number, owner, is_alive=owner.__eq__, now=number)
        index.put(KEY, number, chunk(0, 40, owner=owner), 1000)
        index.leave(KEY, number, owner, done=True, now=number)
    assert index.is_empty
