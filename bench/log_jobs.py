"""What the individual commit log costs, without a broker: bytes, and the time to restore a group."""

import time

import numpy as np

from kshare.core.hashing import ALL_HASHES, WHOLE
from kshare.core.progress import Progress, Stripe, TopicPartition
from kshare.group.protocol.commit_log.commit import blocks_to_write
from kshare.group.protocol.commit_log.group_reader import GroupReader
from kshare.group.protocol.commit_log.log import GroupLog
from kshare.group.protocol.commit_log.record_codec import encode
from kshare.group.protocol.commit_log.records import Claim, Record

GAPS = 1_000_000
EVERY = 7
"""On average, one record of so many is a gap."""

_PARTITION = TopicPartition("orders", 0)


def million_gaps() -> Progress:
    """A partition of which a million records, at random, are not processed."""
    steps = np.random.default_rng(7).integers(2, 2 * EVERY - 1, GAPS)
    gaps = np.cumsum(steps)
    bounds = np.stack([gaps[:-1] + 1, gaps[1:]], 1).ravel()
    return Progress.of_stripes(int(gaps[0]), [Stripe(WHOLE, tuple(bounds.tolist()))])


def measure(runs: int) -> list[tuple[str, str, str, bool]]:
    """Name, figure, target, and whether it is met."""
    done = million_gaps()
    log = GroupLog("billing")
    claim: Record = Claim(_PARTITION, "m#1", ALL_HASHES)
    blocks = blocks_to_write(_PARTITION, log.of(_PARTITION), "m#1", ALL_HASHES, done)
    records = [encode("billing", record) for record in [claim, *blocks]]
    size = sum(len(key) + len(value) for key, value in records) / GAPS
    seconds = min(_restored(records, done) for _ in range(max(runs, 2)))
    return [
        ("log: bytes a gap, a million gaps", f"{size:.2f}", "<= 3", size <= 3),
        ("log: a group with a million gaps restored", f"{seconds:.2f} s", "< 1 s", seconds < 1),
    ]


def _restored(records: list[tuple[bytes, bytes]], done: Progress) -> float:
    began = time.perf_counter()
    log = GroupLog("billing")
    reader = GroupReader(TopicPartition("__individual_commit_offsets", 0), log)
    for offset, (key, value) in enumerate(records):
        reader.apply(offset, key, value)
    reader.settle()
    progress = log.of(_PARTITION).progress(done.stable)
    seconds = time.perf_counter() - began
    assert progress == done
    return seconds
