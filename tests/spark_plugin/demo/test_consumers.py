"""``kshare demo --consumer`` and ``--group``: view, verdict and arguments, and a run of the first.

integration/test_demo.py runs the second.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.cli import main
from kshare.core.hashing import WHOLE, split
from kshare.core.progress import TopicPartition
from kshare.group.protocol.owners.range_owners import RangeOwner
from spark_plugin.demo.consumers import judge_deliveries, ownership_bar

TP = TopicPartition("t", 0)
A, B = b"a".hex(), b"b".hex()


def test_who_has_which_hashes() -> None:
    quarters = split(WHOLE, 4)
    owners = [RangeOwner(TP, part, name) for part, name in zip(quarters, "12", strict=False)]
    assert ownership_bar(owners, {"2"}, cells=8) == "11xx...."
    assert ownership_bar([], set(), cells=3) == "..."


@given(st.lists(st.sampled_from("123."), min_size=8, max_size=8))
def test_each_cell_shows_its_owner(cells: list[str]) -> None:
    parts = split(WHOLE, 8)
    owners = [RangeOwner(TP, parts[i], cell) for i, cell in enumerate(cells) if cell != "."]
    assert ownership_bar(owners, set(), cells=8) == "".join(cells)


def test_what_comes_again_may_come_in_order_twice() -> None:
    """A killed process had 2 and 4 in hand: its heir gets both of them again."""
    rows = [(1, 0, A), (2, 1, B), (3, 2, A), (4, 4, A), (7, 2, A), (8, 4, A), (9, 5, A), (5, 3, B)]
    report, again = judge_deliveries(rows, 6)
    assert report.ok, str(report)
    assert again == 2


@pytest.mark.parametrize(
    "rows",
    [
        [(1, 0, A), (2, 1, A), (3, 3, B)],
        [(1, 0, A), (2, 2, A), (3, 1, A), (4, 3, B)],
        [(1, 2, A), (2, 0, A), (3, 1, A), (4, 2, A), (5, 3, B)],
        [(1, 0, A), (2, 1, A), (3, 2, A), (4, 3, B), (5, 0, A)],
    ],
    ids=["lost", "out of order", "at first too early", "again and too late"],
)
def test_faults_are_found(rows: list[tuple[int, int, str]]) -> None:
    report, _ = judge_deliveries(rows, 4)
    assert not report.ok


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--group", "--consumer"], "--consumer and --group are 2 demos: give one"),
        (["--group", "--topic", "t", "--bootstrap-servers", "localhost:1"], "leave out --topic"),
        (["--consumer", "--topic", "t", "--bootstrap-servers", "localhost:1"], "leave out --topic"),
    ],
)
def test_arguments_that_contradict_each_other(
    arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["demo", *arguments])
    assert fault in capsys.readouterr().err


def test_it_ends_when_the_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--group", "--records", "200", "--seconds", "0.5"]) == 1
    assert "did not share the key hashes in time; --seconds gives more" in capsys.readouterr().err


def test_a_process_is_killed_and_the_order_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--consumer", "--records", "2000"]) == 0
    out = capsys.readouterr().out
    assert "Killed process 1 (kill -9)" in out
    assert "ORDER OK: 2,000 records" in out
