"""Siblings on one host take each other's chunks; whatever is in the cache, rows are the log's."""

import errno
import os
import random
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kshare
from kshare.core.hashing import WHOLE, split
from kshare.core.offsets import OffsetRange
from kshare.core.tasks import FetchGroup
from kshare.errors import RecordError
from kshare.read.reader import read_slice as reading
from kshare.read.reader.read_slice import read_slice
from kshare.read.sharing import chunks, files, pages
from kshare.read.sharing.chunks import SharedChunks, forget_query
from kshare.read.sharing.files import held_files, index_name
from tests.support.batches import (
    ABORT,
    COMMIT,
    TRANSACTIONAL,
    Rec,
    batch_of,
    control_batch,
    numbered,
)
from tests.support.scripted import ScriptedLog
from tests.support.sharing import COUNT, RANGES, begin, groups, holder_of, let_go, own_folder, signs

PER_BATCH, BATCHES = 10, 30
assert COUNT == PER_BATCH * BATCHES
LOG = [
    batch_of(
        numbered([Rec(b"k%d" % (n % 7), random.Random(n).randbytes(90)) for n in range(PER_BATCH)]),
        base=base,
        codec="zstd" if base % 20 else "none",
    ).encode()
    for base in range(0, COUNT, PER_BATCH)
]
NOBODY = {"kafka.bootstrap.servers": "127.0.0.1:1"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from own_folder(tmp_path, monkeypatch)


def index_handle() -> int:
    """The index, as this process has it open."""
    ((_, handle),) = signs()
    return handle


class Brokers:
    """Counts the fetches of all readers, each of which has a connection of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, batches: Sequence[bytes] = LOG) -> None:
        self._batches = batches
        self.aborted: tuple[tuple[int, int, int], ...] = ()
        self._made: list[ScriptedLog] = []
        monkeypatch.setattr(reading, "BrokerPool", lambda kafka: self._connect())

    def _connect(self) -> ScriptedLog:
        log = ScriptedLog(self._batches, response_bytes=4000, aborted=self.aborted)
        self._made.append(log)
        return log

    @property
    def fetches(self) -> int:
        """How many there were since this was asked last."""
        count = sum(len(log.fetches) for log in self._made)
        self._made.clear()
        return count


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(monkeypatch)


def read(
    siblings: FetchGroup | None,
    number: int,
    part: tuple[int, int] = (0, COUNT),
    limit: int | None = None,
    **options: str,
) -> list[dict[str, Any]]:
    """The rows of one of the ranges."""
    hashes = split(WHOLE, RANGES)[number]
    slice_ = kshare.Slice("t", 0, (kshare.Rectangle(OffsetRange(*part), hashes),))
    batches = read_slice(slice_, NOBODY | options, fetch_group=siblings, max_records=limit)
    return [row for found in batches for row in found.to_pylist()]


def held() -> list[int]:
    """The files of chunks."""
    return list(held_files().values())


def test_one_fetches_for_all(brokers: Brokers, folder: Path) -> None:
    alone = [read(None, number) for number in range(RANGES)]
    each = brokers.fetches // RANGES
    assert each > 5
    for number, siblings in enumerate(groups()):
        assert read(siblings, number) == alone[number]
        assert brokers.fetches == (0 if number else each)
        assert bool(signs()) == (number < RANGES - 1)
        assert not list(folder.iterdir())
    assert sorted(row["offset"] for rows in alone for row in rows) == list(range(COUNT))


def test_siblings_side_by_side_fetch_once(
    brokers: Brokers, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "_STALLED_SECONDS", 60.0)  # a slow machine is no stalled sibling
    monkeypatch.setattr(chunks, "_WAIT_SECONDS_MAX", 60.0)
    monkeypatch.setattr(files, "_LOCK_SECONDS", 60.0)
    alone = [read(None, number) for number in range(RANGES)]
    each = brokers.fetches // RANGES
    found: dict[int, object] = {}

    def run(siblings: FetchGroup) -> None:
        found[siblings.member] = read(siblings, siblings.member)

    threads = [threading.Thread(target=run, args=(siblings,)) for siblings in groups()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(RANGES)] == alone
    assert brokers.fetches == each
    assert not signs()


def test_siblings_that_begin_and_end_elsewhere(brokers: Brokers) -> None:
    parts = [(0, COUNT), (35, 222), (103, 104), (150, COUNT)]
    alone = [read(None, number, part) for number, part in enumerate(parts)]
    assert brokers.fetches
    for number, siblings in enumerate(groups(parts)):
        assert read(siblings, number, parts[number]) == alone[number]
        assert bool(brokers.fetches) == (number == 0)


def test_chunks_overlap(brokers: Brokers) -> None:
    """Siblings whose fetches do not begin at the same offsets deliver each record once."""
    first, second, *_ = groups()
    shared = SharedChunks(first, "t", 0, 1 << 20)
    for start, end in ((0, 30), (20, 60), (50, 90)):
        assert shared.find(start, end) is None or start
        shared.claim(end, end + 1)  # the next is worth it
        shared.put(start, end, [], memoryview(b"".join(LOG[start // 10 : end // 10])))
    assert len(held()) == 3
    rows = read(second, 1)
    fetches = brokers.fetches
    assert rows == read(None, 1)
    assert fetches < brokers.fetches
    shared.close(done=False)


def test_a_sibling_begins_behind_the_end_of_an_aborted_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first chunk lists a transaction that ended in the same chunk, before its first offset."""
    log, producer = [], 7
    for base, end in ((0, ABORT), (20, COMMIT), (40, ABORT), (60, COMMIT)):
        records = numbered([Rec(b"k%d" % n, b"%d" % base) for n in range(10)])
        fields: dict[str, Any] = {"producer": producer, "attributes": TRANSACTIONAL}
        log += [batch_of(records, base=base, **fields), control_batch(base + 10, producer, end)]
    brokers = Brokers(monkeypatch, [batch.encode() for batch in log])
    brokers.aborted = ((producer, 0, 10), (producer, 40, 50))
    parts = [(0, 71), (12, 71), (45, 71), (55, 71)]
    options: dict[str, Any] = {"kafka.isolation.level": "read_committed"}
    alone = [read(None, number, part, **options) for number, part in enumerate(parts)]
    committed = {*range(20, 30), *range(60, 70)}
    assert {row["offset"] for rows in alone for row in rows} <= committed
    assert brokers.fetches
    for number, siblings in enumerate(groups(parts)):
        assert read(siblings, number, parts[number], **options) == alone[number]
        assert bool(brokers.fetches) == (number == 0)


@pytest.mark.parametrize("limit", [1, 17, 40])
def test_limits(brokers: Brokers, limit: int) -> None:
    for number, siblings in enumerate(groups()):
        wanted = read(None, number)[:limit]
        assert read(siblings, number, limit=limit) == wanted


def test_an_index_of_another_shape(brokers: Brokers, folder: Path) -> None:
    """Siblings that were planned otherwise under the same name are no siblings."""
    first, other = groups(), groups([(0, COUNT), (0, COUNT)])
    rows = read(None, 1)
    read(first[0], 0)
    assert brokers.fetches
    assert read(other[1], 1) == rows
    assert brokers.fetches > 5
    assert signs()


# -- whatever is in the cache -------------------------------------------------------------------


def mutate(rng: random.Random) -> None:
    for handle in held():
        if rng.random() < 0.7:
            at = rng.randrange(os.fstat(handle).st_size)
            byte = os.pread(handle, 1, at)[0]
            os.pwrite(handle, bytes([byte ^ 1 << rng.randrange(8)]), at)


def truncate(rng: random.Random) -> None:
    for handle in held():
        os.ftruncate(handle, rng.randrange(os.fstat(handle).st_size))


def cut_in_the_same_size(rng: random.Random) -> None:
    for handle in held():
        size = os.fstat(handle).st_size
        os.ftruncate(handle, rng.randrange(size))
        os.ftruncate(handle, size)


def exchange(rng: random.Random) -> None:
    """The content of another chunk, as good as it is."""
    files = held()
    content = [os.pread(handle, 1 << 20, 0) for handle in files]
    for handle, data in zip(files, [*content[1:], content[0]], strict=True):
        os.pwrite(handle, data, 0)
        os.ftruncate(handle, len(data))


def remove(rng: random.Random) -> None:
    for handle in held():
        os.close(handle)
    held_files().clear()


def another_file(rng: random.Random) -> None:
    """The numbers of the files are another's now."""
    for handle in held():
        other = os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR, 0o600)
        os.pwrite(other, os.pread(handle, 1 << 20, 0), 0)
        os.dup2(other, handle)
        os.close(other)


