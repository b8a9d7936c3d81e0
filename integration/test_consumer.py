"""Processes of one group on one partition of a real broker: killed at any point, swapped hot."""

import signal
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from integration.chance import chance_of
from integration.kafka import KafkaBroker
from integration.lines import whole_lines
from integration.members import eventually
from integration.processes import PythonProcess
from kshare.core.hashing import WHOLE, HashRange, split
from kshare.errors import FencedError
from kshare.group import KeySharedConsumer
from kshare.group.tools.offsets import list_offsets
from kshare.testing import check_order
from tests.support import shown

RECORDS = 6_000
SECONDS = 120.0
Start = Callable[[HashRange], tuple[PythonProcess, Path]]


@pytest.fixture
def filled(broker: KafkaBroker, topic: str) -> str:
    fill(broker, topic, 0, RECORDS)
    return topic


def fill(broker: KafkaBroker, topic: str, first: int, last: int) -> None:
    broker.produce(topic, [(f"key-{i * i % 331}", f"{i}") for i in range(first, last)])


@pytest.fixture
def start(broker: KafkaBroker, filled: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a process of the group ``filled`` with a key range."""
    running: list[PythonProcess] = []

    def start(hashes: HashRange) -> tuple[PythonProcess, Path]:
        file = tmp_path / f"{len(running):03}"
        file.touch()
        arguments = [broker.bootstrap_servers, filled, filled]
        arguments += [str(hashes.lo), str(hashes.hi), str(file)]
        running.append(PythonProcess("integration.consumer_process", arguments))
        return running[-1], file

    yield start
    for process in running:
        process.kill()
        process.wait()


def rows_of(file: Path) -> list[tuple[str, str]]:
    """The whole lines of a file."""
    return [(first, second) for first, second in map(str.split, whole_lines(file))]


def delivered(file: Path) -> list[tuple[int, str]]:
    return [(int(first), second) for first, second in rows_of(file) if first.isdigit()]


def table(number: int, rows: list[tuple[int, str]]) -> pa.Table:
    columns = {
        "offset": pa.array([offset for offset, _ in rows], pa.int64()),
        "key": pa.array([bytes.fromhex(key) for _, key in rows], pa.binary()),
        "batch": pa.array([number] * len(rows), pa.int64()),
    }
    return pa.table(columns)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_processes_are_killed_at_random_points(
    broker: KafkaBroker, filled: str, start: Start, seed: int
) -> None:
    chance = chance_of(seed)
    halves = split(WHOLE, 2)
    members = [[start(half)] for half in halves]
    produced = RECORDS

    def given() -> set[tuple[int, str]]:
        return {row for side in members for _, file in side for row in delivered(file)}

    def is_far_enough(file: Path, goal: int) -> bool:
        """Whether a process was given so many records, of which there are always enough."""
        nonlocal produced
        if produced - len(given()) < 2_000:
            fill(broker, filled, produced, produced + 2_000)
            produced += 2_000
        return len(delivered(file)) >= goal

    for _ in range(3):
        number = chance.randrange(2)
        process, file = members[number][-1]
        goal = chance.randrange(50, 700)
        eventually(partial(is_far_enough, file, goal))
        process.send_signal(signal.SIGKILL)
        process.wait()
        shown.killed("process of a group")
        members[number].append(start(halves[number]))

    eventually(lambda: len(given()) == produced)
    for side in members:
        process, _ = side[-1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    for side in members:
        files = [file for _, file in side]
        for earlier, later in pairwise(files):
            check_commits(earlier, later)
    kept: list[pa.Table] = []
    for side in members:
        seen: set[int] = set()
        for run, (_, file) in reversed(list(enumerate(side))):
            rows = [row for row in delivered(file) if row[0] not in seen]
            seen |= {offset for offset, _ in rows}
            kept.append(table(run, rows))
    report = check_order(pa.concat_tables(kept), {0: (0, produced)})
    shown.judged(report)
    assert report.ok, str(report)


def check_commits(earlier: Path, later: Path) -> None:
    """What a killed process had committed does not come again."""
    lines = rows_of(earlier)
    commits = [number for number, (first, _) in enumerate(lines) if first == "commit"]
    committed = {
        int(first) for first, _ in lines[: commits[-1] if commits else 0] if first.isdigit()
    }
    assert not committed & {offset for offset, _ in delivered(later)}


def test_a_process_that_starts_late_finds_its_records(
    broker: KafkaBroker, filled: str, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody reads the upper half for a while: it is named, and it holds the stable offset."""
    lower, upper = split(WHOLE, 2)
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": filled,
        "auto.offset.reset": "earliest",
        "claim.timeout.ms": 1000,
    }
    rows: list[tuple[int, str]] = []
    with KeySharedConsumer(config) as consumer:
        consumer.assign({(filled, 0): [(lower.lo, lower.hi)]})

        def is_warned() -> bool:
            messages = consumer.consume(500, 0.05)
            rows.extend((each.offset(), (each.key() or b"").hex()) for each in messages)
            return f"no living member has claimed key hashes {upper}" in caplog.text

        eventually(is_warned)
        first = next(i for i in range(RECORDS) if i not in {offset for offset, _ in rows})
        assert list((consumer.commit() or {}).values()) == [first]
        late, file = start(upper)
        eventually(lambda: is_warned() and len(rows) + len(delivered(file)) == RECORDS)
        late.send_signal(signal.SIGTERM)
        assert late.wait(SECONDS) == 0
    report = check_order(
        pa.concat_tables([table(0, rows), table(1, delivered(file))]), {0: (0, RECORDS)}
    )
    assert report.ok, str(report)


