"""Names in a text for people."""

import pytest

from kshare.core.listing import named


@pytest.mark.parametrize(
    ("names", "text"),
    [([], ""), ([3], "3"), (["a", "b"], "a, b"), (["a", "b", "c", "d"], "a, b and 2 more")],
)
def test_the_first_names_and_the_number_of_the_rest(names: list[object], text: str) -> None:
    assert named(names, shown=2) == text


def test_ten_names_are_shown() -> None:
    assert named(range(10)).endswith(", 9")
    assert named(range(11)).endswith(", 9 and 1 more")
