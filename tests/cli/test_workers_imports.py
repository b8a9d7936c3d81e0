"""``kshare doctor`` looks at what a worker imports that starts in the current folder."""

import os
import shutil
import sys
from pathlib import Path

import pytest

import spark_plugin
from kshare.cli.doctor_workers import examine_workers
from kshare.cli.findings import Finding
from tests.test_start_folder import ROOT, put


@pytest.fixture
def starter(tmp_path: Path) -> Path:
    """A kshare-python of this environment."""
    home = tmp_path / "bin"
    home.mkdir()
    shutil.copy(Path(spark_plugin.__file__).with_name("kshare-python"), home)
    python = home / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return home / "kshare-python"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def found(python: Path | str) -> dict[str, Finding]:
    environment = {"PATH": os.environ["PATH"], "PYSPARK_PYTHON": str(python)}
    return {finding.check: finding for finding in examine_workers(environment)}


def levels(findings: dict[str, Finding]) -> dict[str, str]:
    return {
        finding.check: finding.text for finding in findings.values() if finding.level != "green"
    }


def test_with_kshare_python_all_is_green_in_any_folder(folder: Path, starter: Path) -> None:
    put(folder, "queue", "logging", "types", "random", "kafka/", "numpy", "kshare/", "pyspark/")
    findings = found(starter)
    assert levels(findings) == {}
    text = f"of workers that start in {folder}: kshare in {ROOT}/kshare, and all that it needs"
    assert findings["workers' imports"].text == text


def test_what_can_be_saved_with_another_python_is_green(folder: Path) -> None:
    put(folder, "kafka/", "mmh3", "pydantic", "mine")
    assert levels(found(sys.executable)) == {}


@pytest.mark.parametrize("name", ["numpy", "queue", "logging"])
def test_what_fails_with_another_python_is_red_with_the_file(folder: Path, name: str) -> None:
    put(folder, name)
    finding = found(sys.executable)["workers' imports"]
    assert finding.level == "red"
    assert finding.text.startswith(f"of workers that start in {folder}: what kshare needs cannot")
    assert finding.text.endswith(f"modules of the same name are hidden by {folder}/{name}.py")
    assert f"rename {name}.py; start in another folder; " in finding.remedy
    assert "kshare-python" in finding.remedy


def test_a_python_that_does_not_start_is_red_with_the_file(folder: Path) -> None:
    put(folder, "types")
    finding = found(sys.executable)["workers' Python"]
    assert finding.level == "red"
    assert finding.text.endswith(f"modules of the same name are hidden by {folder}/types.py")


def test_what_may_fail_is_yellow(folder: Path) -> None:
    put(folder, "calendar")
    finding = found(sys.executable)["workers' imports"]
    assert finding.level == "yellow"
    assert finding.text.endswith(f"modules of the same name are hidden by {folder}/calendar.py")


def unbuilt(folder: Path) -> None:
    ignored = shutil.ignore_patterns("kernels-*", "__pycache__")
    for name in ("kshare", "spark_plugin"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyspark_kshare.py", "hatch_build.py"):
        shutil.copy(ROOT / name, folder)


def test_a_clone_that_is_not_built_works_with_the_kernels_of_the_installed_one(
    folder: Path, starter: Path
) -> None:
    unbuilt(folder)
    assert levels(found(starter)) == {}
    finding = found(sys.executable)["workers' imports"]
    assert finding.level == "yellow"
    assert f"kshare in {folder}/kshare, not the installed one in {ROOT}/kshare" in finding.text


def test_a_clone_of_other_sources_is_red(
    folder: Path, starter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbuilt(folder)
    with (folder / "kshare/read/decode/layout.py").open("a") as file:
        file.write("# changed\n")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "found = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'numba' else found(name, *rest)\n"
    )
    environment = {
        "PATH": os.environ["PATH"],
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(tmp_path / "site"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    findings = {finding.check: finding for finding in examine_workers(environment)}
    finding = findings["workers' imports"]
    assert finding.level == "red"
    assert f"{folder} is a clone of kshare that is not built" in finding.text
    assert "start in another folder" in finding.remedy
    assert levels(found(starter)) == {}
