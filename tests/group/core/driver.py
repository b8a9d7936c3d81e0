"""What a dispatcher does with the deliveries of a consumer, over logs in memory."""

from collections.abc import Sequence
from itertools import islice

import pyarrow as pa

from kshare.core.hashing import ALL_HASHES, HashRange, KeyRanges, key_hash
from kshare.core.progress import Progress, Stripe, TopicPartition
from kshare.group.core import (
    deliveries,
    delivery,
    fetched_rows,
    handing_out,
    kept_rows,
    left_out,
    open_chunks,
    position,
)
from kshare.group.core.deliveries import Deliveries, MayCount
from kshare.group.core.handing_out import HandingOut
from kshare.group.core.left_out import LeftOut
from kshare.group.delivery_start import DeliveryStart
from kshare.group.message import ACKNOWLEDGED, NO_ROWS, Chunk, Message, Rows
from tests.support.groups import LOWER, T0, T1, UPPER

END = 1 << 40
MODULES = (deliveries, handing_out, fetched_rows, left_out)
OF_DELIVERY = (delivery, position, open_chunks, kept_rows)
LOW = [f"k{i}" for i in range(99) if key_hash(f"k{i}".encode(), 0) in LOWER][:2]
HIGH = [f"k{i}" for i in range(99) if key_hash(f"k{i}".encode(), 0) in UPPER][:2]
MIXED = [LOW[0], HIGH[0], LOW[1], HIGH[1]] * 3
OF_LOW, OF_HIGH = [0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]


def point(key: str) -> int:
    return key_hash(key.encode(), 0)


def owns(hashes: KeyRanges, key: str) -> bool:
    return hashes.holds(point(key))


def chunk_of(partition: TopicPartition, offsets: list[int], log: list[str]) -> Chunk:
    keys = pa.array([log[offset].encode() for offset in offsets], pa.binary())
    columns = [keys, pa.array(offsets, pa.int64())]
    return Chunk(partition, pa.record_batch(columns, ["key", "offset"]))


class Driver:
    """What a dispatcher does, with logs in memory: each partition's keys by offset."""

    def __init__(
        self,
        *logs: list[str],
        explicit: bool = False,
        is_transactional: bool = False,
    ) -> None:
        self.logs = dict(zip((T0, T1), logs, strict=False))
        self.started: dict[TopicPartition, DeliveryStart] = {}
        self.void: set[DeliveryStart] = set()
        self.may_count: MayCount = lambda _, start: start not in self.void
        self.parked: left_out.ParkedHashes | None = {}
        self.now = 0.0
        self.reading: dict[TopicPartition, tuple[tuple[Stripe, ...], int]] = {}
        self.state = Deliveries(LeftOut(), explicit=explicit, is_transactional=is_transactional)
        self.out = HandingOut(self.state, explicit=explicit)

    def start(self, *hashes: HashRange) -> None:
        """Claim some hashes of all partitions, and have it in place."""
        self.state.assign(dict.fromkeys(self.logs, KeyRanges(hashes) or ALL_HASHES))
        self.started = {partition: DeliveryStart.new(Progress.at(0)) for partition in self.logs}
        self.look()

    def look(self, *, continues: bool = False, begins: bool = False) -> None:
        self.state.refresh(
            self.started, self.now, self.parked, self.may_count, continues=continues, begins=begins
        )
        self.read_anew()

    def read_anew(self) -> None:
        for partition in list(self.state.fetched.anew):
            wanted = self.state.to_read(partition, END)
            self.reading.pop(partition, None)
            if wanted:
                self.reading[partition] = wanted, 0
            del self.state.fetched.anew[partition]

    def fetch(self) -> bool:
        """As :meth:`.Dispatcher.next_rows`."""
        if self.state.fetched.batch is not None:
            self.state.read_anew()
        self.read_anew()
        fetched, out = self.state.fetched, self.out
        if not fetched.rows.left:
            fetched.rows = out.begun(lambda _: None) or self._fetched() or NO_ROWS
        return fetched.rows.left > 0

    def fetch_batch(self) -> None:
        """The first records of the first partition are a batch in hand."""
        self.read_anew()
        partition, (wanted, _) = next(iter(self.reading.items()))
        self.reading[partition] = wanted, 4
        chunk = chunk_of(partition, [0, 1, 2, 3], self.logs[partition])
        self.state.fetched.batch = chunk, 4

    def pass_over(self) -> None:
        """As :meth:`.Dispatcher.pass_over`."""
        for partition, each in self.state.by_partition.items():
            if self.state.fetched.has_all_out(partition) and partition in self.reading:
                each.pass_to(self.reading[partition][1])

    def _fetched(self) -> Rows | None:
        self.state.fetched.partition = None
        if self.out.waits() or self.state.fetched.has_rest:
            return None
        for partition, (wanted, first) in self.reading.items():
            log = self.logs[partition]
            found = [at for at in range(first, len(log)) if _is_wanted(wanted, at, log[at])][:4]
            if found:
                self.reading[partition] = wanted, found[-1] + 1
                cut = [chunk_of(partition, part, log) for part in (found[:2], found[2:]) if part]
                self.state.fetched.begin(cut, found[-1] + 1)
                return self.out.begun(lambda _: None)
            self.reading[partition] = wanted, max(first, len(log))
        return None

    def take(self, most: int = 99) -> list[Message]:
        """What comes next, of all partitions, but for what was released a moment ago."""
        found: list[Message] = []
        released = self.state.left_out.released
        while len(found) < most and self.fetch():
            rows = self.state.fetched.rows.messages
            found += [
                message
                for message in islice(rows, most - len(found))
                if not (released.is_new(message.topic_partition) and message.is_released())
            ]
        return found

    def offsets(self, most: int = 99) -> list[int]:
        return [message.offset() for message in self.take(most)]

    def acknowledge(self, message: Message) -> None:
        message.chunk.acknowledged[message.row] = ACKNOWLEDGED

    def park(self, *keys: str) -> None:
        self.parked = {"orders": KeyRanges.of_hashes(point(key) for key in keys)} if keys else {}


def _is_wanted(stripes: Sequence[Stripe], offset: int, key: str) -> bool:
    return any(
        point(key) in stripe.hashes
        and any(
            first <= offset < end
            for first, end in zip(stripe.bounds[::2], stripe.bounds[1::2], strict=True)
        )
        for stripe in stripes
    )
