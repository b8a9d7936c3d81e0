"""The part of ``kshare doctor`` that looks at the Python of Spark's workers, and what that finds.

Guarantee: whatever that program is, says or lacks is a finding, with a remedy for that cause.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from kshare._version import __version__
from kshare.cli.findings import Finding
from kshare.cli.workers_imports import files_here, judged, remedies, they_hide

__all__ = ["examine_workers", "run_program"]

_SECONDS_MAX: Final = 60.0
_KSHARE_PYTHON: Final = "export PYSPARK_PYTHON=$(command -v kshare-python)"
_PYTHON_MIN: Final = (3, 11)
_NEWER: Final = f"kshare needs Python {'.'.join(map(str, _PYTHON_MIN))} or later: {_KSHARE_PYTHON}"
_PYSPARK_MIN: Final = (4, 0)
_PROBE: Final = Path(__file__).with_name("probe.py")
_ANSWERS: Final = {"python", "prefix", "pyspark", "kshare", "broken"}


def run_program(
    command: Sequence[str], environment: Mapping[str, str], *, seconds_max: float
) -> subprocess.CompletedProcess[str]:
    """Run a program, and take what it prints.

    Raises:
        OSError: It cannot be started.
        subprocess.TimeoutExpired: It takes longer; it is ended.
    """
    return subprocess.run(  # noqa: S603 - what the user's environment names
        command,
        capture_output=True,
        text=True,
        errors="replace",  # a finding is no less true for a byte that is no text
        timeout=seconds_max,
        check=False,
        env=dict(environment),
    )


def examine_workers(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Look at the Python that Spark's workers will run, and at what it finds there.

    Args:
        environment: The environment variables that Spark will see.
    """
    given = environment.get("PYSPARK_PYTHON")
    python = shutil.which(given or "python3", path=environment.get("PATH"))
    if python is None:
        text = (
            f"PYSPARK_PYTHON={given} is no program" if given else "there is no python3 on the PATH"
        )
        yield Finding("workers' Python", "red", text, _KSHARE_PYTHON)
        return
    files = files_here()
    try:
        seen = _probe(python, environment, files)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        yield _does_not_run(python, str(error), files)
        return
    yield _python(python, seen, is_given=bool(given))
    yield from _drivers_python(environment, seen)
    yield _pyspark(python, seen)
    yield from _kshare(python, seen)
    if seen["kshare"] is not None and "origins" in seen:
        yield Finding("workers' imports", *judged(python, seen, files))
    yield _data_sources(seen)


def _probe(python: str, environment: Mapping[str, str], names: Iterable[str]) -> dict[str, Any]:
    """Start a process as Spark starts a daemon of workers, and let it look around.

    Raises:
        OSError: It cannot be started, or fails.
        subprocess.TimeoutExpired: It does not end.
        ValueError: It ends well and says nothing, so it is no Python.
    """
    with tempfile.TemporaryDirectory(prefix="kshare-doctor-") as folder:
        (Path(folder) / "kshare_probe.py").write_bytes(_PROBE.read_bytes())
        path = [folder, *filter(None, [environment.get("PYTHONPATH")])]
        done = run_program(
            [python, "-m", "kshare_probe", "pyspark.worker", *names],
            {**environment, "PYTHONPATH": os.pathsep.join(path)},
            seconds_max=_SECONDS_MAX,
        )
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    try:
        seen = json.loads((done.stdout.splitlines() or [""])[-1])
    except ValueError:
        seen = None
    if not isinstance(seen, dict) or not seen.keys() >= _ANSWERS:
        raise ValueError("it ends without an answer, as no Python does")
    return seen


def _does_not_run(python: str, why: str, files: Mapping[str, str]) -> Finding:
    remedy = f"see what {python} -c pass says in a shell; or {_KSHARE_PYTHON}"
    if files:
        remedy = remedies(python, files.values())
    elif why.startswith("SyntaxError"):  # so old that it cannot say its version
        remedy = _NEWER
    return Finding(
        "workers' Python", "red", f"{python} does not run: {why}{they_hide(files.values())}", remedy
    )


