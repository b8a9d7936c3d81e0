"""The sink without Spark and Kafka: exactly-once under crashes at every step."""

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.errors import CheckpointVersionError, KafkaError
from kshare.kafka.compacted_topic import Row
from kshare.kafka.topics import LEDGER_TOPIC
from kshare.options.sink import TRANSACTION_TIMEOUT_MS, SinkOptions, parse_sink_options
from kshare.query.produce import Attempt, Prepared
from kshare.query.produce.coordinator import Coordinators
from kshare.query.produce.decided import commit_decided
from kshare.query.produce.driver import Batch
from kshare.query.produce.ledger import Ledger
from kshare.query.produce.ledger_state import (
    RUNS_MAX,
    Entry,
    State,
    check_repetition,
    decode,
    encode,
    is_written,
    next_state,
)
from kshare.query.produce.model import Transaction
from tests.support.effort import examples

# -- the ledger ------------------------------------------------------------------------------

entries = st.builds(Entry, *[st.integers(0, 2**31)] * 5)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


@st.composite
def any_state(draw: st.DrawFn) -> State:
    """A state as queries write it."""
    runs = draw(st.lists(texts, min_size=1, max_size=3))
    made = tuple(draw(st.lists(entries, max_size=3)))
    return State(
        draw(st.integers(-1, 10**9)),
        runs[-1],
        tuple(runs),
        made,
        not made or draw(st.booleans()),
        draw(st.sampled_from(["", "t"])),
        draw(st.sampled_from(["kshare", "team-a"])),
    )


states = any_state()


@examples(50)
@given(states)
def test_a_state_is_read_as_it_was_written(state: State) -> None:
    assert decode(encode(state)) == state


def test_the_golden_state() -> None:
    state = State(7, "r2", ("r1", "r2"), (Entry(0, 1, 4000, 2, 10),))
    told = (
        b'{"v":1,"batch":7,"run":"r2","runs":["r1","r2"],"ended":false,'
        b'"transactions":[[0,1,4000,2,10]]}'
    )
    assert encode(state) == told
    assert decode(told) == state
    # Earlier versions, which know no topic, pass over it.
    assert encode(replace(state, topic="t")) == told[:-1] + b',"topic":"t"}'


def test_a_later_version_and_other_bytes_are_refused() -> None:
    with pytest.raises(CheckpointVersionError, match="version 999"):
        decode(b'{"v": 999}')
    for told in (b"", b"[]", b"{}", b'{"v":1}', b"\xff"):
        with pytest.raises(KafkaError, match="no state of a sink"):
            decode(told)


GOOD: dict[str, Any] = {
    "v": 1,
    "batch": 7,
    "run": "r",
    "runs": ["r"],
    "ended": True,
    "transactions": [[0, 0, 1, 0, 3]],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch", 1e400),
        ("batch", 7.0),
        ("batch", True),
        ("batch", -2),
        ("batch", 10**400),
        ("run", 7),
        ("run", "s"),
        ("runs", "r"),
        ("runs", []),
        ("runs", ["r"] * (RUNS_MAX + 1)),
        ("runs", [[]]),
        ("ended", "no"),
        ("transactions", {}),
        ("transactions", ["12345"]),
        ("transactions", [[0, 0, 1, 0]]),
        ("transactions", [[0, 0, 1, 0, -3]]),
        ("transactions", [[0, 0, 1, 0, 1e400]]),
        ("topic", 1),
        ("prefix", None),
    ],
)
def test_a_state_of_others_is_read_by_its_types(name: str, value: Any) -> None:
    assert decode(json.dumps(GOOD).encode()).batch == 7
    row = Row(3, 41, b"q", b"")
    with pytest.raises(
        KafkaError, match=r"topic own, partition 3, offset 41, .* no state"
    ) as wrong:
        decode(json.dumps({**GOOD, name: value}).encode(), "own", row)
    assert (wrong.value.topic, wrong.value.partition, wrong.value.offset) == ("own", 3, 41)


def test_a_state_is_bounded_before_it_is_parsed() -> None:
    for bomb in (b"[" * 10**6, b'{"v":' + b"[" * 10**5, b'"' + b"a" * (8 << 20) + b'"'):
        with pytest.raises(KafkaError, match="no state of a sink"):
            decode(bomb)
    open_ = json.dumps({**GOOD, "ended": False, "transactions": []}).encode()
    with pytest.raises(KafkaError, match="a decision without transactions"):
        decode(open_)


