"""From the slowest range to its keys, on a mock cluster."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kshare.cli import main
from kshare.core.checkpoint import BatchOffsets
from kshare.core.hashing import ALL_HASHES, HASH_SPACE, HashRange, key_hash
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
    found = json.loads(slowest(cluster, directory, capsys, "--json"))["slowest"]
    assert (found["topic"], found["partition"], found["position"]) == ("orders", 0, 100)
    assert found["keys"] == [{"key": "hot", "records": KEYS[100:].count(b"hot")}]
    assert found["looked_at"] == {"records": 450, "end": 1_000}


def test_the_keys_of_a_wide_range_are_counted(
    cluster: FakeCluster, tmp_path: Path, capsys: Any
) -> None:
    slow = around(b"hot", HASH_SPACE)
    directory = checkpoint(tmp_path, slow)
    # From 900 on, all keys wait: those of other ranges are not looked at.
    waiting = [key for key in KEYS[100:] if slow.lo <= key_hash(key, 0)]
    text = slowest(cluster, directory, capsys)
    _, _, table = text.partition("furthest behind: orders-0, ")
    assert f"the keys of its next {len(waiting)} records, below offset 1,000:" in table
    first = table.splitlines()[2].split()
    assert first[:2] == ["hot", "450"]
    assert len(table.splitlines()) == 2 + len(set(waiting))


def test_no_range_is_behind(cluster: FakeCluster, tmp_path: Path, capsys: Any) -> None:
    directory = write_checkpoint(tmp_path, [BatchOffsets({ORDERS: Progress.at(500)})], 0)
    assert slowest(cluster, directory, capsys).endswith("\nno range is behind the others\n")
    assert json.loads(slowest(cluster, directory, capsys, "--json"))["slowest"] is None


def test_without_a_broker_there_is_nothing_to_read(tmp_path: Path, capsys: Any) -> None:
    directory = checkpoint(tmp_path, around(b"hot", 1))
    with pytest.raises(SystemExit, match="2"):
        main(["status", "--slowest", "--checkpoint", directory])
    assert "give --bootstrap-servers" in capsys.readouterr().err
