"""Seconds that tests took, by folder or file, as a table at the end of a run (a pytest plugin)."""

from collections import Counter, defaultdict
from pathlib import PurePath

import pytest

_SECONDS: defaultdict[str, float] = defaultdict(float)
_TESTS: Counter[str] = Counter()


def place(nodeid: str) -> str:
    """Return the file of an integration test, the folder of a unit test.

    >>> place("tests/wire/decode/test_kernels.py::test_crc")
    'tests/wire/decode'
    >>> place("integration/test_faults.py::test_leader")
    'integration/test_faults.py'
    """
    path = PurePath(nodeid.partition("::")[0])
    return str(path if path.parts[0] == "integration" else path.parent)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add a report's seconds; set-up counts where it happened."""
    where = place(report.nodeid)
    _SECONDS[where] += report.duration
    _TESTS[where] += report.when == "call"


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the table, longest first, in the process that started the workers."""
    if hasattr(config, "workerinput") or sum(_SECONDS.values()) < 60:
        return
    terminalreporter.section("seconds by place (of all workers)")
    for where, seconds in sorted(_SECONDS.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{seconds:8.1f} s {_TESTS[where]:6} tests  {where}")