def test_judgement() -> None:
    state = next_state(next_state(None, "r1", 4, ()), "r2", 5, ())
    assert not is_written(None, "r1", 0)
    assert not is_written(state, "r2", 6)
    assert is_written(state, "r3", 5)
    with pytest.raises(KafkaError, match="batch 6 is not written: the query was started again"):
        is_written(state, "r1", 6)
    with pytest.raises(KafkaError, match="put back to an older state"):
        is_written(state, "r3", 4)


def test_rows_that_cannot_be_the_same_ones_are_no_repetition() -> None:
    state = next_state(None, "r1", 5, (Entry(0, 0, 1, 0, 1_200), Entry(1, 0, 1, 0, 34)), "t")
    for topic in ("t", ""):
        check_repetition(state, 1_234, topic)
    check_repetition(state, 0, "t")
    check_repetition(replace(state, topic=""), 1_234, "other")
    with pytest.raises(KafkaError, match=r"batch 4 was written, but not by which .*=4 drops"):
        check_repetition(state.retract(), 7, "t")
    check_repetition(state.retract(), 0, "t")
    with pytest.raises(KafkaError, match=r"batch 5 .* with 1,234 rows, and now has 1,235\."):
        check_repetition(state, 1_235, "t")
    with pytest.raises(KafkaError, match="to topic t, and is now to be written to other"):
        check_repetition(state, 1_234, "other")


def test_old_runs_are_forgotten_not_the_last_one() -> None:
    state = None
    for number in range(RUNS_MAX + 5):
        state = next_state(state, f"r{number}", number, ())
    assert state is not None
    assert len(state.runs) == RUNS_MAX
    assert state.runs[-1] == state.run


# -- crashes at every step -------------------------------------------------------------------


class Crash(BaseException):
    """The driver was killed."""


@dataclass
class Kafka:
    """Transactions and the ledger, in memory; ``steps`` until something happens."""

    transactions: dict[str, dict[str, Any]] = field(default_factory=dict)
    told: bytes | None = None
    owner: int = 0
    steps: int = -1
    after: bool = False
    event: Callable[[], None] | None = None
    forgotten: Counter[int] = field(default_factory=Counter)  # rows of ids that have expired

    def step(self, effect: Callable[[], Any]) -> Any:
        self.steps -= 1
        if self.steps == 0 and not self.after:
            self._happen()
        result = effect()
        if self.steps == 0 and self.after:
            self._happen()
        return result

    def _happen(self) -> None:
        event, self.event = self.event, None
        if event is None:
            raise Crash
        event()

    def begin(self, name: str, rows: list[int]) -> Transaction:
        old = self.transactions.get(name)
        epoch = 0 if old is None else old["epoch"] + 1
        if old is not None and old["state"] == "open":
            self._end(old, "aborted")
        rows_before = [] if old is None else old["visible"]
        new = {"epoch": epoch, "state": "open", "rows": rows, "visible": rows_before}
        self.transactions[name] = new
        return Transaction(name, 1, epoch, "t", 0, len(rows))

    def time_out(self) -> None:
        for transaction in self.transactions.values():
            if transaction["state"] == "open":
                self._end(transaction, "aborted")
                transaction["epoch"] += 1

    def expire(self) -> None:
        """Forget all transactional ids, as after a week; what was committed stays."""
        self.time_out()
        self.forgotten = self.visible()
        self.transactions.clear()

    def _end(self, transaction: dict[str, Any], state: str) -> None:
        transaction["state"] = state
        if state == "committed":
            transaction["visible"] = transaction["visible"] + transaction["rows"]

    def visible(self) -> Counter[int]:
        known = Counter(n for found in self.transactions.values() for n in found["visible"])
        return self.forgotten + known


class FakeCoordinators(Coordinators):
    def __init__(self, kafka: Kafka, lists: bool) -> None:
        self.kafka, self.lists = kafka, lists

    def _find(self, transaction: Transaction) -> dict[str, Any] | None:
        found = self.kafka.transactions.get(transaction.id)
        is_it = found is not None and found["epoch"] == transaction.epoch
        return found if is_it else None

    def is_open(self, transaction: Transaction) -> bool:
        found = self.kafka.step(lambda: self._find(transaction))
        return found is not None and found["state"] == "open"

    def end(self, transaction: Transaction, *, commit: bool) -> bool | None:
        wanted = "committed" if commit else "aborted"

        def effect() -> bool | None:
            if transaction.id not in self.kafka.transactions:
                return None
            found = self._find(transaction)
            if found is not None and found["state"] == "open":
                self.kafka._end(found, wanted)
            return found is not None and found["state"] == wanted

        answer: bool | None = self.kafka.step(effect)
        return answer

    def fence(self, transactional_id: str, **_: Any) -> None:
        def effect() -> None:
            found = self.kafka.transactions[transactional_id]
            if found["state"] == "open":
                self.kafka._end(found, "aborted")
            found["epoch"] += 1

        self.kafka.step(effect)

    def open_ids(self, prefix: str) -> list[str]:
        if not self.lists:
            return []
        found = self.kafka.transactions.items()
        names: list[str] = self.kafka.step(
            lambda: [n for n, t in found if t["state"] == "open" and n.startswith(prefix)]
        )
        return names

    def each(
        self,
        action: Callable[[Coordinators, Transaction], Any],
        transactions: Sequence[Transaction],
    ) -> list[Any]:
        answers = {t.id: action(self, t) for t in reversed(transactions)}  # real ones: any order
        return [answers[t.id] for t in transactions]


