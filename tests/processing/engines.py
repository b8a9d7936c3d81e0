"""An engine with an edge in memory, for tests."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kshare.core.progress import TopicPartition
from kshare.dead_letters.record import Source
from kshare.processing import Outcome, Processor, Record, Retry, Status
from kshare.processing.engine import Engine
from tests.support.clock import WAIT_S

PARTITION = TopicPartition("orders", 0)
SOON = Retry(attempts=3, first=0.001, most=0.01)


class Rows:
    topic_partition = PARTITION

    def column(self, name: str) -> list[Any]:
        raise AssertionError(name)


class MemoryEdge:
    """Keeps what an engine asks for.

    Attributes:
        left: Seconds for which handlers may be called.
        refuses: Says of a record why its letter cannot be written, or its key not be parked.
    """

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.letters: list[Record] = []
        self.sequences: list[Record] = []
        self.parked: list[Record] = []
        self.given_back: list[Record] = []
        self.remembered: dict[int, int] = {}
        self.refuses: Callable[[Record], Exception | None] = lambda record: None
        self.left = math.inf

    def seconds_left(self) -> float:
        return self.left

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes += outcomes

    async def write_letter(self, record: Record, error: BaseException | None) -> None:
        fault = self.refuses(record)
        if fault is not None:
            raise fault
        self.letters.append(record)

    async def begin_sequence(self, record: Record, error: BaseException | None) -> None:
        self.sequences.append(record)

    async def park(self, record: Record, error: BaseException | None) -> None:
        self.parked.append(record)

    def give_back(self, firsts: Sequence[Record]) -> None:
        self.given_back += firsts

    def take_again(self, record: Record) -> None:
        self.given_back = [each for each in self.given_back if each.offset != record.offset]

    def remember(self, record: Record) -> None:
        self.remembered[record.offset] = record.failures

    async def keep_attempts(self) -> None:
        pass

    def forget(self, record: Record, *, is_parked: bool) -> None:
        self.remembered.pop(record.offset, None)

    def offsets(self, status: Status = Status.DONE) -> list[int]:
        return [each.record.offset for each in self.outcomes if each.status is status]


def records_of(
    processor: Processor, keys: Sequence[bytes | None], source: Source | None = None
) -> list[Record]:
    rows = source or Rows()
    return [processor.record(rows, at, at, key, b"%d" % at) for at, key in enumerate(keys)]


async def comes(is_so: Callable[[], bool]) -> None:
    """Wait until something is so that an event loop does."""
    async with asyncio.timeout(WAIT_S):
        while not is_so():  # noqa: ASYNC110 - nobody sets an event
            await asyncio.sleep(0.001)


def handle(
    processor: Processor,
    keys: Sequence[bytes | None],
    edge: MemoryEdge | None = None,
    *,
    until: Callable[[Engine], bool] | None = None,
    drain: float = 1.0,
    source: Source | None = None,
    gives_back: bool = False,
) -> tuple[MemoryEdge, Engine]:
    """Handle records until nothing is left or it has failed, or until something else is so."""
    edge = edge or MemoryEdge()

    async def run() -> Engine:
        engine = processor.engine(edge, gives_back=gives_back)
        engine.offer(records_of(processor, keys, source))
        if until is None:
            await engine.loop.wait(lambda: engine.is_idle or engine.failure is not None, WAIT_S)
        else:
            await comes(partial(until, engine))
        await engine.drain(drain)
        await engine.close()
        return engine

    return edge, asyncio.run(run())


def assert_in_order(edge: MemoryEdge) -> None:
    by_key = defaultdict(list)
    for each in edge.outcomes:
        by_key[each.record.raw_key].append(each.record.offset)
    assert all(offsets == sorted(offsets) for offsets in by_key.values())


async def nothing(record: Record) -> None:
    pass
