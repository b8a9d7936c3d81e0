"""How the demo's query is shown, and what is said at its end."""

import io
from dataclasses import replace

from kshare.core.hashing import KeyRanges
from kshare.monitor.report import PartitionReport, RangeReport
from spark_plugin.demo.state import QueryState
from spark_plugin.demo.view import LEGEND, Screen, as_lines, lesson
from tests.spark_plugin.demo.rows import HIGH, LOW, T0, state_of


def test_each_range_has_a_bar() -> None:
    first, head, *lines = as_lines(state_of(range(30), range(30, 60), stable=10))
    assert first.startswith("batch 1: 60 of 100 records, ")
    assert head.split() == ["partition", "range", "read", "offset"]
    assert [" ".join(line.split()) for line in lines] == [
        f"t-0 0.00 % to 50.00 % |{'#' * 12}{'.' * 8}| 60 front",
        f"t-0 50.00 % to 100.00 % |{'#' * 2}{'.' * 18}| 10 stable",
    ]


def test_no_range_is_ahead_where_all_are_level() -> None:
    state = state_of(range(100), stable=60)
    assert [line.split()[-1] for line in as_lines(state)[2:]] == ["60", "60"]


def test_a_parked_range_is_said_to_be_parked() -> None:
    state = state_of(range(30), stable=10)
    report = state.partitions[T0]
    ranges = (report.ranges[0], replace(report.ranges[1], is_parked=True))
    state.partitions[T0] = replace(report, ranges=ranges)
    assert [line.split()[-1] for line in as_lines(state)[2:]] == ["front", "parked"]


def test_an_empty_log_has_empty_bars() -> None:
    state = QueryState(target=0)
    whole = RangeReport(KeyRanges([LOW, HIGH]), 0, 0)
    state.partitions[T0] = PartitionReport(0, 0, ranges=(whole,))
    assert f"|{'.' * 20}|" in as_lines(state)[2]


def test_each_word_of_the_bars_is_explained_before_them() -> None:
    for word in ("range", "front", "stable", "bar"):
        assert word in LEGEND


def test_bars_take_the_place_of_the_last_ones_in_a_terminal() -> None:
    out = io.StringIO()
    screen = Screen(out, (80, 24), is_terminal=True)
    screen.say("above")
    screen.show(["a", "b"])
    screen.show(["a", "b"])
    screen.show(["a", "c"])
    screen.say("below")
    screen.show(["d"])
    assert out.getvalue() == "above\na\nb\n\033[2F\033[Ja\nc\nbelow\nd\n"


def test_a_low_terminal_shows_what_it_can() -> None:
    out = io.StringIO()
    screen = Screen(out, (80, 6), is_terminal=True)
    screen.show(list("abcdef"))
    assert out.getvalue() == "a\nb\nc\n... 3 lines more\n"


def test_no_line_is_wrapped_in_a_narrow_terminal() -> None:
    out = io.StringIO()
    screen = Screen(out, (4, 24), is_terminal=True)
    screen.show(["abcdef"])
    screen.show(["abcx"])
    assert out.getvalue() == "abc\n"


def test_elsewhere_bars_stand_below_the_last_ones() -> None:
    out = io.StringIO()
    screen = Screen(out, (3, 4), is_terminal=False)
    screen.show(list("abcdef"))
    screen.show(["g"])
    assert out.getvalue() == "a\nb\nc\nd\ne\nf\ng\n"


def test_the_lesson_names_where_all_would_have_stood() -> None:
    state = state_of(range(30), stable=10)
    assert lesson(state) == ""
    state.widest = (T0, state.partitions[T0])
    assert lesson(state) == (
        'With format("kafka"), a partition has one position. When the ranges of t-0 stood at\n'
        "60, 10, all 2 would have stood at 10 and waited for the slowest.\n"
    )
