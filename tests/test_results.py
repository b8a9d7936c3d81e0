"""What runs of tests have shown, how deep they look, and how a failure is repeated."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import core

from integration.proof import PROOF
from tests.support import effort, results
from tests.support.documents import ROOT
from tests.support.durations import page as table
from tests.support.results import Results
from tests.support.shown import page

DEMO = PROOF["the demo"][0]
SHOWN = {
    "killed: Spark driver": 2,
    "killed: processor": 1,
    "records": 12_000,
    "lost": 3,
    "states": 4_100,
    "walks": 70,
    "laws broken": 1,
    "faults put in": 9,
    "faults found": 8,
    "properties": 5,
}
LAWS = """
from hypothesis import given, strategies as st
from pathlib import Path

def test_plain() -> None:
    pass

@given(st.integers())
def test_law(number: int) -> None:
    with Path(__file__).with_suffix(".drawn").open("a") as drawn:
        print(number, file=drawn)
    assert abs(number) < 1_000

@given(st.integers())
def test_that_holds(number: int) -> None:
    assert number == number
"""


def test_the_page_says_what_the_runs_have_shown() -> None:
    total = Results(["tests/a.py::test_b", DEMO], ["tests/a.py::test_c"], Counter(SHOWN))
    text = "\n".join(page(total))
    for line in (
        "    1 of  1  the demo",
        f"    0 of {len(PROOF['TLS with SASL']):2}  TLS with SASL",
        "  killed (kill -9) 3 processes: Spark driver 2, processor 1",
        "  judged 12,000 records: lost 3, doubled 0, out of order 0",
        "  explored 4,100 states and 70 random walks of groups: laws broken 1",
        "  put 9 faults into them: 8 were found",
        "  tried 5 laws with generated examples: falsified 0",
        "  passed 2 tests, failed 1",
        "  FAILED tests/a.py::test_c",
    ):
        assert line in text.splitlines()


def test_who_has_failed_once_has_not_passed() -> None:
    """Its set-up, or its end; and a run that found nothing to run says so."""
    text = "\n".join(page(Results([DEMO], [DEMO, "pytest ended with 4"])))
    assert "  0 of  1  the demo" in text
    assert "failed 2" in text
    assert "FAILED pytest ended with 4" in text


def test_runs_are_added_up(tmp_path: Path) -> None:
    for number in (1, 2):
        run = Results([f"test_{number}"], [], Counter(records=10), loads={f"run {number}": 2.0})
        run.seconds["tests/core"], run.tests["tests/core"] = 1.5, number
        (tmp_path / f"{number}.json").write_text(json.dumps(vars(run)))
    total = results.read(tmp_path)
    assert (total.passed, total.shown["records"]) == (["test_1", "test_2"], 20)
    assert "| 3.0 | 3 | `tests/core` |" in table(tmp_path)
    assert "at a load of the machine of: run 1 2.0, run 2 2.0." in table(tmp_path)


def test_a_quick_run_looks_less_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "global_force_seed", None)
    monkeypatch.setattr(effort, "_examples", lambda: effort.USUAL)
    assert (effort.depth(8), effort.least(3_000), effort.scaled(60)) == (8, 3_000, 60)
    assert effort.walks(40, after=40) == range(40, 80)
    monkeypatch.setattr(effort, "_examples", lambda: 25)
    assert (effort.depth(8), effort.least(3_000), effort.scaled(60)) == (7, 300, 15)
    assert effort.walks(40, after=40) == range(40, 50)
    monkeypatch.setattr(core, "global_force_seed", 7)
    assert effort.walks(40) == range(7_000, 7_010)


@pytest.mark.slow
@pytest.mark.parametrize("is_ci", [False, True])
def test_a_failure_with_new_examples_is_printed_with_what_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_ci: bool
) -> None:
    """Hypothesis has other defaults where CI is set."""
    monkeypatch.delenv("CI", raising=False)
    if is_ci:
        monkeypatch.setenv("CI", "true")
    file, kept = tmp_path / "test_laws.py", tmp_path / "results.json"
    file.write_text(LAWS)
    pytest_ = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", "pyproject.toml"]
    pytest_ += ["-p", "no:cacheprovider", f"--rootdir={tmp_path}", f"--results={kept}"]

    def run(*more: str) -> tuple[str, str]:
        """What pytest prints, and which examples it has tried."""
        drawn = file.with_suffix(".drawn")
        drawn.unlink(missing_ok=True)
        with TemporaryDirectory() as known:  # failures of other runs would come first
            done = subprocess.run(
                [*pytest_, *more],
                cwd=ROOT,
                env={**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": known},
                capture_output=True,
                text=True,
                check=False,
            )
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stdout, drawn.read_text()

    told, tried = run("-n", "2", "--hypothesis-profile=all", str(file))
    (repeat,) = re.findall(r"repeat with: python -m pytest (.*)", told)
    name, profile, seed = repeat.split()
    assert name.endswith("test_laws.py::test_law")
    assert run(f"{file}::test_law", profile, seed)[1] == tried
    run_again = json.loads(kept.read_text())
    assert run_again["failed"] == [name]
    assert run_again["shown"] == {"properties": 1, "falsified": 1}
    other = run(f"{file}::test_law", "--hypothesis-profile=all")
    assert other[1] != tried
