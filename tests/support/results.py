"""What a run of pytest has done: which tests failed, how long they took, what they have shown.

A pytest plugin. ``--results FILE`` keeps it, so that several runs have one page and one table.
"""

import json
import os
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import pytest

_PROPERTY = "shown"
_of_this_test: Counter[str] = Counter()


@dataclass
class Results:
    """What one run has done, or several.

    Attributes:
        passed: Names of the tests that passed.
        failed: Names of those that did not, or could not be collected.
        shown: Sums of what tests have shown.
        seconds: Of all workers, by folder or file.
        tests: How many there were, by folder or file.
        loads: The machine's load over the last five minutes, at the end of each run.
    """

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    shown: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    tests: Counter[str] = field(default_factory=Counter)
    loads: dict[str, float] = field(default_factory=dict)

    def add(self, other: "Results") -> None:
        """Add another run."""
        self.passed += other.passed
        self.failed += other.failed
        self.shown += other.shown
        self.tests += other.tests
        self.loads |= other.loads
        for where, seconds in other.seconds.items():
            self.seconds[where] += seconds


def show(what: str, count: int = 1) -> None:
    """Say that the test that runs has shown something; a page at the end has the sum."""
    _of_this_test[what] += count


def read(folder: Path) -> Results:
    """Return what the runs have done whose files are in a folder."""
    total = Results()
    for file in sorted(folder.glob("*.json")):
        kept = json.loads(file.read_text())
        total.add(
            Results(
                kept["passed"],
                kept["failed"],
                Counter(kept["shown"]),
                defaultdict(float, kept["seconds"]),
                Counter(kept["tests"]),
                kept["loads"],
            )
        )
    return total


def place(nodeid: str) -> str:
    """Return the file of an integration test, the folder of a unit test.

    >>> place("tests/read/decode/test_kernels.py::test_crc")
    'tests/read/decode'
    >>> place("integration/test_faults.py::test_leader")
    'integration/test_faults.py'
    """
    path = PurePath(nodeid.partition("::")[0])
    return str(path if path.parts[:1] == ("integration",) else path.parent)


def of(config: pytest.Config) -> Results:
    """Return what a run has done until now, all of its workers."""
    return config.stash.setdefault(_RESULTS, Results())


_RESULTS = pytest.StashKey[Results]()


class _Collector:
    """Adds up what is reported to the process that started the workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._results = of(config)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        where, results = place(report.nodeid), self._results
        results.seconds[where] += report.duration
        results.tests[where] += report.when == "call"
        if report.when == "call" and report.passed:
            results.passed.append(report.nodeid)
        if report.failed:
            results.failed.append(report.nodeid)
        for name, value in report.user_properties:
            if name == _PROPERTY:
                assert isinstance(value, dict)
                results.shown.update(value)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._results.failed.append(report.nodeid)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the name of the file."""
    parser.addoption("--results", metavar="FILE", help="keep what this run has done in a file")


def pytest_configure(config: pytest.Config) -> None:
    """Collect, in the process that started the workers."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Collector(config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Send what a test has shown with its report; a law of Hypothesis says it by itself."""
    report = yield
    if report.when == "call" and item.get_closest_marker("hypothesis"):
        show("properties")
        show("falsified", report.failed)
    if _of_this_test:
        report.user_properties.append((_PROPERTY, dict(_of_this_test)))
        _of_this_test.clear()
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keep it."""
    name = session.config.getoption("--results")
    if name is None or hasattr(session.config, "workerinput"):
        return
    file = Path(name)
    results = of(session.config)
    failed = results.failed
    if exitstatus and not failed:
        failed = [f"pytest ended with {int(exitstatus)}"]
    file.parent.mkdir(parents=True, exist_ok=True)
    loads = {file.stem: os.getloadavg()[1]}
    file.write_text(json.dumps({**vars(results), "failed": failed, "loads": loads}))
