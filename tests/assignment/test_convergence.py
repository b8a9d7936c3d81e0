"""Repeated rebalances come to an end, in no more rounds than Kafka's worst."""

import copy
import itertools
from typing import Any

import pytest

from tests.support.cases import answer, judge, load, next_round


def happen(case: dict[str, Any], event: dict[str, Any]) -> None:
    match event["event"]:
        case "add":
            case["processes"].append(copy.deepcopy(event["process"]))
        case "drop":
            gone = event["process"]
            case["processes"] = [one for one in case["processes"] if one["id"] != gone]
        case "multi":
            for one in event["events"]:
                happen(case, one)


@pytest.mark.parametrize("case", load("convergence"), ids=lambda case: case["id"])
def test_no_more_rounds_than_kafkas_worst(case: dict[str, Any]) -> None:
    base = copy.deepcopy(case["base"])
    for phase, (_, most) in zip(case["phases"], case["envelope"]["rounds"], strict=True):
        happen(base, phase)
        for number in itertools.count(1):
            out = answer(base)
            assert judge.validity(base, out) == []
            found = judge.metrics(base, out)
            next_round(base, out)
            assert number <= most
            if not out["followup"]:
                break
    for name, worst in case["envelope"].items():
        if name != "rounds" and found[name] is not None:
            assert found[name] <= worst[1] + 1e-9, name
