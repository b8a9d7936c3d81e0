"""The index of chunks: bytes and back, whatever the bytes; what stays, what goes."""

import json
import struct
from collections.abc import Iterable

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.tasks import GROUP_MAX, SharedRange
from kshare.read.sharing import index as index_module
from kshare.read.sharing.group import Chunk, Claim, Group, GroupKey, LostGroupError, Owner
from kshare.read.sharing.index import OWNED_MAX, ChunkIndex
from kshare.read.sharing.pages import (
    CHUNKS_MAX,
    INDEX_MAGIC,
    Edit,
    chunk_row,
    decode_head,
    decode_page,
    encode_page,
    page_at,
)
from tests.support.sharing import index_in

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


class File:
    """What is written of an index, and what a look reads of it."""

    def __init__(self, edits: Iterable[Edit] = ()) -> None:
        self._parts: dict[int, bytes] = {}
        self.read_from: list[int] = []
        self.write(edits)

    def write(self, edits: Iterable[Edit]) -> None:
        for start, data in edits:
            before = self._parts.get(start, b"")
            self._parts[start] = data + before[len(data) :]

    def read(self, size: int, start: int) -> bytes:
        self.read_from.append(start)
        first = max((part for part in self._parts if part <= start), default=start)
        return self._parts.get(first, b"")[start - first :][:size]

    def copy(self) -> "File":
        return File(self._parts.items())


def reopened(index: ChunkIndex) -> ChunkIndex:
    return ChunkIndex(File(index.edits()).read)


NUMBERS = st.integers(0, 2**63 - 1)
OWNERS = st.builds(Owner, NUMBERS, NUMBERS)
NAMES = st.text("0123456789abcdef", min_size=32, max_size=32)
FILES = [NUMBERS, *[st.integers(0, 2**64 - 1)] * 2]
CHUNKS = st.builds(Chunk, NAMES, *[NUMBERS] * 3, OWNERS, *FILES, st.booleans())


@given(
    st.lists(CHUNKS, max_size=3), st.lists(st.builds(Claim, st.just(0), OWNERS, NUMBERS, NUMBERS))
)
def test_an_index_survives_its_bytes(found: list[Chunk], claims: list[Claim]) -> None:
    index = joined()
    page, group = index._group(KEY)
    index._set_chunks(np.concatenate([index._chunks, *(chunk_row(page, each) for each in found)]))
    group.claims, group.positions = claims, {2: 7}
    again = reopened(index)
    assert again._group(KEY) == (page, group)
    assert list(again.chunks) == list(again.chunks_of(KEY)) == found
    assert all(type(read.rolling) is bool and type(read.owner) is Owner for read in again.chunks)
    assert again.edits() == []


@given(st.binary(max_size=200))
def test_any_bytes_make_an_index(data: bytes) -> None:
    assert index_in(data).is_empty
    assert index_in(INDEX_MAGIC + struct.pack("<I", crc32c(data)) + data).is_empty


@given(st.integers(0, 3), st.lists(st.binary(min_size=24, max_size=24), max_size=3), st.binary())
def test_rows_of_any_bytes_are_an_index(chunks: int, groups: list[bytes], pages: bytes) -> None:
    """Its checksum is right."""
    index = joined()
    (row,) = {chunk_row(0, chunk(0, 5)).tobytes()}
    rows = struct.pack("<IIq", len(groups), chunks, 0) + b"".join(groups) + chunks * row
    file = File([(0, INDEX_MAGIC + struct.pack("<I", crc32c(rows)) + rows), (page_at(0), pages)])
    index = ChunkIndex(file.read)
    assert not list(index.chunks) or any(groups[0][:8])  # a group's
    with pytest.raises(LostGroupError):
        index.chunks_of(KEY)
    index.join(KEY, SHARED, 0, ME, is_alive=alive, now=1)
    assert reopened(index).keys == [KEY]


def test_a_byte_that_is_another_one_makes_it_none() -> None:
    index = joined()
    index.put(KEY, 0, chunk(0, 40), 1000)
    for start, data in index.edits():
        for at in range(len(data)):
            file = File([(start, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])])
            assert decode_head(file.read) is None
            assert decode_page(file.read, 0) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)


@given(st.data())
def test_another_versions_page_is_none(data: st.DataObject) -> None:
    """Its checksum is right, but somewhere in it is something else."""
    _, group = joined()._group(KEY)
    group.claims = [Claim(0, ME, 5, 9)]
    content = json.loads(encode_page(KEY, group)[8:])
    at = content
    while isinstance(at, list) and at:
        number = data.draw(st.integers(0, len(at) - 1))
        if not isinstance(at[number], list) or not at[number] or data.draw(st.booleans()):
            at[number] = data.draw(JSON)
            break
        at = at[number]
    text = json.dumps(content).encode()
    file = File([(page_at(3), struct.pack("<II", crc32c(text), len(text)) + text)])
    read = decode_page(file.read, 3)
    if read is not None:
        again = decode_page(File([(page_at(0), encode_page(*read[:2]))]).read, 0)
        assert again is not None
        assert again[:2] == read[:2]


def test_more_siblings_than_there_can_be_are_another_versions() -> None:
    index = joined(((0, 9, GROUP_MAX),))
    assert reopened(index).keys == [KEY]
    index._group(KEY)[1].ranges = ((0, 9, GROUP_MAX + 1),)
    assert reopened(index).keys == []


