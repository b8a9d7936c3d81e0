"""From ranges that are behind to their keys, and to the slow one, on a mock cluster."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kshare.cli import main
from kshare.core.checkpoint import BatchOffsets, RangeLimit
from kshare.core.hashing import ALL_HASHES, HASH_SPACE, HashRange, KeyRanges, key_hash, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, TopicPartition
from kshare.core.region import Rectangle
from kshare.testing import FakeCluster
from tests.support.checkpoints import write_checkpoint

ORDERS = TopicPartition("orders", 0)
KEYS = [b"hot" if n % 2 else b"k%d" % (n % 8) for n in range(1_000)]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, "__kshare_parked_keys": 1}) as running:
        running.produce("orders", [(key, b"v") for key in KEYS])
        yield running


def around(key: bytes, width: int) -> HashRange:
    lo = key_hash(key, 0)
    return HashRange(lo, min(lo + width, HASH_SPACE))


def checkpoint(folder: Path, slow: HashRange) -> str:
    """All but a range is processed up to 900; the range up to 100."""
    ahead = [Rectangle(OffsetRange(100, 900), part) for part in ALL_HASHES - [slow]]
    return write_checkpoint(folder, [BatchOffsets({ORDERS: Progress.of(100, ahead)})], 0)


def slowest(cluster: FakeCluster, directory: str, capsys: Any, *more: str) -> str:
    at = ["--checkpoint", directory, "--bootstrap-servers", cluster.bootstrap_servers]
    assert main(["status", "--slowest", *at, *more]) == 0
    out: str = capsys.readouterr().out
    return out


def test_a_range_of_one_key_names_it(cluster: FakeCluster, tmp_path: Path, capsys: Any) -> None:
    directory = checkpoint(tmp_path, around(b"hot", 1))
    (found,) = json.loads(slowest(cluster, directory, capsys, "--json"))["slowest"]
    assert (found["topic"], found["partition"], found["position"]) == ("orders", 0, 100)
    assert found["keys"] == [{"key": "hot", "records": KEYS[100:].count(b"hot")}]
    assert found["looked_at"] == {"records": 450, "end": 1_000}
    assert (found["is_measured"], found["limit"]) == (False, None)


def test_the_keys_of_a_wide_range_are_counted(
    cluster: FakeCluster, tmp_path: Path, capsys: Any
) -> None:
    slow = around(b"hot", HASH_SPACE)
    directory = checkpoint(tmp_path, slow)
    # From 900 on, all keys wait: those of other ranges are not looked at.
    waiting = [key for key in KEYS[100:] if slow.lo <= key_hash(key, 0)]
    text = slowest(cluster, directory, capsys)
    _, blank, table = text.partition("\n\nbehind, not necessarily slow: ")
    assert blank
    assert ": at offset 100, 800 behind\n" in table
    rows = table.splitlines()[3:]
    assert rows[0].startswith(f"  keys of its next {len(waiting)} records")
    assert rows[1].split()[:2] == ["hot", "450"]
    assert len(rows) == 1 + len(set(waiting))


def limited(
    position: int, parts: Sequence[HashRange], records: Sequence[int], stands: Sequence[int]
) -> BatchOffsets:
    """A batch whose ranges may read so many records, each from where it stands."""
    ahead = [
        Rectangle(OffsetRange(position, at), part)
        for part, at in zip(parts, stands, strict=True)
        if at > position
    ]
    limits = [
        RangeLimit(KeyRanges([part]), 1_000, n) for part, n in zip(parts, records, strict=True)
    ]
    return BatchOffsets({ORDERS: Progress.of(position, ahead)}, limits={ORDERS: tuple(limits)})


def test_of_ranges_at_one_offset_the_slow_one_comes_first(
    cluster: FakeCluster, tmp_path: Path, capsys: Any
) -> None:
    """One key is slow, in a range of its own; a wide range stands at the same offset."""
    lo, hi = key_hash(b"hot", 0), key_hash(b"hot", 0) + 1
    parts = [HashRange(0, lo), HashRange(lo, hi), HashRange(hi, HASH_SPACE)]
    batches = [
        limited(0, parts, [256, 256, 256], [0, 0, 0]),
        limited(50, parts, [4_000, 16, 9_000], [50, 50, 400]),
        limited(100, parts, [4_100, 16, 9_000], [100, 100, 900]),
    ]
    directory = write_checkpoint(tmp_path, batches, 1)
    found = json.loads(slowest(cluster, directory, capsys, "--json"))["slowest"]
    assert [each["h"] for each in found] == [[[lo, hi]], [[0, lo]]]
    assert [each["limit"] for each in found] == [16, 4_100]
    assert all(each["is_measured"] for each in found)
    assert found[0]["keys"] == [{"key": "hot", "records": 450}]
    text = slowest(cluster, directory, capsys)
    assert "(of the fastest range 9,000)\n" in text
    assert (
        f"orders-0, hash {lo}: at offset 100, 800 behind; 16 records, 562 times as long each\n"
    ) in text
    assert "at offset 100, 800 behind; 4,100 records, 2.2 times as long each\n" in text


def test_ranges_that_tie_are_shown_even_if_nothing_is_measured(
    cluster: FakeCluster, tmp_path: Path, capsys: Any
) -> None:
    parts = split(HashRange(0, HASH_SPACE), 8)
    stands = [100] * 7 + [900]
    batches = [limited(at, parts, [50] * 8, stands) for at in (0, 100)]
    text = slowest(cluster, write_checkpoint(tmp_path, batches, 1), capsys)
    assert "behind, not necessarily slow: the time of a record is not known\n" in text
    assert text.count(": at offset 100, 800 behind\n") == 5
    assert text.endswith("\n2 ranges more at the same offset\n")


def test_a_new_range_is_not_called_slow(cluster: FakeCluster, tmp_path: Path, capsys: Any) -> None:
    lo = key_hash(b"hot", 0)
    halves = [HashRange(0, lo), HashRange(lo, HASH_SPACE)]
    parts = [halves[0], HashRange(lo, lo + 1), HashRange(lo + 1, HASH_SPACE)]
    batches = [
        limited(0, halves, [256, 256], [0, 0]),
        limited(50, halves, [8_192, 70], [60, 50]),
        limited(100, parts, [9_000, 16, 4_000], [900, 100, 100]),
    ]
    text = slowest(cluster, write_checkpoint(tmp_path, batches, 1), capsys)
    first = text.split("behind, not necessarily slow", 1)[1]
    assert f"orders-0, hash {lo}: at offset 100, 800 behind\n" in first
    assert first.index(f"hash {lo}") < first.index("to 100.00 %"), "the narrower one first"


def test_no_range_is_behind(cluster: FakeCluster, tmp_path: Path, capsys: Any) -> None:
    directory = write_checkpoint(tmp_path, [BatchOffsets({ORDERS: Progress.at(500)})], 0)
    assert slowest(cluster, directory, capsys).endswith("\nno range is behind the others\n")
    assert json.loads(slowest(cluster, directory, capsys, "--json"))["slowest"] == []


def test_without_a_broker_there_is_nothing_to_read(tmp_path: Path, capsys: Any) -> None:
    directory = checkpoint(tmp_path, around(b"hot", 1))
    with pytest.raises(SystemExit, match="2"):
        main(["status", "--slowest", "--checkpoint", directory])
    assert "give --bootstrap-servers" in capsys.readouterr().err
