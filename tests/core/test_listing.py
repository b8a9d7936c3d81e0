"""Names in a text for people; keys.

The count of a topic's parked keys.
"""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.listing import ParkedCount, join_names, key_json, key_of_json, show_key


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
