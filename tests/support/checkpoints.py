"""Checkpoint directories as Spark writes them."""

import json
from collections.abc import Sequence
from pathlib import Path

from kshare.core.checkpoint import BatchOffsets, encode

SourceOffsets = BatchOffsets | str
"""The offsets of one source: of kshare, or a line of any source."""


def write_checkpoint(
    folder: Path,
    batches: Sequence[SourceOffsets | Sequence[SourceOffsets]],
    committed: int | None,
    version: str = "v1",
) -> str:
    """A checkpoint: for each batch its offsets, or the offsets of several sources."""
    (folder / "offsets").mkdir(exist_ok=True)
    (folder / "commits").mkdir(exist_ok=True)
    for number, batch in enumerate(batches):
        sources = [batch] if isinstance(batch, BatchOffsets | str) else batch
        lines = [one if isinstance(one, str) else json.dumps(encode(one)) for one in sources]
        text = "\n".join([version, '{"batchWatermarkMs":0}', *lines])
        (folder / "offsets" / str(number)).write_text(text)
        (folder / "offsets" / f".{number}.crc").write_bytes(b"\0")
        (folder / "offsets" / f".{number}.1f-2.tmp").write_text("half")
    for number in range(-1 if committed is None else committed, -1, -1):
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return str(folder)
