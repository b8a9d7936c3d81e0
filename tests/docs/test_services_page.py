"""docs/services.md: a cell for each service and feature, and in each how it is known."""

import re

import pytest

from kshare.cli.features import Feature
from tests.support.documents import ROOT

PAGE = (ROOT / "docs/services.md").read_text()


def table(first: str) -> list[list[str]]:
    """The rows of the table whose header begins with a cell, the header first."""
    lines = PAGE[PAGE.index(f"\n| {first} |") + 1 :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


HEADER, _, *ROWS = table("service | source")
KNOWN = set(re.findall(r"^\| \*\*(.)\*\* \|", PAGE, re.MULTILINE))


def test_the_columns_are_the_features_of_the_doctor() -> None:
    assert ["service", *map(str, Feature)] == HEADER


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_each_cell_says_how_it_is_known(row: list[str]) -> None:
    assert {"T", "E", "D", "R", "?"} == KNOWN
    assert len(row) == len(HEADER)
    for cell in row[1:]:
        marks = re.findall(r"\(([A-Z?](?:, [A-Z?])*)\)|: (\?)", cell)
        assert marks or cell.startswith("?"), cell
        assert {mark for found in marks for each in found for mark in each.split(", ")} <= {
            "",
            *KNOWN,
        }


def test_each_service_has_a_line_on_what_it_refuses() -> None:
    named = " ".join(row[0] for row in table("service | what it refuses or lacks")[2:])
    for word in ("Confluent", "Express", "Serverless", "Event Hubs", "Google", "Redpanda"):
        assert word in named
    for word in ("WarpStream", "Bufstream", "AutoMQ", "Aiven", "Oracle", "StreamNative"):
        assert word in named
    assert sum("StreamNative" in row[0] for row in ROWS) == 2, "its two engines differ"
