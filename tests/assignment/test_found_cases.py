"""Situations in which we once did worse than Kafka ever does, with Kafka's answers."""

import json
from typing import Any

import pytest

from tests.support.cases import FOLDER, HA, answer, judge

CASES = json.loads((FOLDER.parent / "found.json").read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_no_placement_is_worse_than_kafkas_worst(case: dict[str, Any]) -> None:
    found = judge.judge(case, answer(case), 0.0)
    assert found["reasons"] == []
    if case["op"] == "default_standby" or case.get("assignor") == HA:
        assert found["verdict"] == "exact"
