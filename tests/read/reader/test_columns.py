"""A reader of some columns delivers the same records, and ends where a reader of all ends."""

from itertools import combinations
from typing import Any

import pytest

import kshare
from kshare.core.hashing import WHOLE, HashRange, split
from kshare.core.slice_end import SliceEnd
from kshare.options.model import SOURCE_COLUMNS
from tests.support.batches import Rec, batch_of
from tests.support.scripted import ScriptedLog, read_slice

OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1"}
CHOICES = [",".join(names) for size in (1, 2) for names in combinations(SOURCE_COLUMNS, size)]


def rows_and_end(
    log: ScriptedLog, hashes: HashRange, limit: int | None, **options: str
) -> tuple[list[dict[str, Any]], SliceEnd]:
    """What a reader delivers, and where it says that it ended."""
    slice_ = kshare.Slice("t", 0, (kshare.Rectangle(kshare.OffsetRange(3, 90), hashes),))
    ends: list[SliceEnd] = []
    given = OPTIONS | options
    found = read_slice(log, slice_, given, max_records=limit, on_end=ends.append)
    rows = [row for batch in found for row in batch.to_pylist()]
    return rows, ends[0]


@pytest.mark.parametrize("limit", [None, 1, 17])
@pytest.mark.parametrize("hashes", [WHOLE, split(WHOLE, 2)[1]])
def test_some_columns(hashes: HashRange, limit: int | None) -> None:
    batches = []
    for base in range(0, 100, 20):
        records = [Rec(b"k%d" % i, b"v", 2 * i, headers=((b"h", b"1"),)) for i in range(10)]
        batches.append(batch_of(records, base=base, last_delta=19).encode())
    log = ScriptedLog(batches, response_bytes=800)
    rows, end = rows_and_end(log, hashes, limit, includeHeaders="true")
    assert end.records == len(rows) > 0
    assert end.sample
    for names in CHOICES:
        some, its_end = rows_and_end(log, hashes, limit, columns=names)
        assert some == [{name: row[name] for name in names.split(",")} for row in rows]
        assert its_end == end


def test_some_keys() -> None:
    batches = []
    for base in range(0, 100, 20):
        records = [Rec(b"k%d" % (i % 5), b"v", 2 * i) for i in range(10)]
        batches.append(batch_of(records, base=base, last_delta=19).encode())
    log = ScriptedLog(batches, response_bytes=800)
    rows, end = rows_and_end(log, WHOLE, None)
    wanted = [row for row in rows if row["key"] in {b"k1", b"k3"}]
    some, its_end = rows_and_end(log, WHOLE, None, keys='["k3", "k1"]')
    assert some == wanted
    assert (its_end.end, its_end.records) == (end.end, len(wanted))
    first, its_end = rows_and_end(log, WHOLE, 5, keys='["k3", "k1"]')
    assert first == wanted[:5]
    assert (its_end.end, its_end.records) == (wanted[4]["offset"] + 1, 5)
