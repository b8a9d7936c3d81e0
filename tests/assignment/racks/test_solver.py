"""scipy is an extra: what needs it says so, and nothing else does."""

import json
import subprocess
import sys
from typing import Any

import pytest

CASE = {
    "id": "crossed",
    "configs": {
        "rack_aware_assignment_strategy": "min_traffic",
        "rack_aware_traffic_cost": 10,
        "rack_aware_non_overlap_cost": 1,
    },
    "tasks": [{"id": f"0_{n}", "inputs": [f"t-{n}"]} for n in range(2)],
    "processes": [{"id": str(n), "threads": 1, "rack": f"r{n}"} for n in range(2)],
    "partition_racks": {"t-0": ["r1"], "t-1": ["r0"]},
}

# None in sys.modules is how Python itself marks a module that cannot be imported.
WITHOUT = """
import sys
sys.modules["scipy"] = None
from kshare.cli import main
code = main(["assign"])
assert "numpy" not in sys.modules or "racks" in sys.argv
raise SystemExit(code)
"""


def answer_without_scipy(case: dict[str, Any], *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments],
        input=json.dumps(case),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("assignor", ["HighAvailabilityTaskAssignor", "StickyTaskAssignor"])
def test_a_rack_strategy_names_the_extra_that_it_needs(assignor: str) -> None:
    raised = answer_without_scipy({**CASE, "assignor": assignor}, "racks")["raises"]
    assert raised == (
        "ModuleNotFoundError: rack-aware assignment needs scipy: pip install 'kshare[racks]', "
        "or set rack.aware.assignment.strategy to none"
    )


@pytest.mark.parametrize("assignor", ["HighAvailabilityTaskAssignor", "StickyTaskAssignor"])
def test_all_else_needs_neither_scipy_nor_numpy(assignor: str) -> None:
    without = {**CASE, "assignor": assignor, "configs": {"num_standby_replicas": 1}}
    assert answer_without_scipy(without)["assignment"]["0"]["active"] == ["0_0"]
    # A strategy without racks changes nothing, so it needs no solver.
    unknown = {**CASE, "assignor": assignor, "partition_racks": {}}
    assert answer_without_scipy(unknown)["assignment"]["0"]["active"] == ["0_0"]
