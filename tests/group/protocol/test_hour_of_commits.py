"""An hour of commits: what the log holds is bounded by the gaps, not by the number of commits."""

import heapq
import random

import pytest

from kshare.core.hashing import ALL_HASHES, WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle
from kshare.group.protocol.commit_log.log import GroupLog
from kshare.group.protocol.commit_log.record_codec import encode, encode_key
from kshare.group.protocol.commit_log.records import STRETCH, Claim, Key, Record, Reset, key_of
from kshare.group.protocol.commit_log.start import Anchor, Primary
from kshare.group.protocol.owners.actions import Delete, FetchPrimary, Write, WritePrimary
from kshare.group.protocol.owners.owner import Owner
from tests.support.groups import T0

SECONDS, BETWEEN, RATE = 3_600, 5, 300
SLOW, LONGEST = 0.02, 60.0


class Hour:
    """A member that commits every five seconds, and the log as compaction leaves it."""

    def __init__(self) -> None:
        self.log = GroupLog("billing")
        self.left: dict[Key, bytes] = {}  # what compaction has left
        self.appended = 0
        self.primary = Primary(0, Anchor(1, 0))
        self.owner = Owner(Claim(T0, "m#1", ALL_HASHES))
        self._append(Reset(T0, 1, 0))

    def _append(self, record: Record) -> None:
        key = key_of(record)
        self.left[key] = encode("billing", record)[1]
        self.log.apply(self.log.end, key, record)
        self.appended += 1

    def run(self) -> None:
        """Do all that the owner wants."""
        while actions := self.owner.actions(self.log.of(T0), self.log.end):
            for action in actions:
                match action:
                    case Write(records):
                        for record in records:
                            self._append(record)
                    case Delete(keys):
                        for key in keys:
                            self.left.pop(key, None)
                            self.log.apply(self.log.end, key, None)
                            self.appended += 1
                    case FetchPrimary():
                        self.owner.primary_read(self.primary, self.log.end)
                    case WritePrimary(offset, anchor):
                        self.primary = Primary(offset, anchor)
                        self.owner.primary_written()
                    case _:
                        raise AssertionError(action)

    def commit(self, processed: list[Rectangle]) -> None:
        self.owner.processed(processed)
        self.owner.begin_commit(self.log.of(T0))
        self.run()
        assert self.owner.commit is None

    @property
    def bytes(self) -> int:
        return sum(len(encode_key("billing", key)) + len(v) for key, v in self.left.items())


@pytest.mark.long
def test_the_log_is_bounded_by_gaps() -> None:
    chance = random.Random(7)
    hour = Hour()
    hour.run()
    slow: list[tuple[float, int]] = []
    largest = 0
    for now in range(0, SECONDS, BETWEEN):
        first, last = now * RATE, (now + BETWEEN) * RATE
        late = {offset for offset in range(first, last) if chance.random() < SLOW}
        for offset in late:
            heapq.heappush(slow, (now + chance.uniform(BETWEEN, LONGEST), offset))
        done = [offset for offset in range(first, last) if offset not in late]
        while slow and slow[0][0] <= now:
            done.append(heapq.heappop(slow)[1])
        hour.commit([Rectangle(OffsetRange(offset, offset + 1), WHOLE) for offset in done])
        waiting = [offset for _, offset in slow]
        expected = Progress.of(0, [Rectangle(run, WHOLE) for run in _runs(last, sorted(waiting))])
        assert hour.log.of(T0).progress() == expected
        stretches = (last - expected.stable) // STRETCH + 2
        assert len(hour.left) <= stretches + 3  # and the claim, the reset, the stable offset
        assert hour.bytes <= 3 * len(waiting) + 200 * len(hour.left)
        largest = max(largest, hour.bytes)
    assert hour.appended > SECONDS // BETWEEN
    print(f"{hour.appended:,} records appended, {largest:,} bytes left at most")


def _runs(end: int, gaps: list[int]) -> list[OffsetRange]:
    """The offsets below an end without some of them."""
    starts, ends = [0, *(gap + 1 for gap in gaps)], [*gaps, end]
    return [OffsetRange(a, b) for a, b in zip(starts, ends, strict=True) if a < b]
