"""What the tests of decoding share: records, and short ways to decode responses with them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from kshare.core.hashing import WHOLE, HashRange
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice
from kshare.read.decode import records
from kshare.read.decode.records import Decoder, index_batches
from tests.support.batches import Batch, Rec, batch_of, numbered

FEW = numbered(
    [
        Rec(b"k1", b"v1"),
        Rec(None, b"no key"),
        Rec(b"k2", None, time_delta=7),
        Rec(b"", b"", headers=((b"a", b"1"), (b"b", None))),
        Rec(b"k3" * 100, b"v" * 1000, headers=((b"", b""),)),
    ]
)


def slice_of(start: int = 0, end: int = 1 << 40, hashes: HashRange = WHOLE) -> Slice:
    return Slice("t", 3, (Rectangle(OffsetRange(start, end), hashes),))


def indexed(batches: Iterable[Batch | bytes], fetch_offset: int = 0) -> records.BatchIndex:
    data = b"".join(b if isinstance(b, bytes) else b.encode() for b in batches)
    return index_batches(data, topic="t", partition=3, fetch_offset=fetch_offset)


def record_batches(
    decoder: Decoder, index: records.BatchIndex, aborted: Sequence[tuple[int, int]] = ()
) -> Iterator[pa.RecordBatch]:
    """What a decoder makes of a response."""
    for rows in decoder.decode(index, aborted):
        yield rows.batch


def decode(
    *batches: Batch | bytes,
    slice_: Slice | None = None,
    fetch_offset: int = 0,
    aborted: Sequence[tuple[int, int]] = (),
    **options: Any,
) -> list[dict[str, Any]]:
    """The rows of a response."""
    decoder = Decoder(slice_ or slice_of(), **options)
    found = list(record_batches(decoder, indexed(batches, fetch_offset), aborted))
    for batch in found:
        batch.validate(full=True)
        assert batch.num_rows
    return [row for batch in found for row in batch.to_pylist()]


def offsets(rows: Iterable[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


def simple(base: int, count: int, **fields: Any) -> Batch:
    return batch_of(
        numbered([Rec(b"k%d" % (base + i), b"v") for i in range(count)]), base=base, **fields
    )
