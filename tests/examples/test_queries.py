"""The queries of examples and docs, as texts: they fit the demo broker's orders, and every Spark.

``integration/test_examples.py`` runs them.
"""

import json
import re
from pathlib import Path
from typing import Final

import pytest

from kshare.cli.broker import orders

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = sorted((ROOT / "examples").rglob("*.py"))
PAGES: Final = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
SNIPPETS: Final = [
    (f"{path.relative_to(ROOT)}#{number}", text)
    for path in (*EXAMPLES, *PAGES)
    for number, text in enumerate(
        [path.read_text()]
        if path.suffix == ".py"
        else re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    )
]
LIMITS: Final = re.compile("maxRecordsPerTask|maxOffsetsPerTrigger|targetTaskDuration")


def test_an_order_of_the_demo_broker_has_the_types_that_the_examples_read() -> None:
    kinds = {float: "DOUBLE", int: "BIGINT", str: "STRING"}
    order = {
        name: kinds[type(value)] for name, value in json.loads(next(orders()).value or b"").items()
    }
    read = {
        (place, name, kind)
        for place, text in SNIPPETS
        for name, kind in re.findall(r"\b(country|amount) ([A-Z]{3,})\b", text)
    }
    assert len(read) > 5
    assert not {each for each in read if order[each[1]] != each[2]}


@pytest.mark.parametrize(("place", "text"), [each for each in SNIPPETS if LIMITS.search(each[1])])
def test_a_query_with_a_limit_reads_all_that_is_there_on_every_spark(place: str, text: str) -> None:
    """Spark 4.0 and 4.1 end their own trigger after one batch, docs/spark-versions.md."""
    assert "trigger(availableNow=True)" not in text, place
