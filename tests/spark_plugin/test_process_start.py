"""Processes that Spark starts: what lies in the current folder hides nothing of kshare's."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark_plugin.process_start import is_sparks
from tests.test_start_folder import ROOT, put

SHOWS = """
import json, os, sys
import spark_plugin, kshare, kafka, mmh3, queue
import mine
NAMES = ("kshare", "kafka", "mmh3", "queue", "mine")
print(json.dumps({
    "mine": [name for name in NAMES if hasattr(sys.modules[name], "mine")],
    "argv": sys.argv, "orig": sys.orig_argv[1:], "first": sys.path[0], "name": __name__,
}))
"""


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("-m pyspark.daemon pyspark.worker", True),
        ("-m pyspark.worker", True),
        ("-u -P -m spark_plugin.daemon pyspark.worker", True),
        ("-P -m spark_plugin.plain_start pyspark.sql.streaming.x", True),
        ("-m pyspark.sql.worker.lookup_data_sources", True),
        ("-m pyspark.sql.connect.streaming.worker.x", True),
        ("-m my.daemon pyspark.worker", True),
        ("-m my.daemon pyspark.sql.worker.x", True),
        ("-m pyspark.pipelines.cli run", False),  # a driver
        ("-m my.program", False),
        ("-m my.program x pyspark.worker", False),
        ("job.py -m pyspark.worker", False),
        ("-c code", False),
        ("-m", False),
        ("", False),
    ],
)
def test_which_processes_are_sparks(command: str, expected: bool) -> None:
    assert is_sparks(["python3", *command.split()]) is expected


def shown(folder: Path, *command: str, **environment: str) -> dict[str, object]:
    """Run a module as Spark does its own, with a daemon of the user's."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put(tmp_path, "mine", "kafka/", "mmh3", "kshare/")
    (tmp_path / "shows.py").write_text(SHOWS)
    return tmp_path


PLAIN = ("-m", "shows", "pyspark.worker")
SAFE = ("-P", "-m", "spark_plugin.plain_start", "shows", "pyspark.worker")


def test_nothing_of_the_folder_but_users_own_modules_are_imported(folder: Path) -> None:
    put(folder, "queue", "types", "logging", "random", "numpy", "pyarrow")
    found = shown(folder, *SAFE)
    assert found == {
        "mine": ["mine"],
        "argv": [str(folder / "shows.py"), "pyspark.worker"],
        "orig": ["-m", "shows", "pyspark.worker"],
        "first": str(folder),
        "name": "__main__",
    }


def test_it_is_as_with_another_python_besides(folder: Path) -> None:
    """``python -m``: what was not imported yet is imported from elsewhere."""
    assert shown(folder, *PLAIN) == shown(folder, *SAFE)


def test_a_folder_on_the_path_by_the_environment_hides_nothing_either(folder: Path) -> None:
    (folder / "kshare/__init__.py").unlink()
    for command in (PLAIN, SAFE):
        assert shown(folder, *command, PYTHONPATH=str(folder))["mine"] == ["mine"]


def test_who_wants_no_folder_on_the_path_has_none(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shows", "pyspark.worker"],
        cwd=folder,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named shows" in done.stderr


@pytest.mark.parametrize("name", ["numpy", "pyarrow"])
def test_what_pyspark_has_imported_from_the_folder_is_an_error_that_names_it(
    tmp_path: Path, name: str
) -> None:
    put(tmp_path, name)
    (tmp_path / "shows.py").write_text(f"import {name}, spark_plugin\n")
    command = [sys.executable, "-m", "shows", "pyspark.worker"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {tmp_path}/{name}.py was imported in place of a package")
    assert "kshare-python" in last


def test_a_whole_clone_is_imported_as_a_whole(tmp_path: Path) -> None:
    """With another Python than kshare-python, PySpark finds the clone's source before kshare's."""
    for name in ("kshare", "spark_plugin"):
        ignored = shutil.ignore_patterns("kernels-*", "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    (tmp_path / "shows.py").write_text(
        "import sys, spark_plugin, kshare, kshare.kafka_python, kshare.read.decode.compiled as c\n"
        "from kshare.read.decode.kernel_library import locate\n"
        "c._library()\n"
        "print(kshare.__file__, spark_plugin.__file__, locate())\n"
    )
    command = [sys.executable, "-m", "shows", "pyspark.worker"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    own, plugin, library = done.stdout.split()
    assert (own, plugin) == (
        f"{tmp_path}/kshare/__init__.py",
        f"{tmp_path}/spark_plugin/__init__.py",
    )
    assert library.startswith(str(ROOT))
