"""Names in a text for people; keys.

The count of a topic's parked keys.
"""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.listing import (
    ParkedCount,
    counted,
    duration,
    join_names,
    key_json,
    key_of_json,
    nearest,
    printable,
    printable_lines,
    show_key,
)

FORGED = "a\x1b[2J\rgone\x85\u2028\u202e"


@given(st.text() | st.just(FORGED))
def test_a_text_of_others_stays_on_its_line(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown) == len(text)
    assert not text.isprintable() or shown == text


@given(st.text(st.sampled_from("ab \t\n\r\x1b\u2028")))
def test_only_the_first_line_begins_at_the_left(text: str) -> None:
    first, *more = printable_lines(text).split("\n")
    assert len(more) == text.count("\n")
    assert all(line.replace("\t", "").isprintable() for line in (first, *more))
    assert all(line[:1] in {"", " "} for line in more)
    assert printable_lines("2 faults:\n  - one\n  - two") == "2 faults:\n  - one\n  - two"


@pytest.mark.parametrize(
    ("names", "text"),
    [([], ""), ([3], "3"), (["a", "b"], "a, b"), (["a", "b", "c", "d"], "a, b and 2 more")],
)
def test_the_first_names_and_the_number_of_the_rest(names: list[object], text: str) -> None:
    assert join_names(names, shown=2) == text


def test_ten_names_are_shown() -> None:
    assert join_names(range(10)).endswith(", 9")
    assert join_names(range(11)).endswith(", 9 and 1 more")


@pytest.mark.parametrize(
    ("n", "text"), [(0, "0 records"), (1, "1 record"), (2, "2 records"), (1_024, "1,024 records")]
)
def test_a_number_of_things(n: int, text: str) -> None:
    assert counted(n, "record") == text


def test_a_plural_of_its_own() -> None:
    assert [counted(n, "anomaly", "anomalies") for n in (1, 2)] == ["1 anomaly", "2 anomalies"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 s"),
        (0.44, "0.4 s"),
        (12.4, "12 s"),
        (119, "119 s"),
        (120, "2 min"),
        (2 * 3600 - 1, "119 min"),
        (2 * 3600, "2 h"),
        (2 * 86_400 - 1, "47 h"),
        (2 * 86_400, "2 days"),
        (5_824_237.1, "67 days"),
    ],
)
def test_a_time_in_a_unit_that_suits_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("order", "orders"),
        ("ORDERS", "orders"),
        ("Payments.V1", "payments.v2"),
        ("nope-out", None),
        ("", None),
    ],
)
def test_a_misspelt_name(name: str, meant: str | None) -> None:
    assert nearest(name, ["orders", "payments.v2", "x"]) == meant
    assert nearest(name, []) is None


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (b"customer-7", "customer-7"),
        ("ü".encode(), "ü"),
        (b"", "(empty)"),
        (b"a\nb", "0x610a62"),
        (b" a", "0x2061"),
        (b"\xff\0", "0xff00"),
    ],
)
def test_a_key_is_shown_so_that_it_can_be_told(key: bytes, shown: str) -> None:
    assert show_key(key) == shown


@given(st.binary() | st.text().map(str.encode))
def test_a_key_survives_json(key: bytes) -> None:
    assert key_of_json(key_json(key)) == key


def test_what_is_no_key_of_json_is_refused() -> None:
    with pytest.raises(ValueError, match="hex"):
        key_of_json({"text": "a"})


def test_a_count_travels_from_the_planner_to_the_driver() -> None:
    for count in (ParkedCount(3), ParkedCount(1, 1_700_000_000.5)):
        assert pickle.loads(pickle.dumps(count)) == count
    assert ParkedCount(3).since is None
