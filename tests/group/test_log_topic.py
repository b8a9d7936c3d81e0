"""Which partition of the log is a group's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.group.log_topic import log_partition

BIG = 1 << 31  # partitions: the absolute value of the hash itself, if it is positive


@pytest.mark.parametrize(
    ("group", "absolute"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99_162_322),
        ("polygenelubricants", 0),  # -2^31, which has no absolute value
        ("hello, world", 640_608_884),
        ("console-consumer-8010", 836_602_008),
        ("\N{GRINNING FACE}", 1_772_899),  # two code units
    ],
)
def test_java_hashes(group: str, absolute: int) -> None:
    assert log_partition(group, BIG) == absolute


@given(st.text(), st.integers(1, 100))
def test_it_is_a_partition(group: str, partitions: int) -> None:
    assert 0 <= log_partition(group, partitions) < partitions


@given(st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"])))
def test_it_is_javas_hash(group: str) -> None:
    hashed = 0
    for letter in group:
        hashed = (31 * hashed + ord(letter) + BIG) % (2 * BIG) - BIG
    assert log_partition(group, BIG) == abs(hashed) % BIG
