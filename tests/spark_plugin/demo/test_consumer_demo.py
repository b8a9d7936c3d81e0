"""``kshare demo --consumer``: its verdict, its arguments, and a run of it."""

import pytest

from kshare.cli import main
from spark_plugin.demo.consumer_demo import judge

A, B = b"a".hex(), b"b".hex()


def test_what_came_again_counts_where_it_came_last() -> None:
    rows = {"1": [(0, A), (2, A), (4, A)], "2": [(1, B), (3, B)], "3": [(2, A), (4, A), (5, A)]}
    report, again = judge(rows, 6)
    assert report.ok
    assert again == 2


@pytest.mark.parametrize(
    "rows",
    [
        {"1": [(0, A), (1, A)], "2": [(3, B)]},
        {"1": [(0, A), (2, A), (1, A)], "2": [(3, B)]},
        {"1": [(0, A), (1, A), (2, A), (0, A)], "2": [(3, B)]},
        {"1": [(0, A), (2, A)], "2": [(3, B), (1, A)]},
    ],
    ids=["lost", "out of order", "doubled by one process", "out of order between two"],
)
def test_faults_are_found(rows: dict[str, list[tuple[int, str]]]) -> None:
    report, _ = judge(rows, 4)
    assert not report.ok


def test_a_process_is_killed_and_the_order_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--consumer", "--records", "2000"]) == 0
    out = capsys.readouterr().out
    assert "Killed process 1 (kill -9)" in out
    assert "ORDER OK: 2,000 records" in out


def test_it_makes_its_own_topic(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--consumer", "--topic", "t", "--bootstrap-servers", "localhost:1"])
    assert "leave out --topic" in capsys.readouterr().err