class FakeLedger(Ledger):
    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.mine = -1
        self.written: State | None = None
        self.topic = LEDGER_TOPIC

    def read(self) -> State | None:
        told = self.kafka.step(lambda: self.kafka.told)
        return None if told is None else decode(told)

    def take_over(self) -> None:
        def effect() -> None:
            self.kafka.owner += 1
            self.mine = self.kafka.owner
            self.written = None

        self.kafka.step(effect)

    def holds(self, state: State | None) -> bool:
        return state is not None and state == self.written

    def write(self, state: State) -> bool:
        def effect() -> bool:
            if self.mine != self.kafka.owner:
                return False
            self.kafka.told = encode(state)
            return True

        is_written: bool = self.kafka.step(effect)
        self.written = state if is_written else None
        return is_written


@dataclass
class Query:
    """What Spark does: batches in order, again after a failure, a new run each time."""

    kafka: Kafka
    options: SinkOptions
    lists: bool
    data: Any
    batches: int = 3
    done: int = 0  # batches in the checkpoint's commit log
    runs: int = 0
    seen: list[State] = field(default_factory=list)  # what tasks have found in the ledger
    meanwhile: Callable[[], None] = lambda: None  # before the tasks of a batch have written

    def rows(self, batch: int) -> list[int]:
        return [batch * 10 + n for n in range(4)]

    def end_decided(self) -> None:
        """A task looks, as one of a process that has seen nothing of the run; or it has long ago.

        What it found counts for it later on, too: it may be slow, and of an older run.
        """
        state = FakeLedger(self.kafka).read()
        self.seen += [] if state is None else [state]
        if self.seen:
            ago = self.data.draw(st.integers(1, len(self.seen)), "found so long ago")
            commit_decided(self.seen[-ago], "q", FakeCoordinators(self.kafka, self.lists))

    def prepare(self, run: str, batch: int) -> list[Prepared]:
        """The tasks of a batch: rows in whatever split, some attempts in vain."""
        if self.data.draw(st.booleans(), "task 0 looks"):
            self.end_decided()
        self.meanwhile()
        tasks = self.data.draw(st.integers(1, 3), "tasks")
        messages = []
        for task in range(tasks):
            rows = [n for n in self.rows(batch) if n % tasks == task]
            failed = self.data.draw(st.integers(0, 1), "failed attempts")
            for number in range(failed + 1):
                attempt = Attempt("q", run, batch, task, number, time.time())
                found = self.kafka.begin(attempt.transactional_id, rows) if rows else None
            messages.append(Prepared(attempt, found))
        return messages

    def work(self, messages: list[Prepared], batch: int, ledger: FakeLedger | None = None) -> Batch:
        coordinators = FakeCoordinators(self.kafka, self.lists)
        return Batch(messages, batch, self.options, ledger or FakeLedger(self.kafka), coordinators)

    def run_on(self, batches: int | None = None) -> None:
        """One start of the query, up to its end or the first failure."""
        self.runs += 1
        run = f"run{self.runs}"
        last = self.batches if batches is None else min(self.batches, self.done + batches)
        # Spark may commit in one process or in turns in several; each keeps its ledger.
        ledgers = [FakeLedger(self.kafka) for _ in range(2)]
        for batch in range(self.done, last):
            messages = self.prepare(run, batch)
            at = self.data.draw(st.integers(0, 2), "process")
            try:
                self.work(messages, batch, ledgers[at] if at < 2 else None).commit()
            except KafkaError:
                self.work(messages, batch).abort()
                raise
            self.done = max(self.done, batch + 1)

    def expected(self) -> Counter[int]:
        return Counter(n for batch in range(self.batches) for n in self.rows(batch))


