"""What lies in the folder where a process starts does not change what kshare imports."""

import ast
import json
import os
import subprocess
import sys
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kshare.start_folder import NEEDED, InstalledFirst, hiding, python_module, python_of_kshare
from kshare.testing import FakeCluster

ROOT = Path(__file__).resolve().parents[1]
EXTRAS_OF_PROCESSES = ("opentelemetry", "pandas", "prometheus", "racks", "remote")


def put(folder: Path, *names: str) -> Path:
    """Modules of the user's, in a folder."""
    folder.mkdir(exist_ok=True)
    for name in names:
        file = folder / (f"{name[:-1]}/__init__.py" if name.endswith("/") else f"{name}.py")
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine = True\n")
    return folder


def run(code: str, folder: Path, *before: str, **environment: str) -> str:
    """Run code in a process whose current folder is first on its path; return what it says."""
    done = subprocess.run(
        [sys.executable, *before, "-c", code],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout or done.stderr


def test_all_that_kshare_asks_for_is_looked_for_elsewhere() -> None:
    """The packages that it requires, and those that they require, as far as they are installed."""
    modules: dict[str, set[str]] = {}
    for module, names in packages_distributions().items():
        for name in names:
            modules.setdefault(name.lower().replace("_", "-"), set()).add(module)
    needed, wanted = set[str](), {"kshare"}
    while wanted - needed:
        name = (wanted - needed).pop()
        needed.add(name)
        extras = EXTRAS_OF_PROCESSES if name == "kshare" else ("",)
        if name not in modules and name != "kshare":
            continue  # not installed
        for line in distribution(name).requires or ():
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                wanted.add(requirement.name.lower().replace("_", "-"))
    found = set[str]().union(*(modules.get(name, set()) for name in needed - {"kshare"}))
    assert len(found) > 15
    assert sorted(found - NEEDED - {"kshare", "spark_plugin", "pyspark_kshare"}) == []


def test_all_that_kshare_itself_imports_is_looked_for_elsewhere() -> None:
    commands = {"llvmlite", "matplotlib", "numba", "rich"}  # none of a planner's or a task's
    imported = set[str]()
    for file in [*ROOT.glob("kshare/**/*.py"), *ROOT.glob("spark_plugin/**/*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    known = NEEDED | sys.stdlib_module_names | commands
    assert sorted(imported - known - {"kshare", "spark_plugin"}) == []


# -- the finder ----------------------------------------------------------------------------------


def test_the_folders_modules_are_found_but_for_those_that_are_elsewhere(tmp_path: Path) -> None:
    put(tmp_path, "queue", "kafka/", "numpy", "mine", "no_such_dependency")
    (tmp_path / "pydantic").mkdir()  # no package
    code = f"""
import json, os, sys
from kshare import start_folder
start_folder.put_installed_first(os.getcwd())
names = ["queue", "kafka", "numpy", "mine", "pydantic", "time"]
print(json.dumps({{name: hasattr(__import__(name), "mine") for name in names}}))
assert os.getcwd() == {str(tmp_path)!r}
"""
    found = json.loads(run(code, tmp_path))
    assert {name for name, mine in found.items() if mine} == {"mine"}


def test_what_is_nowhere_else_is_found_in_the_folder(tmp_path: Path) -> None:
    """As dependencies that a job brings along."""
    put(tmp_path, "brought_along")
    finder = InstalledFirst(str(tmp_path), {"brought_along", "json"})
    assert finder.find_spec("brought_along", None) is None
    spec = finder.find_spec("json", None)
    assert spec is not None
    assert spec.origin == json.__file__


@pytest.mark.parametrize("spelling", ["{}", "{}/", "{}/../{0.name}", "."])
def test_a_folder_is_known_by_any_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    folder = put(tmp_path / "folder", "queue")
    monkeypatch.chdir(folder)
    entry = spelling.replace("{0.name}", "folder").format(folder)
    monkeypatch.setattr(sys, "path", [entry, "", *sys.path])
    spec = InstalledFirst(str(folder), {"queue"}).find_spec("queue", None)
    assert spec is not None
    assert spec.origin is not None
    assert not spec.origin.startswith(str(tmp_path))


# -- what hides what -----------------------------------------------------------------------------


def test_hiding(tmp_path: Path) -> None:
    put(tmp_path, "queue", "kafka/", "mine", "crc32c", "sched")
    (tmp_path / "numpy").mkdir()
    found = hiding([str(tmp_path)], imported={})
    assert found == {
        "crc32c": str(tmp_path / "crc32c.py"),
        "kafka": str(tmp_path / "kafka/__init__.py"),
        "queue": str(tmp_path / "queue.py"),
        "sched": str(tmp_path / "sched.py"),
    }
    assert sorted(hiding([str(tmp_path)], {"queue", "kafka"}, imported={})) == ["kafka", "queue"]


def test_what_is_imported_from_elsewhere_is_not_hidden(tmp_path: Path) -> None:
    put(tmp_path, "json")
    assert hiding([str(tmp_path)]) == {}
    assert sorted(hiding([str(tmp_path)], imported={})) == ["json"]


def test_a_folder_that_is_gone_hides_nothing(tmp_path: Path) -> None:
    assert hiding([str(tmp_path / "gone")]) == {}


# -- processes of the user's ---------------------------------------------------------------------

CONSUMER = "from kshare.group import KeySharedConsumer; print('imported')"


@pytest.mark.parametrize("name", ["kafka", "kafka/", "mmh3", "numpy", "pyarrow", "secrets"])
def test_an_error_names_the_file_that_hides_what_a_consumer_needs(
    tmp_path: Path, name: str
) -> None:
    put(tmp_path, name)
    file = tmp_path / (f"{name}__init__.py" if name.endswith("/") else f"{name}.py")
    last = run(CONSUMER, tmp_path).splitlines()[-1]
    assert last.startswith("ImportError: kshare.group.consumer.consumer cannot be ")
    assert f"{file} hides a module of the same name, which kshare needs. Rename it" in last


def test_it_names_it_where_the_users_own_program_has_imported_it(tmp_path: Path) -> None:
    put(tmp_path, "kafka/")
    last = run(f"import kafka; {CONSUMER}", tmp_path).splitlines()[-1]
    assert f"{tmp_path}/kafka/__init__.py hides a module" in last


def test_what_may_fail_later_is_a_warning(tmp_path: Path) -> None:
    put(tmp_path, "bz2")  # shutil and zipfile do without what it should have
    said = run(CONSUMER, tmp_path)
    assert said == "imported\n"
    said = run(CONSUMER, tmp_path, "-W", "error")
    assert f"RuntimeWarning: kshare.group.consumer.consumer may fail: {tmp_path}/bz2.py" in said


def test_other_files_and_other_errors_are_left_alone(tmp_path: Path) -> None:
    put(tmp_path, "mine", "turtle")
    (tmp_path / "kafka").mkdir()  # compose files and the like
    assert run(CONSUMER, tmp_path, "-W", "error") == "imported\n"
    last = run("from kshare.group import Nothing", tmp_path).splitlines()[-1]
    assert last.startswith("ImportError: cannot import name 'Nothing' from 'kshare.group'")


# -- processes of kshare's own -------------------------------------------------------------------


def test_a_process_of_kshares_own_imports_this_kshare_wherever_it_starts(tmp_path: Path) -> None:
    put(tmp_path, "kshare/", "queue", "kafka", "runpy")
    code = "import kshare, kshare.kafka_python, queue; print(kshare.__file__, sys.argv[1:])"
    done = subprocess.run(
        [*python_of_kshare(code), "a b"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{ROOT}/kshare/__init__.py ['a b']\n"
    command = [*python_module("kshare.cli"), "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("kshare 0.")


@pytest.mark.parametrize("module", ["kshare", "kshare.cli"])
def test_the_command_by_its_module(tmp_path: Path, module: str) -> None:
    put(tmp_path, "kafka", "numpy", "queue")
    with FakeCluster() as cluster:
        command = [sys.executable, "-m", module, "groups", "--json"]
        command += ["--bootstrap-servers", cluster.bootstrap_servers]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout or "{}")) == (0, []), done.stderr
