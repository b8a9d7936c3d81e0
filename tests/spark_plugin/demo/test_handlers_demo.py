"""``kshare demo --handlers``: its view, its verdict, and a run of it."""

import pytest

from kshare.cli import main
from kshare.core.hashing import HASH_SPACE, key_hash
from kshare.processing import Record
from kshare.processing.core.lane import Lane, State
from spark_plugin.demo.handlers_demo import lane_bar
from spark_plugin.demo.verdict import order_of
from tests.processing.engines import Rows

A, B = b"a", b"b"


def lane(key: bytes, records: int, state: State) -> Lane:
    made = [Record(Rows(), at, at, key, b"", key) for at in range(records)]
    lane = Lane(key, made[0])
    lane.records.extend(made[1:])
    lane.state = state
    return lane


def test_a_column_for_each_part_of_the_hashes() -> None:
    lanes = [lane(A, 1, State.RUNNING), lane(B, 40, State.READY), lane(b"c", 3, State.WAITING)]
    expected = ["."] * 32
    for key, letter in ((A, ":"), (B, "="), (b"c", "!")):
        expected[key_hash(key, 0) * 32 // HASH_SPACE] = letter
    assert lane_bar(lanes, 32) == "".join(expected)
    assert len(set(expected)) == 4  # the three keys have columns of their own


def test_dead_letters_count_after_what_was_handled() -> None:
    report = order_of([(0, A), (2, B), (1, A), (3, B), (4, B)], 0, 5)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("handled", "letters"),
    [
        ([(0, A), (1, A)], [(3, B)]),
        ([(1, A), (0, A)], [(2, B), (3, B)]),
        ([(0, A), (1, A), (2, B)], [(2, B), (3, B)]),
        ([(0, A), (1, A), (3, B)], [(2, B)]),
    ],
    ids=["lost", "out of order", "handled, and a dead letter", "a dead letter was overtaken"],
)
def test_faults_are_found(
    handled: list[tuple[int, bytes]], letters: list[tuple[int, bytes]]
) -> None:
    assert not order_of([*handled, *letters], 0, 4).ok


def test_one_key_becomes_dead_letters_and_the_order_holds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["demo", "--handlers", "--records", "2000"]) == 0
    out = capsys.readouterr().out
    assert "1,988 handled, 12 dead letters after 36 attempts" in out
    assert "ORDER OK: 2,000 records" in out
    bars = [line.split("|")[1] for line in out.splitlines() if line.count("|") == 2]
    assert bars
    assert {len(bar) for bar in bars} == {48}


def test_it_ends_when_the_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--handlers", "--records", "200", "--seconds", "0.1"]) == 1
    assert "--seconds gives more" in capsys.readouterr().err
