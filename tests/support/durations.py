"""Seconds that tests took, by folder or file, as a table at the end of a run (a pytest plugin).

``python -m tests.support.durations FOLDER`` prints it as a page, for runs that kept their results.
"""

import sys
from pathlib import Path

import pytest

from tests.support import results

_PAGE = """# Times of tests

Seconds of all workers together, set-up included, by folder of unit tests and file of integration
tests. Most of the time they wait, beside each other: there are more workers than cores. Written by

```sh
make test-all
.venv/bin/python -m tests.support.durations .venv/results > docs/design/test-times.md
```
"""


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the table, longest first, in the process that started the workers."""
    took = results.of(config)
    if hasattr(config, "workerinput") or sum(took.seconds.values()) < 60:
        return
    terminalreporter.section("seconds by place (of all workers)")
    for where, seconds in sorted(took.seconds.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{seconds:8.1f} s {took.tests[where]:6} tests  {where}")


def page(folder: Path) -> str:
    """Return the table of several runs."""
    took = results.read(folder)
    loads = ", ".join(f"{name} {load:.1f}" for name, load in took.loads.items())
    lines = [_PAGE, f"These runs of pytest are in it, at a load of the machine of: {loads}.", ""]
    lines += ["| seconds | tests | where |", "|---:|---:|---|"]
    ordered = sorted(took.seconds.items(), key=lambda item: -item[1])
    lines += [f"| {seconds:.1f} | {took.tests[at]} | `{at}` |" for at, seconds in ordered]
    total = sum(took.seconds.values())
    return "\n".join([*lines, f"| {total:.1f} | {took.tests.total()} | all |"])


if __name__ == "__main__":
    print(page(Path(sys.argv[1])))
