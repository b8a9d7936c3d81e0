"""Every module can be imported where warnings are errors, and without any optional extra."""

import json
import pkgutil
import subprocess
import sys

import pytest

import kshare
import spark_plugin
import spark_plugin.demo

EXTRAS = (
    *("fsspec", "llvmlite", "matplotlib", "numba", "opentelemetry", "pandas"),
    *("prometheus_client", "rich", "scipy"),
)
OF_EXTRAS = {
    "kshare.assignment.racks.min_cost",
    "kshare.group.collector",
    "kshare.monitor.metric_families",
    "kshare.processing.collector",
    "kshare.processing.spans",
    "spark_plugin.demo.handlers_demo",
    "spark_plugin.demo.run",
    "spark_plugin.demo.state",
    "spark_plugin.prometheus",
}
"""Modules that public ones import when their extra is asked for. The demo is a command."""
IMPORT_ALL = """
import importlib, json, sys, traceback
blocked = set(json.loads(sys.argv[1]))

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
failed = {}
for name in json.loads(sys.stdin.read()):
    try:
        exec(f"from {name} import *", {})
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"
print(json.dumps(failed))
"""


def modules() -> list[str]:
    """All modules but the compiler's, which only a machine that compiles imports."""
    found = ["kshare", "spark_plugin", "pyspark_kshare"]
    for package in (kshare, spark_plugin):
        names = [m.name for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
        found += [name for name in names if not name.endswith("__main__")]
    return [name for name in found if ".kernels" not in name]


def failures(names: list[str], *, blocked: tuple[str, ...] = ()) -> dict[str, str]:
    """What cannot be star-imported in a process whose warnings are errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_ALL, json.dumps(blocked)],
        input=json.dumps(names),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    failed: dict[str, str] = json.loads(done.stdout)
    return failed


def test_all_modules_where_warnings_are_errors() -> None:
    assert failures(modules()) == {}


def test_all_but_those_of_an_extra_without_any_extra() -> None:
    assert failures([m for m in modules() if m not in OF_EXTRAS], blocked=EXTRAS) == {}


@pytest.mark.parametrize("name", ["kshare", "kshare.group", "kshare.processing", "kshare.testing"])
def test_a_public_package_alone_without_any_extra(name: str) -> None:
    """As the first import of a process: nothing that another one has imported helps."""
    assert failures([name], blocked=EXTRAS) == {}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("from kshare.group import *; register_metrics(None)", "kshare[prometheus]"),
        ("from kshare.group import *; serve_metrics(None, 0)", "kshare[prometheus]"),
        ("from kshare.processing import *; register_metrics(None)", "kshare[prometheus]"),
        ("from kshare.processing import *; traced(print)", "kshare[opentelemetry]"),
    ],
)
def test_who_calls_what_is_an_extras_is_told_which(call: str, said: str) -> None:
    script = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS!r})); {call}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ")
    assert f"pip install '{said}'" in last