OPTIONS = parse_sink_options(
    {"kafka.bootstrap.servers": "h:1", "topic": "t", "exactlyOnce": "true"}, streaming=True
).options


def finish(query: Query) -> None:
    query.kafka.steps = -1
    for _ in range(20):
        if query.done >= query.batches:
            return
        query.run_on()
    raise AssertionError("the query does not get on")


@examples(150)
@given(st.data(), st.booleans())
def test_every_row_once_with_drivers_killed_anywhere(data: st.DataObject, lists: bool) -> None:
    query = Query(Kafka(), OPTIONS, lists, data)
    for _ in range(data.draw(st.integers(1, 4), "kills")):
        query.kafka.steps = data.draw(st.integers(1, 40), "step")
        query.kafka.after = data.draw(st.booleans(), "after it")
        try:
            query.run_on()
        except Crash:
            assert max(query.kafka.visible().values(), default=1) == 1
    finish(query)
    assert query.kafka.visible() == query.expected()


@examples(150)
@given(st.data())
def test_commits_that_fail_are_followed_by_abort(data: st.DataObject) -> None:
    # An error, not a kill: Spark calls abort with the same messages, decided or not.
    query = Query(Kafka(), OPTIONS, True, data)

    def fail() -> None:
        raise KafkaError("a coordinator did not answer in time")

    for _ in range(data.draw(st.integers(1, 3), "failures")):
        query.kafka.event = fail
        query.kafka.steps = data.draw(st.integers(1, 30), "step")
        query.kafka.after = data.draw(st.booleans(), "after it")
        with suppress(KafkaError):
            query.run_on()
    query.kafka.event = None
    finish(query)
    assert query.kafka.visible() == query.expected()


@examples(150)
@given(st.data())
def test_two_drivers_on_one_checkpoint_write_no_row_twice(data: st.DataObject) -> None:
    query = Query(Kafka(), OPTIONS, data.draw(st.booleans(), "lists"), data)
    query.run_on(data.draw(st.integers(0, 1), "batches before"))
    other = data.draw(st.integers(1, 2), "batches of the other")
    query.kafka.event = lambda: query.run_on(other)
    query.kafka.steps = data.draw(st.integers(1, 20), "step")
    query.kafka.after = data.draw(st.booleans(), "after it")
    with suppress(KafkaError):  # the older one has to stop
        query.run_on()
    query.kafka.event = None
    finish(query)
    assert query.kafka.visible() == query.expected()


