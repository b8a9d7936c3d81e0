"""Any run of a twin of Spark 4.0's ``MicroBatchExecution``, killed between any two of its calls.

Laws: each end that Spark writes to its offset log was asked for from where Spark's batch starts,
when all that is logged was committed, so that an open batch is over (``realTime``). An end moves as
soon as there are new records, or at the next trigger.
"""

from collections.abc import Generator

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from spark_plugin.plain_reader import LoggedEnd
from tests.support.effort import examples


class Process:
    """A run of the query, with a source that reads numbers, and at most ``limit`` in a batch."""

    def __init__(self, spark: "Spark", initial: int, limit: int) -> None:
        self.spark, self.initial, self.limit = spark, initial, limit
        self.known: LoggedEnd[int] = LoggedEnd(lambda: initial, "Spark 4.0.2")
        self.asked_from: int | None = None  # for the newest answer
        self.idle = 0

    def end_after(self, start: int) -> int:
        self.asked_from = start
        spark = self.spark
        assert spark.done == len(spark.offsets)
        assert start == (spark.offsets[-1] if spark.offsets else self.initial)
        return max(start, min(self.spark.produced, start + self.limit))

    def steps(self) -> Generator[None]:
        """Make Spark's calls, one a step."""
        spark, start = self.spark, None
        if spark.offsets:
            start = spark.offsets[-1]
            self.known.planned(start, start)
            yield
            if spark.done < len(spark.offsets):
                before = spark.offsets[-2] if len(spark.offsets) > 1 else None
                yield from self.run_batch(before, start)
        while True:
            for _ in range(spark.asks):
                end = self.known.next_end(self.end_after)
                yield
            if start is not None and start == end and not spark.needs_empty_batch:
                self.idle = self.idle + 1 if spark.produced > start else 0
                continue
            assert end == start or self.asked_from == (self.initial if start is None else start)
            self.idle = 0
            spark.offsets.append(end)
            yield
            if len(spark.offsets) > 1:
                self.known.committed(spark.offsets[-2])
                yield
            yield from self.run_batch(start, end)
            start = end

    def run_batch(self, start: int | None, end: int) -> Generator[None]:
        if start is None:
            self.known.initial_asked()
            yield
            start = self.initial
        elif start == end:
            self.spark.done = len(self.spark.offsets)
            return
        for _ in range(self.spark.plans):
            self.known.planned(start, end)
            yield
        self.spark.frames.append((start, end))
        self.spark.done = len(self.spark.offsets)
        yield


class Spark(RuleBasedStateMachine):
    """What outlives a process: the logs, and what the source has."""

    numbers = st.integers(0, 5)

    def __init__(self) -> None:
        super().__init__()
        self.produced = 0
        self.offsets: list[int] = []  # the offset log
        self.done = 0  # batches in the commit log
        self.asks, self.plans, self.needs_empty_batch = 1, 1, False
        self.frames: list[tuple[int, int]] = []  # of this process

    @initialize(initial=numbers, limit=st.integers(1, 4), plans=st.integers(0, 1))
    def begin(self, initial: int, limit: int, plans: int) -> None:
        self.start(initial, limit, plans)

    @rule(initial=numbers, limit=st.integers(1, 4), plans=st.integers(0, 1))
    def start(self, initial: int, limit: int, plans: int) -> None:
        """Kill the process, and start another, with other options."""
        self.frames.clear()
        self.plans = plans
        self.process = Process(self, initial, limit)
        self.calls = self.process.steps()

    @rule(count=st.integers(1, 4))
    def call(self, count: int) -> None:
        for _ in range(count):
            next(self.calls)

    @rule(count=st.integers(1, 5))
    def produce(self, count: int) -> None:
        self.produced += count

    @rule(asks=st.integers(1, 2), plans=st.integers(0, 2), empty=st.booleans())
    def change(self, asks: int, plans: int, empty: bool) -> None:
        """From now on Spark asks more often, the optimizer empties batches, or state needs one."""
        self.asks, self.plans, self.needs_empty_batch = asks, plans, empty

    @rule(number=st.integers(0, 9))
    def plan_again(self, number: int) -> None:
        """Use a DataFrame of a batch of this run again."""
        if number < len(self.frames):
            self.process.known.planned(*self.frames[number])

    @invariant()
    def moves(self) -> None:
        if hasattr(self, "process"):
            assert self.process.idle <= 1


TestSpark = Spark.TestCase
TestSpark.settings = examples(150, stateful_step_count=40)