def index_of_noise(rng: random.Random) -> None:
    os.pwrite(index_handle(), rng.randbytes(300), 0)


def flip(handle: int, at: int) -> None:
    byte = os.pread(handle, 1, at)[0]
    os.pwrite(handle, bytes([byte ^ 1]), at)


def index_head_mutated(rng: random.Random) -> None:
    head = pages.decode_head(partial(os.pread, index_handle()))
    assert head is not None
    flip(index_handle(), rng.randrange(len(pages.encode_head(head))))


def index_page_mutated(rng: random.Random) -> None:
    page = pages.decode_page(partial(os.pread, index_handle()), 0)
    assert page is not None
    flip(index_handle(), pages.page_at(0) + rng.randrange(len(page[2])))


def index_cut(rng: random.Random) -> None:
    os.ftruncate(index_handle(), 0)


def index_gone(rng: random.Random) -> None:
    let_go()


FAULTS = [mutate, truncate, cut_in_the_same_size, exchange, remove, another_file]
FAULTS += [index_of_noise, index_head_mutated, index_page_mutated, index_cut, index_gone]


@pytest.mark.parametrize("checks", ["true", "false"])
@pytest.mark.parametrize("fault", FAULTS)
def test_rows_do_not_depend_on_the_cache(
    brokers: Brokers, folder: Path, fault: Callable[[random.Random], None], checks: str
) -> None:
    options: dict[str, Any] = {"kafka.check.crcs": checks}
    siblings = groups()
    alone = [read(None, number) for number in range(RANGES)]
    each = brokers.fetches // RANGES
    assert read(siblings[0], 0) == alone[0]
    assert len(held()) == each == brokers.fetches
    fault(random.Random(5))
    assert read(siblings[1], 1, **options) == alone[1]
    assert brokers.fetches > 0  # the fault was met
    for number in (2, 3):
        assert read(siblings[number], number, **options) == alone[number]


