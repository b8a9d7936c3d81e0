"""``kshare assign``: lines and files, answers and faults, tables for people."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from kshare.assignment import (
    ApplicationState,
    KafkaStreamsAssignment,
    TaskAssignment,
    TaskAssignor,
)
from kshare.cli import main

CASE: dict[str, Any] = {
    "id": "one",
    "op": "assign",
    "assignor": "StickyTaskAssignor",
    "configs": {"num_standby_replicas": 1},
    "tasks": [
        {"id": "0_0", "inputs": ["t-0"], "changelogs": ["s-0"], "end_offset": 50_000},
        {"id": "0_1", "inputs": ["t-1"], "changelogs": ["s-1"], "end_offset": 50_000},
        {"id": "1_0-[0,1000)", "inputs": ["u-0"]},
        {"id": "1_0-[1000,9223372036854775808)", "inputs": ["u-0"]},
    ],
    "processes": [
        {"id": "1", "threads": 1, "rack": "a", "prev_active": ["0_0", "0_1"], "lags": {"0_0": 0}},
        {"id": "2", "threads": 1, "rack": "b"},
    ],
    "partition_racks": {"t-0": ["a"], "t-1": ["b"], "s-0": ["a"], "s-1": ["b"], "u-0": ["b"]},
}


class Run:
    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str, given: str = "") -> tuple[int, str, str]:
        self._monkeypatch.setattr("sys.stdin", io.StringIO(given))
        code = main(["assign", *arguments])
        out, error = self._capsys.readouterr()
        return code, out, error


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(capsys, monkeypatch)


def test_lines_of_standard_input_are_answered_in_order(run: Run) -> None:
    lines = [json.dumps({**CASE, "id": number}) for number in range(3)]
    code, out, error = run(given="\n\n".join(lines))
    found = [json.loads(line) for line in out.splitlines()]
    assert (code, error) == (0, "")
    assert [one["id"] for one in found] == [0, 1, 2]
    assert set(found[0]) == {"id", "assignment", "followup"}
    assert found[0]["assignment"] == {
        "1": {"active": ["0_0", "0_1"], "standby": []},
        "2": {"active": ["1_0-[0,1000)", "1_0-[1000,9223372036854775808)"],
              "standby": ["0_0", "0_1"]},
    }  # fmt: skip


def test_a_file_can_hold_lines_one_case_or_all_of_them_in_one_document(
    run: Run, tmp_path: Path
) -> None:
    text = {
        "lines": json.dumps(CASE) + "\n",
        "case": json.dumps(CASE, indent=1),
        "cases": json.dumps({"note": "many", "cases": [CASE, CASE]}),
        "spread": json.dumps({"note": "many", "cases": [CASE]}, indent=2),
    }
    for name, written in text.items():
        (tmp_path / name).write_text(written)
    code, out, _ = run(*(str(tmp_path / name) for name in text), "-", given=json.dumps(CASE))
    assert code == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["one"] * 6
    assert len(set(out.splitlines())) == 1


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("{", "no JSON"),
        ("[" * 5000, "no JSON: it is nested more than 32 levels deep"),
        ("9" * 5000, "no JSON"),
        ("[1]", "a case is an object"),
        ('{"op": "guess"}', "no operation 'guess'; there are: assign, "),
        ('{"op": "assign"}', "there is no 'tasks'"),
        (json.dumps({**CASE, "tasks": 5}), "tasks is 5; wanted a list"),
        (json.dumps({**CASE, "tasks": [{"id": "x", "inputs": []}]}), "not a task: 'x'"),
        (json.dumps({**CASE, "tasks": [{"id": "0_0", "inputs": ["t"]}]}), "not a partition: 't'"),
        (json.dumps({**CASE, "tasks": CASE["tasks"] * 2}), "twice"),
        (json.dumps({**CASE, "processes": [{"id": "1", "threads": 0}]}), "wanted at least 1"),
        (json.dumps({**CASE, "processes": [{"id": "1", "threads": "2"}]}), "wanted a whole number"),
        (json.dumps({**CASE, "configs": {"typo": 1}}), "no config 'typo'"),
        (json.dumps({**CASE, "configs": {"max_warmup_replicas": "2"}}), "wanted a whole number"),
        (json.dumps({**CASE, "assignor": "os.system"}), "no assignor 'os.system' is built in"),
        ('{"op": "lags", "end_offset_sums": {}}', "there is no 'offset_sums_by_client'"),
        ('{"op": "optimize_active", "tasks": [], "processes": []}', "there is no 'start'"),
    ],
)
def test_a_bad_line_is_said_with_its_number_and_the_others_are_answered(
    run: Run, bad: str, why: str
) -> None:
    code, out, error = run(given=f"{json.dumps(CASE)}\n\n{bad}\n{json.dumps(CASE)}\n")
    assert code == 2
    assert len(out.splitlines()) == 2
    assert error.startswith("kshare assign: <stdin>:3: ")
    assert why in error
    assert error.count("\n") == 1


def test_blank_lines_count(run: Run) -> None:
    assert run(given="\n \n[]\n")[2].startswith("kshare assign: <stdin>:3: ")


def test_faults_in_a_document_name_its_case_and_a_missing_file_is_one(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "all").write_text(json.dumps({"cases": [CASE, {"id": "bad"}]}))
    code, out, error = run(str(tmp_path / "gone"), str(tmp_path / "all"))
    assert code == 2
    assert len(out.splitlines()) == 1
    assert "gone cannot be read" in error
    assert "all:1: case 1 (bad): there is no 'tasks'" in error


@pytest.mark.parametrize(
    "case",
    [
        {**CASE, "processes": []},
        {**CASE, "configs": {"max_warmup_replicas": 0}},
        {**CASE, "op": "default_standby", "start": {"1": {"active": ["0_0"], "standby": ["0_0"]}}},
        {**CASE, "op": "identity",
         "processes": [{"id": "1", "prev_active": ["0_0"], "prev_standby": ["0_0"]}]},
    ],
    ids=["no process", "config", "start", "identity"],
)  # fmt: skip
def test_what_kafka_raises_for_is_an_answer(run: Run, case: dict[str, Any]) -> None:
    code, out, error = run(given=json.dumps(case))
    answer = json.loads(out)
    assert (code, error) == (0, "")
    assert answer["id"] == "one"
    assert set(answer) == {"id", "raises"}
    assert answer["raises"]


class Upside(TaskAssignor):
    """All to the last process; knows three faults by the number of tasks."""

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        *others, last = application_state.states
        if len(application_state.all_tasks) == 1:
            raise KeyError("one")
        if len(application_state.all_tasks) == 2:
            return TaskAssignment(())
        if len(application_state.all_tasks) == 3:
            return TaskAssignment(tuple(map(KafkaStreamsAssignment, application_state.states)))
        # Entries of one process count together.
        held = [
            KafkaStreamsAssignment(last, frozenset([task])) for task in application_state.all_tasks
        ]
        return TaskAssignment((*map(KafkaStreamsAssignment, others), *held))


UPSIDE = ("--assignor", f"{__name__}:Upside")


def test_another_assignor_answers_instead_and_its_faults_are_answers(run: Run) -> None:
    some = [{**CASE, "tasks": CASE["tasks"][:count]} for count in (4, 1, 2, 3)]
    code, out, _ = run(*UPSIDE, given="\n".join(map(json.dumps, some)))
    whole, raised, invalid, missing = map(json.loads, out.splitlines())
    assert code == 0
    assert len(whole["assignment"]["2"]["active"]) == 4
    assert raised["raises"] == "KeyError: 'one'"
    assert "MISSING_PROCESS_ID" in invalid["raises"]
    # As a stream and a group refuse it, though Kafka does not.
    assert missing["raises"].endswith("no member gets task 0_0 (UNKNOWN_TASK_ID)")
    _, out, _ = run(*UPSIDE, "--explain", given=json.dumps(CASE))
    assert "0 -> 4" in out


def test_an_assignor_that_is_not_there_is_a_wrong_argument(run: Run) -> None:
    code, out, error = run("--assignor", "Nobody", given=json.dumps(CASE))
    assert (code, out) == (2, "")
    assert "no task assignor 'Nobody'" in error


class TestExplain:
    def test_says_who_got_what_what_moved_and_why(self, run: Run) -> None:
        code, out, _ = run("--explain", *UPSIDE, given=json.dumps(CASE))
        lines = [" ".join(line.split()) for line in out.splitlines()]
        assert code == 0
        assert "1 a 1 2 -> 0 0 0.00" in lines
        assert any(line.startswith("2 b 1 0 -> 4 0 4.00 0_0 0_1 1_0-[0,1000)") for line in lines)
        assert "0_0 active 1 2 2.00 active tasks a thread there, 0.00 here" in lines
        moved = next(line for line in lines if line.startswith("0_1 active 1 2"))
        assert "reads 2 partitions from other racks there, 0 here" in moved
        assert any("active tasks that moved 2" in line for line in lines)
        assert any(line.startswith("partitions read from another rack 2 2") for line in lines)

    def test_says_that_nothing_moved(self, run: Run) -> None:
        still = {**CASE, "tasks": CASE["tasks"][:2], "configs": {}}
        still["processes"] = [{"id": "1", "prev_active": ["0_0", "0_1"]}]
        assert "nothing" in run("--explain", given=json.dumps(still))[1]

    def test_says_when_more_is_to_come_and_shows_long_names_short(self, run: Run) -> None:
        names = [f"00000000-0000-0000-0000-00000000000{n}" for n in "12"]
        case = {
            **CASE,
            "assignor": "HighAvailabilityTaskAssignor",
            "processes": [
                {**one, "id": name} for one, name in zip(CASE["processes"], names, strict=True)
            ],
        }
        case["processes"][0]["lags"] = {"0_0": 0, "0_1": 0}
        out = run("--explain", given=json.dumps(case))[1]
        assert "Another rebalance is asked for" in out
        assert "...01" in out
        assert names[0] not in out

    def test_says_other_answers_as_they_are(self, run: Run) -> None:
        out = run("--explain", given='{"id": "c", "op": "config", "description": "all"}')[1]
        assert out == 'c  all\n{"result": "ok"}\n\n'


def test_help_needs_nothing_but_argparse(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["assign", "--help"])
    assert "--explain" in capsys.readouterr().out
