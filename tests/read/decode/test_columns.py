"""Some of the columns, in any order: what they hold is what all of them hold."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import WHOLE, HashRange, split
from kshare.options.model import SOURCE_COLUMNS
from kshare.read.decode.columns import COLUMNS, Columns, schema
from kshare.read.decode.records import DEFAULT_COLUMNS, Decoder
from tests.support.batches import CODECS, Batch, Rec, batch_of, java_headers, numbered
from tests.support.decoding import FEW, indexed, record_batches, slice_of
from tests.support.guards import guarded_columns

NAMES = st.lists(st.sampled_from(list(COLUMNS)), min_size=1, unique=True)
SMALL = st.binary(max_size=5)
RECORDS = st.builds(
    Rec,
    key=st.none() | SMALL,
    value=st.none() | st.binary(max_size=40),
    time_delta=st.integers(0, 9),
    headers=st.lists(st.tuples(SMALL, st.none() | SMALL), max_size=2).map(tuple),
)


def test_the_names_are_those_of_the_options() -> None:
    assert tuple(COLUMNS) == SOURCE_COLUMNS
    assert SOURCE_COLUMNS[:-1] == DEFAULT_COLUMNS


def row_of(batch: Batch, record: Rec) -> dict[str, object]:
    """What a record is as a row, by the twin."""
    entries = [{"key": k, "value": v} for k, v in java_headers(record.headers)]
    return {
        "key": record.key,
        "value": record.value,
        "topic": "t",
        "partition": 3,
        "offset": batch.base + record.delta,
        "timestamp": (batch.first_timestamp + record.time_delta) * 1000,
        "timestampType": 0,
        "headers": entries or None,
    }


@given(
    names=NAMES,
    records=st.lists(RECORDS, max_size=12).map(numbered),
    codec=st.sampled_from(CODECS),
    hashes=st.sampled_from([WHOLE, *split(WHOLE, 2)]),
    rows=st.integers(1, 13),
    max_bytes=st.sampled_from([1, 30, 1 << 20]),
    limit=st.none() | st.integers(1, 13),
)
def test_a_choice_of_columns_is_that_choice_of_all_columns(
    names: list[str],
    records: list[Rec],
    codec: str,
    hashes: HashRange,
    rows: int,
    max_bytes: int,
    limit: int | None,
) -> None:
    """In their order, and the same rows with the same end, however many make a record batch."""
    batch = batch_of(records, base=7, codec=codec)
    index = indexed([batch])
    with guarded_columns():
        decoder = Decoder(
            slice_of(hashes=hashes),
            columns=names,
            with_keys=True,
            max_rows=rows,
            max_bytes=max_bytes,
        )
        delivered = list(decoder.decode(index, limit=limit))
    everything = Decoder(slice_of(hashes=hashes), columns=list(COLUMNS))
    full = pa.Table.from_batches(record_batches(everything, index), schema(list(COLUMNS)))
    wanted = full.slice(0, limit)
    found = pa.Table.from_batches([some.batch for some in delivered], schema(names))
    found.validate(full=True)
    assert found.equals(wanted.select(names), check_metadata=True)
    numbers = wanted["offset"].to_pylist()
    ends = [some.end for some in delivered]
    counts = [some.batch.num_rows for some in delivered]
    assert ends == [numbers[sum(counts[: n + 1]) - 1] + 1 for n in range(len(counts))]
    keys = [some.key_at(row) for some in delivered for row in range(some.batch.num_rows)]
    assert keys == list(zip(wanted["key"].to_pylist(), numbers, strict=True))
    expected = [row_of(batch, record) for record in records]
    full = full.set_column(5, "timestamp", full["timestamp"].cast(pa.int64()))
    delivered_rows = set(full["offset"].to_pylist())
    assert full.to_pylist() == [row for row in expected if row["offset"] in delivered_rows]


@pytest.mark.parametrize("names", [[], ["key", "key"], ["key", "nothing"], ["Key"]])
def test_names_that_are_no_choice(names: Sequence[str]) -> None:
    with pytest.raises(ValueError, match="wanted some of key, value"):
        Decoder(slice_of(), columns=names)


def test_a_batch_of_headers_alone() -> None:
    (batch,) = record_batches(Decoder(slice_of(), columns=["headers"]), indexed([batch_of(FEW)]))
    assert [row["headers"] is not None for row in batch.to_pylist()] == [
        bool(r.headers) for r in FEW
    ]


@pytest.mark.parametrize("name", list(COLUMNS))
def test_nothing_else_is_built(name: str) -> None:
    """A column that is not wanted has no memory: not at the kernel's side, nor in the batch."""
    size = 100_000
    record = Rec(b"k" * size, b"v" * size, headers=((b"h" * size, b""),))
    index = indexed([batch_of([record], codec="lz4")])
    before = pa.total_allocated_bytes()
    (batch,) = record_batches(Decoder(slice_of(), columns=[name]), index)
    held = pa.total_allocated_bytes() - before
    assert batch.num_rows == 1
    assert (held > size) == (name in {"key", "value", "headers"})
    columns = Columns("t", 3, names=[name], with_keys=False, max_rows=9, max_bytes=9)
    columns.begin(9)
    assert [*columns._repeated, *columns._fixed, *columns._binaries] == [name]


def test_room_is_that_of_the_rows_that_come() -> None:
    """A short record batch before a long one takes no room from it, and a huge row gives none."""
    columns = Columns("t", 3, names=["key"], with_keys=False, max_rows=100, max_bytes=1 << 30)

    def read(rows: int, used: int) -> int:
        """The room at first for a record batch of some rows, which then takes some bytes."""
        columns.begin(rows)
        room = int(columns.state.keys.capacity)
        columns.state.keys.needed = used
        if used > room:
            columns.reserve()
        columns.state.rows, columns.state.keys.used = rows, used
        ends = np.frombuffer(columns._binaries["key"]._offsets, np.int32)
        ends[:] = 0
        ends[rows] = used
        assert columns.finish().batch.num_rows == rows
        return room

    read(100, 500_000)
    assert read(2, 10_000) >= 10_000
    assert read(100, 500_000) >= 500_000
    read(1, 1_000_000)
    assert read(100, 500_000) < 1_200_000
    assert 500_000 <= read(100, 500_000) < 600_000