class Told(logging.Handler):
    """The rows that were said to be lost, by batch."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lost: dict[str, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        found = re.match(
            r"exactlyOnce: of batch (\d+), ([\d,]+) rows (?:are|may be) lost, those of tasks",
            record.getMessage(),
        )
        assert found, record.getMessage()
        self.lost[found[1]] = int(found[2].replace(",", ""))


@examples(150)
@given(st.data())
def test_what_times_out_is_written_again_or_named(data: st.DataObject) -> None:
    query = Query(Kafka(), OPTIONS, data.draw(st.booleans()), data)
    told = Told()
    log = logging.getLogger("kshare.query.produce.driver")
    log.addHandler(told)
    try:
        for _ in range(data.draw(st.integers(1, 3), "kills")):
            query.kafka.steps = data.draw(st.integers(1, 40), "step")
            query.kafka.after = data.draw(st.booleans(), "after it")
            with suppress(KafkaError):
                try:
                    query.run_on()
                except Crash:
                    if data.draw(st.booleans(), "for long"):
                        query.kafka.time_out()
                    if data.draw(st.booleans(), "for a week"):
                        query.kafka.expire()
        query.kafka.steps = -1
        with suppress(KafkaError):
            finish(query)
        finish(query)
    finally:
        log.removeHandler(told)
    visible = query.kafka.visible()
    assert max(visible.values(), default=1) == 1
    missing = query.expected() - visible
    assert missing.total() <= sum(told.lost.values())
    assert {str(row // 10) for row in missing} <= told.lost.keys()
    if not query.kafka.forgotten:  # else rows may be there that are said to be lost, perhaps
        assert missing.total() == sum(told.lost.values())


def test_a_batch_whose_transactions_kafka_has_forgotten_is_not_written_again() -> None:
    """It may be committed, or not: the error says so, and the start after it goes on."""
    for step in range(1, 30):
        query = Query(Kafka(), OPTIONS, True, Always(2, 0), batches=2)
        query.kafka.steps = step
        with suppress(Crash):
            query.run_on(1)
        state = decode(query.kafka.told) if query.kafka.told else None
        if state is None or state.ended:
            continue
        query.kafka.expire()
        before, query.kafka.steps = query.kafka.visible(), -1
        with pytest.raises(
            KafkaError,
            match=r"of batch 0, 4 rows may be lost, those of tasks 0, 1 of run run1: .*"
            r"transactional\.id\.expiration\.ms.*does not write them again",
        ):
            query.run_on()
        finish(query)
        assert query.kafka.visible() == before + Counter(query.rows(1))


@examples(150)
@given(st.data())
def test_a_slow_task_may_end_what_was_decided_at_any_time(data: st.DataObject) -> None:
    """By what it has read long ago: of an older run, of a batch before, or ended since."""
    query = Query(Kafka(), OPTIONS, data.draw(st.booleans(), "lists"), data)
    for end in (None, query.end_decided, query.end_decided):
        query.kafka.event = end  # at first, a kill
        query.kafka.steps = data.draw(st.integers(1, 40), "step")
        query.kafka.after = data.draw(st.booleans(), "after it")
        with suppress(Crash, KafkaError):
            query.run_on()
        query.kafka.event = None
        assert max(query.kafka.visible().values(), default=1) == 1
    finish(query)
    assert query.kafka.visible() == query.expected()


def test_what_was_decided_is_ended_before_its_batch_runs_again() -> None:
    """So it need not stay open for as long as the repetition takes."""
    decided = 0
    for step in range(1, 40):
        query = Query(Kafka(), OPTIONS, True, Always(3, 0, looks=True), batches=2)
        query.kafka.steps = step
        with suppress(Crash):
            query.run_on(1)
        query.kafka.steps = -1
        state = decode(query.kafka.told) if query.kafka.told else None
        if state is None or state.ended:
            continue
        decided += 1
        query.meanwhile = query.kafka.time_out
        query.run_on()  # no error: no row is lost
        assert query.kafka.visible() == query.expected()
    assert decided >= 4  # one for each transaction, and one when all are ended


class Always:
    """In place of drawn data: so many tasks, and failed attempts of each."""

    def __init__(self, tasks: int, failed: int, *, looks: bool = False) -> None:
        self._drawn = {
            "tasks": tasks,
            "failed attempts": failed,
            "process": 0,
            "task 0 looks": looks,
            "found so long ago": 1,
        }

    def draw(self, _: Any, label: str) -> int:
        return self._drawn[label]


def test_a_batch_that_took_too_long_is_not_decided() -> None:
    kafka = Kafka()
    query = Query(kafka, OPTIONS, True, None)
    began = time.time() - 0.95 * TRANSACTION_TIMEOUT_MS / 1000
    attempt = Attempt("q", "r", 0, 0, 0, began)
    message = Prepared(attempt, kafka.begin(attempt.transactional_id, [1]))
    with pytest.raises(
        KafkaError, match=r"not written: it took .*kafka\.transaction\.timeout\.ms"
    ) as said:
        query.work([message], 0).commit()
    assert "(maxOffsetsPerTrigger, or a shorter realTime)" in str(said.value)
    assert kafka.told is None


def test_a_kept_ledger_that_another_has_opened_is_opened_again() -> None:
    """A driver that has opened it and then died has written nothing: the one that lives goes on."""
    kafka = Kafka()
    query = Query(kafka, OPTIONS, True, Always(1, 0))
    ledger = FakeLedger(kafka)
    query.work(query.prepare("r", 0), 0, ledger).commit()
    opened = kafka.owner
    query.work(query.prepare("r", 1), 1, ledger).commit()
    assert kafka.owner == opened
    FakeLedger(kafka).take_over()
    query.work(query.prepare("r", 2), 2, ledger).commit()
    assert kafka.owner == opened + 2
    assert kafka.visible() == query.expected()


def test_attempts_that_do_not_count_leave_nothing_open() -> None:
    kafka = Kafka()
    query = Query(kafka, OPTIONS, True, None)
    first = [Attempt("q", "r", 0, 0, number, time.time()) for number in (0, 1)]
    kafka.begin(first[0].transactional_id, [1])
    counted = Prepared(first[1], kafka.begin(first[1].transactional_id, [1]))
    query.work([counted], 0).commit()
    # Of a later batch too, and of a task that Spark runs twice at a time.
    twice = [Attempt("q", "r", 1, 0, n, time.time(), speculative=True) for n in (0, 1)]
    counted = Prepared(twice[0], kafka.begin(twice[0].transactional_id, [2]))
    kafka.begin(twice[1].transactional_id, [2])
    query.work([counted], 1).commit()
    assert kafka.visible() == {1: 1, 2: 1}
    assert not [name for name, found in kafka.transactions.items() if found["state"] == "open"]