def test_a_hot_swap_fences_the_older_one(broker: KafkaBroker, filled: str, start: Start) -> None:
    older, file = start(WHOLE)
    eventually(lambda: len(delivered(file)) >= 500)
    newer, its_file = start(WHOLE)
    assert older.wait(SECONDS) == 0
    assert rows_of(file)[-1][0] == "fenced"
    eventually(lambda: len({*delivered(file), *delivered(its_file)}) == RECORDS)
    newer.send_signal(signal.SIGTERM)
    assert newer.wait(SECONDS) == 0
    check_commits(file, its_file)
    again = set(delivered(its_file))
    rows = [row for row in delivered(file) if row not in again]
    kept = [table(0, rows), table(1, delivered(its_file))]
    report = check_order(pa.concat_tables(kept), {0: (0, RECORDS)})
    assert report.ok, str(report)


def test_acknowledged_records_do_not_come_again_and_others_do(
    broker: KafkaBroker, filled: str
) -> None:
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": f"{filled}-explicit",
        "auto.offset.reset": "earliest",
        "acknowledgement.mode": "explicit",
        "claim.timeout.ms": 1500,
    }
    waiting = {7, 8, 3000, RECORDS - 1}
    with KeySharedConsumer(config) as consumer:
        consumer.assign({(filled, 0): []})
        for message in consumer.consume(RECORDS, 120):
            if message.offset() not in waiting:
                consumer.acknowledge(message)
        assert list((consumer.commit() or {}).values()) == [7]
        with KeySharedConsumer(config) as other:
            other.assign({(filled, 0): []})
            assert {message.offset() for message in other.consume(4, SECONDS)} == waiting
            with pytest.raises(FencedError, match=f"{filled}-0"):
                consumer.poll(SECONDS)
    (found,) = list_offsets(str(config["group.id"]), config).values()
    assert found.offset == 7
    done = [(piece.offsets.start, piece.offsets.end) for piece in found.individual_commits]
    assert done == [(9, 3000), (3001, RECORDS - 1)]


def test_retention_overtakes_a_gap(broker: KafkaBroker, topic: str) -> None:
    """What is deleted is passed over; what is left comes in order, once, and nothing else does."""
    broker.produce(topic, [(f"key-{i % 7}", f"{i}") for i in range(300)])
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": f"{topic}-gap",
        "claim.timeout.ms": 500,
        "acknowledgement.mode": "explicit",
    }
    gaps = {3, 4, 150, 151}
    with KeySharedConsumer(config | {"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign({(topic, 0): []})
        for message in consumer.consume(200, SECONDS):
            if message.offset() not in gaps:
                consumer.acknowledge(message)
        assert list((consumer.commit() or {}).values()) == [3]
    broker.trim(topic, 0, 151)
    with KeySharedConsumer(config | {"auto.offset.reset": "latest"}) as consumer:
        consumer.assign({(topic, 0): []})
        polled = [consumer.poll(SECONDS) for _ in range(101)]
        rows = [message for message in polled if message is not None]
        assert [row.offset() for row in rows] == [151, *range(200, 300)]
        for row in rows:
            consumer.acknowledge(row)
        assert list((consumer.commit() or {}).values()) == [300]