def test_a_chunk_whose_records_are_damaged(brokers: Brokers) -> None:
    """The bytes are those that were put; then the broker's own answer counts."""
    first, second, *_ = groups()
    bad = bytearray(b"".join(LOG[:5]))
    bad[150] ^= 1
    shared = SharedChunks(first, "t", 0, 1 << 20)
    assert shared.find(0, 50) is None
    shared.put(0, 50, [], memoryview(bytes(bad)))
    assert len(held()) == 1
    assert read(second, 1) == read(None, 1)
    shared.close(done=False)


def test_what_a_broker_sends_damaged_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A next attempt asks the broker."""
    bad = bytearray(LOG[3])
    bad[-1] ^= 1
    brokers = Brokers(monkeypatch, [*LOG[:3], bytes(bad), *LOG[4:]])
    siblings = groups()
    with pytest.raises(RecordError, match="t-0, batch at offset 30 is corrupt"):
        read(siblings[0], 0)
    shared = SharedChunks(siblings[1], "t", 0, 1 << 20)
    assert shared.find(0, 10) is not None
    assert shared.find(30, 40) is None
    shared.close(done=False)
    brokers._batches = LOG
    for number in range(RANGES):
        rows = read(siblings[number], number)
        assert rows == read(None, number)


def test_siblings_of_a_task_that_found_damage_find_it_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = bytearray(LOG[3])
    bad[-1] ^= 1
    Brokers(monkeypatch, [*LOG[:3], bytes(bad), *LOG[4:]])
    for number, siblings in enumerate(groups()):
        with pytest.raises(RecordError, match="t-0, batch at offset 30 is corrupt"):
            read(siblings, number)


# -- room ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 5_000, 12_000, 20_000])
def test_a_full_cache(brokers: Brokers, limit: int) -> None:
    options: dict[str, Any] = {"max.bytes.key.range.results": str(limit)}
    read(None, 0)
    each = brokers.fetches
    for number, siblings in enumerate(groups()):
        rows = read(siblings, number, **options)
        assert sum(os.fstat(handle).st_size for handle in held()) <= limit
        fetches = brokers.fetches
        assert (fetches < each) == (number > 0 and limit > 1)
        assert rows == read(None, number)
        assert brokers.fetches == each  # begins anew


def test_a_disk_without_room(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fstatvfs

    def full(handle: int) -> object:
        found = list(real(handle))
        found[4] = 0
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "fstatvfs", full)
    assert read(groups()[0], 0) == read(None, 0)
    assert not held()


def test_nothing_is_written_when_the_cache_is_off(brokers: Brokers, folder: Path) -> None:
    rows = read(groups()[0], 0, maxBytesKeyRangeResults="0")
    assert rows == read(None, 0)
    assert not signs()


def test_errors_of_the_system_are_warned_of_once(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(chunks, "_warned", set())
    monkeypatch.setattr(files, "_taken_until", {})
    monkeypatch.setattr(files, "_LOCK_SECONDS", 0.01)
    with socket.socket(socket.AF_UNIX) as others:
        others.bind("\0" + index_name())
        for number in (0, 1):
            assert read(groups()[number], number) == read(None, number)
    (warning,) = [r.getMessage() for r in caplog.records if r.name == "kshare.read.sharing.chunks"]
    assert f"keeps the unix socket @{index_name()}" in warning
    assert "max.bytes.key.range.results" in warning


# -- many partitions ----------------------------------------------------------------------------


def bytes_of_a_look(partitions: int, patch: pytest.MonkeyPatch) -> int:
    """What a task reads and writes to claim, where it shares some partitions."""
    shared = [SharedChunks(groups()[0], "t", number, 1 << 20) for number in range(partitions)]
    moved = 0
    read, write = os.pread, os.pwrite

    def counted_read(handle: int, size: int, start: int) -> bytes:
        nonlocal moved
        data = read(handle, size, start)
        moved += len(data)
        return data

    def counted_write(handle: int, data: memoryview, start: int) -> int:
        nonlocal moved
        moved += len(data)
        return write(handle, data, start)

    with patch.context() as context:
        context.setattr(os, "pread", counted_read)
        context.setattr(os, "pwrite", counted_write)
        assert shared[0].claim(0, 10)
        assert shared[0]._is_wanted
    for each in shared:
        each.close(done=False)
    return moved


def test_a_look_does_not_grow_with_the_partitions_that_are_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, many = bytes_of_a_look(10, monkeypatch), bytes_of_a_look(310, monkeypatch)
    assert many - few <= 300 * pages.GROUP_ROW.itemsize


# -- the ends of tasks and queries --------------------------------------------------------------


def test_a_task_that_ends_early_leaves_its_chunks_and_may_come_again(
    brokers: Brokers, folder: Path
) -> None:
    siblings = groups()
    hashes = split(WHOLE, RANGES)[0]
    slice_ = kshare.Slice("t", 0, (kshare.Rectangle(OffsetRange(0, COUNT), hashes),))
    reader = read_slice(slice_, NOBODY, fetch_group=siblings[0])
    next(reader)
    reader.close()  # type: ignore[attr-defined]
    before = brokers.fetches
    assert before >= 1
    rows = [read(siblings[number], number) for number in range(RANGES)]
    assert rows == [read(None, number) for number in range(RANGES)]
    assert not signs()


def test_the_next_batch_frees_what_is_left_of_the_last(brokers: Brokers, folder: Path) -> None:
    read(groups(batch="1")[0], 0)
    assert held()
    later = groups(batch="2")
    SharedChunks(later[0], "t", 0, 1 << 20).close(done=True)
    assert not held()


def test_a_query_ends(brokers: Brokers, folder: Path) -> None:
    siblings = groups()
    read(siblings[0], 0)
    late = SharedChunks(siblings[1], "t", 0, 1 << 20)
    forget_query("another")
    assert held()
    forget_query("q")
    assert not held()
    assert not signs()
    assert late.find(0, 10) is None
    late.put(0, 10, [], memoryview(LOG[0]))
    late.close(done=True)
    assert not signs()


def test_a_query_ends_where_there_is_no_proc(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def hidden() -> str:
        raise OSError(errno.ENOSYS, "no /proc")

    with monkeypatch.context() as patch:
        patch.setattr(files, "index_name", hidden)
        patch.setattr(chunks, "_warned", set())
        forget_query("q")
    assert "the cache of fetched chunks is not used" in caplog.text


@pytest.mark.parametrize("what", ["claim", "chunk"])
def test_the_holder_is_killed(
    brokers: Brokers, folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Its chunks go with it, and its claims are waited for no longer."""
    monkeypatch.setattr(chunks._Waiting, "on", lambda *_: pytest.fail("waits for the dead"))
    with holder_of(what) as holder:
        assert begin(holder, LOG[0]).readline() == b"there\n"
        second = SharedChunks(groups()[1], "t", 0, 1 << 20)
        found = second.find(0, 1) if what == "chunk" else None
        assert found is None or bytes(found.records) == LOG[0]
        holder.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # dead, but not gone
        assert second.find(0, 1) is None
        second.close(done=False)
    assert (found is not None) == (what == "chunk")
    rows = [read(siblings, siblings.member) for siblings in groups()]
    assert rows == [read(None, number) for number in range(RANGES)]
    assert not signs()
