"""The machine's part of ``kshare doctor``: Python, PySpark, data sources, Java, compiled code."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from kshare._version import __version__
from kshare.cli.health.finding import Finding
from kshare.cli.health.program import run_program

__all__ = ["examine_compiled_code", "examine_java", "examine_workers"]

_KSHARE_PYTHON: Final = "export PYSPARK_PYTHON=$(command -v kshare-python)"
_PYSPARK_MIN: Final = (4, 0)
_JAVA_MIN: Final = 17
_SECONDS_MAX: Final = 60.0
_PROBE: Final = Path(__file__).with_name("probe.py")


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
    try:
        seen = _probe(python, environment)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        yield Finding("workers' Python", "red", f"{python} does not run: {error}", _KSHARE_PYTHON)
        return
    yield _python(python, seen, is_given=bool(given))
    yield from _drivers_python(environment, seen)
    yield _pyspark(seen)
    yield from _kshare(python, seen)
    yield _data_sources(seen)


def _probe(python: str, environment: Mapping[str, str]) -> dict[str, Any]:
    command = [python, "-c", _PROBE.read_text()]
    done = run_program(command, environment, seconds_max=_SECONDS_MAX)
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def _python(python: str, seen: Mapping[str, Any], *, is_given: bool) -> Finding:
    found = ".".join(map(str, seen["python"]))
    if tuple(seen["python"][:2]) < (3, 11):
        text, remedy = f"{python} is Python {found}", "kshare needs Python 3.11 or later"
        return Finding("workers' Python", "red", text, remedy)
    if tuple(seen["python"][:2]) != sys.version_info[:2]:
        here = ".".join(map(str, sys.version_info[:3]))
        text = f"{python} is Python {found}, this one is {here}; Spark wants the same minor version"
        return Finding("workers' Python", "red", text, _KSHARE_PYTHON)
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


def _pyspark(seen: Mapping[str, Any]) -> Finding:
    found, here = seen["pyspark"], _installed("pyspark") or _installed("pyspark-client")
    wanted = ".".join(map(str, _PYSPARK_MIN))
    if found is None:
        text = "is not installed where workers run; Spark lends them its own"
        if here is None:
            return Finding("PySpark", "red", "is not installed", f"pip install 'pyspark>={wanted}'")
        return Finding("PySpark", "yellow", text, "install it there, too: queries start faster")
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < _PYSPARK_MIN:
        return Finding("PySpark", "red", found, f"kshare needs PySpark {wanted} or later")
    if here is not None and here != found:
        text = f"{found} where workers run, {here} here"
        return Finding("PySpark", "red", text, "install the same version in both")
    return Finding("PySpark", "green", found)


def _kshare(python: str, seen: Mapping[str, Any]) -> Iterator[Finding]:
    found = seen["kshare"]
    if found is None:
        text = f"is not installed for {python}: format('kshare') will not be found"
        yield Finding("kshare", "red", text, _KSHARE_PYTHON)
    elif found != __version__:
        text = f"{found} where workers run, {__version__} here"
        yield Finding("kshare", "red", text, "install the same version in both")
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


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def examine_java(environment: Mapping[str, str]) -> Finding:
    """Look at the Java that Spark will run."""
    home = environment.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    java = java or shutil.which("java", path=environment.get("PATH"))
    remedy = f"install Java {_JAVA_MIN} or later; put java on the PATH, or set JAVA_HOME"
    if java is None:
        return Finding("Java", "red", "there is none", remedy)
    try:
        done = run_program([java, "-version"], environment, seconds_max=_SECONDS_MAX)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("Java", "red", f"{java} does not run: {error}", remedy)
    match = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if match is None:
        return Finding("Java", "yellow", f"{java} says no version", remedy)
    major = int(match[2]) if match[1] == "1" and match[2] else int(match[1])
    if major < _JAVA_MIN:
        return Finding("Java", "red", f"{java} is Java {major}", remedy)
    return Finding("Java", "green", f"{java}, Java {major}")


def examine_compiled_code() -> Finding:
    """Load the reader's compiled code, and call a function of it."""
    import numpy as np  # noqa: PLC0415 - with Arrow 0.2 s, which the command's help does without

    try:
        from kshare.wire.decode import compiled  # noqa: PLC0415 - as above
        from kshare.wire.decode.layout import BATCH, BatchCount  # noqa: PLC0415 - as above

        compiled.index(np.zeros(1, np.uint8), np.zeros(1, BATCH), BatchCount())
    except Exception as error:  # whatever it is, tasks would meet it too
        text = f"the reader's machine code does not load: {type(error).__name__}: {error}"
        return Finding("compiled code", "red", text, "install kshare again")
    return Finding("compiled code", "green", "the reader's machine code loads")
