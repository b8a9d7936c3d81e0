"""What a process that multiprocessing starts runs: it has nothing of its parent's but arguments."""

import os

from kshare.core.tasks import PlannedSlice
from kshare.options import SourceOptions
from kshare.read.reader.read_slice import read_slices


def read(options: SourceOptions, planned: PlannedSlice) -> tuple[int, list[tuple[bytes, int]]]:
    """The process, and the keys and offsets of a slice."""
    rows = [row for batch in read_slices([planned], options, {}) for row in batch.to_pylist()]
    return os.getpid(), [(row["key"], row["offset"]) for row in rows]