def test_the_largest_group_fits_on_its_page() -> None:
    key = GroupKey("f" * 16, "f" * 40, 255, "t" * 249, 2**31 - 1)
    high = 2**63 - 1
    index = joined(tuple((high - n - 1, high - n, 1) for n in range(GROUP_MAX)), key)
    _, group = index._group(key)
    for number in range(GROUP_MAX):
        owner = group.members[number] = Owner(2**31, high)
        group.positions[number] = high - number
        group.claims.append(Claim(number, owner, high - number - 1, high))
    ((_, data),) = (edit for edit in index.edits() if edit[0] == page_at(0))
    assert len(data) < (page_at(1) - page_at(0)) / 2
    assert reopened(index)._group(key) == index._group(key)


def test_a_look_reads_and_writes_one_page_of_many() -> None:
    """However many groups there are, on however many partitions."""
    keys = [KEY._replace(partition=number) for number in range(100)]
    file = File()
    for key in keys:  # within a second
        index = ChunkIndex(file.read)
        index.join(key, SHARED, 0, ME, is_alive=alive, now=7)
        file.write(index.edits())
    assert {start for start in file.read_from if start >= page_at(0)} == set()
    file.read_from.clear()
    for number, key in enumerate(keys):
        own = page_at(number)
        index = ChunkIndex(file.read)
        assert index.find(key, Claim(0, ME, 0, 9), is_alive=alive) is None
        assert [start for start, _ in index.edits()] == [own]
        file.write(index.edits())
        index = ChunkIndex(file.read)
        assert index.put(key, 0, chunk(0, 9, key=str(number)), 1 << 20)
        assert [start for start, _ in index.edits()] == [own, 0]
        file.write(index.edits())
        assert {start for start in file.read_from if start >= page_at(0)} == {own}
        file.read_from.clear()
    assert len(list(ChunkIndex(file.read).chunks)) == 100


STEPS = st.lists(st.integers(0, 8), min_size=1, max_size=8)


@given(st.data(), STEPS)
def test_a_task_is_killed_while_it_writes(data: st.DataObject, steps: list[int]) -> None:
    """What was there is there, or what was written, or no index, or not the group in question."""
    keys = [KEY._replace(partition=number) for number in range(3)]
    file, before = File(joined().edits()), {KEY: joined()._group(KEY)[1]}
    for number, step in enumerate(steps):
        index, key = ChunkIndex(file.read), keys[step % 3]
        if step > 5:  # in the place of what is left of the last batch
            keys = [each._replace(batch=str(number)) for each in keys]
            key = keys[step % 3]
        if key not in before or step < 3:
            index.join(key, SHARED, number % 3, ME, is_alive=alive, now=number)
        elif data.draw(st.booleans()):
            index.put(key, 0, chunk(10 * number, 10 * number + 9, key=str(step)), 1 << 20)
        else:
            index.leave(key, 0, ME, done=True, now=number)
        edits = index.edits()
        cut = data.draw(st.integers(0, sum(len(written) for _, written in edits)))
        killed = file.copy()
        for start, written in edits:
            killed.write([(start, written[:cut])])
            cut = max(cut - len(written), 0)
        file.write(edits)
        after = groups_in(ChunkIndex(file.read))
        left = ChunkIndex(killed.read)
        for found, group in groups_in(left).items():
            assert group in (before.get(found), after.get(found))
            chunks = left.chunks_of(found)
            assert {int(each.name[0]) % 3 for each in chunks} <= {found.partition}
        before = after
        for found in keys:  # whatever was left, a task can begin
            left.join(found, SHARED, 1, OTHER, is_alive=alive, now=99)
        assert sorted(reopened(left).keys) == keys


def groups_in(index: ChunkIndex) -> dict[GroupKey, Group]:
    return {key: index._group(key)[1] for key in index.keys}


def test_there_are_no_more_groups_than_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "GROUPS_MAX", 3)
    index = ChunkIndex()
    for number in range(3):
        index.join(KEY._replace(partition=number), SHARED, 0, ME, is_alive=alive, now=0)
    more = KEY._replace(partition=3)
    with pytest.raises(OSError, match="3 groups of tasks share chunks on this host"):
        index.join(more, SHARED, 0, ME, is_alive=alive, now=0)
    index.leave(KEY._replace(partition=1), 0, ME, done=False, now=0)
    index.join(more, SHARED, 0, ME, is_alive=alive, now=0)
    assert index._find_page(more) is not None


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


def test_the_room_is_one_for_all_groups() -> None:
    """Also for those whose pages a task never reads; the newest give way, whoever's they are."""
    keys = [KEY._replace(query=name, partition=n) for name in "qr" for n in range(3)]
    file = File()
    for start in range(0, 120, 10):
        for key in keys:
            index = ChunkIndex(file.read)
            index.join(key, ((0, 1000, 3),), 0, ME, is_alive=alive, now=0)
            name = f"{key.query}{key.partition}:"
            assert index.put(key, 0, chunk(start, start + 10, key=name), 80)
            assert index.size <= 80
            file.write(index.edits())
    found = [f"{each}:0-10" for each in ("q0", "q1", "q2", "r0", "r1", "r2")]
    found += ["r1:110-120", "r2:110-120"]
    assert [each.name for each in ChunkIndex(file.read).chunks] == found


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
    assert another in index.keys  # its positions count until it is left alone for long
    index.join(KEY._replace(batch="c"), SHARED, 1, OTHER, **only, now=61)
    assert another not in index.keys
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
