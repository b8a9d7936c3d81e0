"""``kshare-python``: a PySpark that is compiled once, and a daemon with its imports done."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import spark_plugin
from spark_plugin import forked_start
from spark_plugin.interpreter import worker_python

STARTER = Path(spark_plugin.__file__).with_name("kshare-python")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An environment with PySpark, and a distribution of Spark beside it."""
    (tmp_path / "env" / "bin").mkdir(parents=True)
    shutil.copy(STARTER, tmp_path / "env" / "bin")
    (tmp_path / "env" / "bin" / "python3").symlink_to(sys.executable)
    for path in (
        "env/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip",
        "env/lib/python3.11/site-packages/pyspark/__init__.py",
        "spark/python/lib/pyspark.zip",
        "spark/python/pyspark/__init__.py",
        "other/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip",
        "other/lib/python3.11/site-packages/pyspark/__init__.py",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    return tmp_path


def started(home: Path, python_path: str | None, *arguments: str) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if python_path is not None:
        env["PYTHONPATH"] = python_path
    code = "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv[1:], sep='|')"
    command = [str(home / "env" / "bin" / "kshare-python"), "-c", code, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert not run.stderr
    return run.stdout.rstrip("\n").replace(str(home), "~")


PIP = "lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, ""),
        ("", ""),
        ("/a b:/c*", "/a b:/c*"),
        ("/a::/b:", "/a::/b:"),
        ("~/spark/python/lib/pyspark.zip:/py4j.zip:/a", "~/spark/python:/py4j.zip:/a"),
        (f"/a:~/env/{PIP}:/py4j.zip", "/a:/py4j.zip"),
        (f"~/env/{PIP}", ""),
        (f"~/other/{PIP}:/a", f"~/other/{PIP}:/a"),  # perhaps another version
        ("~/none/python/lib/pyspark.zip", "~/none/python/lib/pyspark.zip"),
        ("pyspark.zip:/my/pyspark.zip", "pyspark.zip:/my/pyspark.zip"),
        ("/jars/spark-core_2.13-4.3.0.jar:/a:/my.jar", "/a:/my.jar"),
        ("/a:~/spark/jars/spark-core_2.13-4.0.2.jar", "/a"),
    ],
)
def test_the_path_of_the_workers(home: Path, before: str | None, after: str) -> None:
    assert started(home, before and before.replace("~", str(home))) == after


def test_arguments_are_passed_on_as_they_are(home: Path) -> None:
    assert started(home, "/a", "-m", "a b", "*", "", "$HOME") == "/a|-m|a b|*||$HOME"


@pytest.mark.parametrize(
    ("given", "plain", "executed"),
    [
        ("-m pyspark.daemon pyspark.worker", None, "-P -m spark_plugin.daemon pyspark.worker"),
        ("-m pyspark.daemon pyspark.worker", "0", "-P -m spark_plugin.daemon pyspark.worker"),
        ("-m pyspark.daemon pyspark.worker", "1", "{} pyspark.daemon pyspark.worker"),
        ("-m pyspark.daemon pyspark.worker x", None, "-P -m spark_plugin.daemon pyspark.worker x"),
        ("-m my.daemon pyspark.worker", None, "{} my.daemon pyspark.worker"),
        ("-m pyspark.daemon pyspark.sql.worker.x", None, "{} pyspark.daemon pyspark.sql.worker.x"),
        ("-m pyspark.worker", None, "{} pyspark.worker"),
        ("-m my.program", None, "-m my.program"),
        ("-m my.program pyspark.x", None, "-m my.program pyspark.x"),
        ("my.py -m pyspark.worker", None, "my.py -m pyspark.worker"),
        ("-m", None, "-m"),
        ("", None, ""),
    ],
)
def test_the_daemon_of_workers_is_ours_unless_another_one_was_chosen(
    home: Path, given: str, plain: str | None, executed: str
) -> None:
    """And nothing of Spark's begins with the current folder on its path (-P)."""
    executed = executed.format("-P -m spark_plugin.plain_start")
    assert executed_for(home, given.split(), plain) == executed


def executed_for(home: Path, arguments: list[str], plain: str | None) -> str:
    """Return what kshare-python executes Python with."""
    python = home / "env" / "bin" / "python3"
    python.unlink()
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if name != "KSHARE_PLAIN_DAEMON"}
    if plain is not None:
        env["KSHARE_PLAIN_DAEMON"] = plain
    command = [str(home / "env" / "bin" / "kshare-python"), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return run.stdout.strip()


@pytest.mark.parametrize(
    ("given", "plain", "executed"),
    [
        ("-m pyspark.daemon pyspark.sql.worker.x", None, "-I -S ~/kshare-start.py {}"),
        ("-m pyspark.sql.streaming.x", None, "-I -S ~/kshare-start.py {}"),
        (
            "-m pyspark.sql.streaming.x",
            "1",
            "-P -m spark_plugin.plain_start pyspark.sql.streaming.x",
        ),
        ("-m pyspark.daemon pyspark.worker", None, "-P -m spark_plugin.daemon pyspark.worker"),
        (
            "-m my.daemon pyspark.sql.worker.x",
            None,
            "-P -m spark_plugin.plain_start my.daemon pyspark.sql.worker.x",
        ),
        ("-m pyspark.other", None, "{}"),
        ("-c import sys; print(sys.version)", None, "-I -S {}"),
        ("-c import sys; print(sys.version)", "1", "{}"),
    ],
)
def test_processes_that_plan_are_asked_of_the_fork_server(
    home: Path, given: str, plain: str | None, executed: str
) -> None:
    (home / "env" / "bin" / "kshare-start.py").touch()
    shown = executed_for(home, given.split(maxsplit=1) if "-c" in given else given.split(), plain)
    assert shown == executed.format(given).replace("~", str(home / "env" / "bin"))


def test_how_it_ends_is_how_python_ends(home: Path) -> None:
    run = subprocess.run([home / "env/bin/kshare-python", "-c", "raise SystemExit(7)"], check=False)
    assert run.returncode == 7


def test_it_is_installed_beside_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = Path(worker_python())
    assert python.name == "kshare-python"
    assert python.read_bytes() == STARTER.read_bytes()
    start = Path(forked_start.__file__).read_bytes()
    assert python.with_name("kshare-start.py").read_bytes() == start
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    assert worker_python() == sys.executable