def _python(python: str, seen: Mapping[str, Any], *, is_given: bool) -> Finding:
    found = ".".join(map(str, seen["python"]))
    if tuple(seen["python"][:2]) < _PYTHON_MIN:
        return Finding("workers' Python", "red", f"{python} is Python {found}", _NEWER)
    if tuple(seen["python"][:2]) != sys.version_info[:2]:
        here = ".".join(map(str, sys.version_info[:3]))
        text = f"{python} is Python {found}, this one is {here}; Spark wants the same minor version"
        return Finding("workers' Python", "red", text, f"let both be one: {_KSHARE_PYTHON}")
    if not is_given:
        text = (
            f"{python}, Python {found}: the first python3 on the PATH, as PYSPARK_PYTHON is not set"
        )
        return Finding("workers' Python", "yellow", text, _KSHARE_PYTHON)
    return Finding("workers' Python", "green", f"{python}, Python {found}")


def _drivers_python(environment: Mapping[str, str], seen: Mapping[str, Any]) -> Iterator[Finding]:
    given = environment.get("PYSPARK_DRIVER_PYTHON")
    if not given:
        return
    python = shutil.which(given, path=environment.get("PATH"))
    if python is None:
        text = f"PYSPARK_DRIVER_PYTHON={given} is no program"
        yield Finding("driver's Python", "red", text, "give it the value of PYSPARK_PYTHON")
    elif environment.get("PYSPARK_PYTHON") != given:
        text = f"PYSPARK_DRIVER_PYTHON={given} is not PYSPARK_PYTHON ({seen['prefix']})"
        yield Finding("driver's Python", "yellow", text, "give both the same value")


def _pyspark(python: str, seen: Mapping[str, Any]) -> Finding:
    package = "pyspark" if _installed("pyspark") else "pyspark-client"
    found, here = seen["pyspark"], _installed(package)
    wanted = ".".join(map(str, _PYSPARK_MIN))
    if found is None:
        text = "is not installed where workers run; Spark lends them its own"
        if here is None:
            return Finding("PySpark", "red", "is not installed", f"pip install 'pyspark>={wanted}'")
        return Finding("PySpark", "yellow", text, "install it there, too: queries start faster")
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < _PYSPARK_MIN:
        remedy = f"kshare needs PySpark {wanted} or later: {_install(python, 'pyspark>=' + wanted)}"
        return Finding("PySpark", "red", found, remedy)
    if here is not None and here != found:
        text = f"{found} where workers run, {here} here"
        remedy = f"install one version in both: {_install(python, f'{package}=={here}')}"
        return Finding("PySpark", "red", text, remedy)
    return Finding("PySpark", "green", found)


def _kshare(python: str, seen: Mapping[str, Any]) -> Iterator[Finding]:
    found = seen["kshare"]
    if found is None:
        text = f"is not installed for {python}: format('kshare') will not be found"
        remedy = f"install kshare {__version__} for it, or use what has kshare: {_KSHARE_PYTHON}"
        yield Finding("kshare", "red", text, remedy)
    elif found != __version__:
        text = f"{found} where workers run, {__version__} here"
        yield Finding("kshare", "red", text, f"install the same version in both, {__version__}")
    else:
        yield Finding("kshare", "green", found)


def _data_sources(seen: Mapping[str, Any]) -> Finding:
    if not seen["broken"]:
        return Finding("data sources", "green", "all modules named pyspark_* can be imported")
    broken = "; ".join(f"{name}: {why}" for name, why in sorted(seen["broken"].items()))
    remedy = f"repair or uninstall {', '.join(sorted(seen['broken']))}"
    if seen["broken"].keys() == {"pyspark_kshare"}:  # on the path, as in a clone, and no more
        remedy = _KSHARE_PYTHON
    text = f"Spark finds no Python data source while one of them fails: {broken}"
    return Finding("data sources", "red", text, remedy)


def _install(python: str, requirement: str) -> str:
    return f"{python} -m pip install '{requirement}'"


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
