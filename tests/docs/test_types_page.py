"""docs/typed-rows-types.md: kshare's types are what the tables say, and differences have reasons.

Spark's own column is compared by integration/test_types_page.py.
"""

import pytest

from tests.support.types_page import own_type, table

KINDS = ("DDL", "JSON Schema", "Avro", "Protobuf")
ROWS = [(kind, row) for kind in KINDS for row in table(kind)]


@pytest.mark.parametrize(("kind", "row"), ROWS, ids=[f"{kind} {row[0]}" for kind, row in ROWS])
def test_the_type_of_each_row(kind: str, row: list[str]) -> None:
    if kind == "JSON Schema":
        written, own = row
    else:
        written, spark, own, reason = row
        assert bool(reason) == (spark != own)
    assert own_type(kind, written) == own
