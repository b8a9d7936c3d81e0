"""The names of kshare's sources in a plan of Spark."""

import pytest

from kshare.format_name import is_ours, name_with_handlers
from spark_plugin.source import KshareDataSource


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("kshare", True),
        ("KShare", True),
        (KshareDataSource.name(), True),
        ("kafka", False),
        ("kshare-other", False),
        ("FileSource[kshare-handlers-]", False),
        ("", False),
    ],
)
def test_names_of_ours(name: str, ours: bool) -> None:
    assert is_ours(name) == ours


def test_a_source_with_handlers_has_a_name_of_its_own_that_is_ours() -> None:
    names = {name_with_handlers() for _ in range(3)}
    assert len(names) == 3
    assert all(is_ours(name) and is_ours(name.upper()) for name in names)
