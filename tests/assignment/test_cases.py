"""Kafka's own answers to the visible cases, through ``kshare assign``."""

import json
from typing import Any

import pytest

from kshare.cli import main
from tests.support.cases import FOLDER, judge, load

PLACED = ("hand_ha", "hand_sticky", "hand_utils", "random_small_medium", "random_utils")


def answers(name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    assert main(["assign", str(FOLDER / f"{name}.json")]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    return {one["id"]: one for one in map(json.loads, out.splitlines())}


@pytest.mark.parametrize("name", PLACED)
def test_no_placement_is_worse_than_kafkas_worst(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answers(name, capsys)
    cases = load(name)
    assert list(found) == [case["id"] for case in cases]
    verdicts = {case["id"]: judge.judge(case, found[case["id"]], 0.0) for case in cases}
    assert {id_: v for id_, v in verdicts.items() if v["verdict"] == "fail"} == {}


def test_most_high_availability_cases_are_placed_exactly_as_in_kafka(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = answers("hand_ha", capsys)
    exact = [judge.judge(case, found[case["id"]])["verdict"] == "exact" for case in load("hand_ha")]
    assert sum(exact) >= 22


@pytest.mark.parametrize("name", ["hand_ha", "hand_sticky", "hand_utils", "random_small_medium"])
def test_metamorphic_cases_agree(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = answers(name, capsys)
    for case in load(name):
        if (twin := case.get("same_as")) in found:
            assert found[case["id"]]["assignment"] == found[twin]["assignment"]


def test_validation_is_kafkas(capsys: pytest.CaptureFixture[str]) -> None:
    found = answers("validation", capsys)
    for case in load("validation"):
        right = [case["golden"]["result"], *case.get("also_acceptable", [])]
        assert found[case["id"]]["result"] in right, case["id"]


def test_configs_are_accepted_and_refused_with_kafkas_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = answers("configs", capsys)
    for case in load("configs"):
        assert found[case["id"]] == {"id": case["id"], **case["golden"]}


def test_lags_are_kafkas(capsys: pytest.CaptureFixture[str]) -> None:
    found = answers("lags", capsys)
    for case in load("lags"):
        assert found[case["id"]] == {"id": case["id"], **case["golden"]}


def test_where_kafka_raises_the_answer_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    found = answers("edge", capsys)
    for case in load("edge"):
        assert ("raises" in found[case["id"]]) == bool(case["golden"].get("raises")), case["id"]
    assert found["edge-optimize-unassigned-task"]["raises"] == "task 0_1 is active on no process"


def test_an_active_that_comes_to_its_standby_changes_places_with_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    placed = answers("edge", capsys)["edge-optimize-active-over-standby"]["assignment"]
    copies = [sorted(held["active"] + held["standby"]) for held in placed.values()]
    assert copies == [["0_0", "0_1"], ["0_0", "0_1"]]
