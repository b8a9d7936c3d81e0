"""Runs the parity scenarios on other versions of Spark than this environment's.

``python -m integration.spark_versions`` runs them on the newest 4.0, 4.1, 4.2 and 4.3 for which
Maven Central has a kafka source; with names of versions, on those; ``--short``: the most telling
ones. An environment of a version has only PySpark, and takes all else from this one. It is made
once (400 MB), in ``.cache/spark``.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from integration.jars import CACHE, ROOT, locked

OLDEST = "4.0.2"
VERSIONS = (OLDEST, "4.1.4", "4.2.1", "4.3.0")
PARITY = (
    "integration/test_available_now.py",
    "integration/test_differential_calls.py",
    "integration/test_differential_batch.py",
    "integration/test_differential_stream.py",
    "integration/test_differential_sink.py",
    "integration/test_typed_versions.py",
    "integration/test_typed_rows.py",
    "integration/test_typed_avro.py",
    "integration/test_typed_sink.py",
    "integration/test_json_meaning.py",
    "integration/test_variant_meaning.py",
    "integration/test_typed_variant.py",
    "integration/test_connect.py::test_typed_rows",
    "integration/test_reused_frames.py::test_a_frame_ends_where_the_topic_did_at_its_first_action",
    "integration/test_reused_frames.py::test_the_static_side_of_a_join_ends_where_its_topic_did",
    "integration/test_reused_frames.py::test_a_frame_with_a_filter_is_planned_anew",
    "integration/test_reused_frames.py::test_rows_that_are_collected_again_are_those_of_before",
    "integration/test_spark_versions.py",
)
SHORT = (
    "integration/test_available_now.py::test_it_is_as_with_sparks_source[an_unfinished_batch]",
    "integration/test_available_now.py::test_it_is_as_with_sparks_source[rows_behind_a_watermark]",
    "integration/test_available_now.py::test_it_is_as_with_sparks_source[a_producer_that_goes_on]",
    "integration/test_differential_batch.py::test_rows[headers]",
    "integration/test_differential_stream.py::test_rows_of_each_batch[maxOffsetsPerTrigger]",
    "integration/test_differential_stream.py::test_one_checkpoint_in_turn",
    "integration/test_differential_sink.py::test_a_stream_and_its_restart",
    "integration/test_typed_versions.py::test_a_stream_of_all_types_and_its_restart[avro]",
    "integration/test_typed_versions.py::test_a_stream_of_all_types_and_its_restart[json]",
    "integration/test_spark_versions.py::test_what_one_batch_leaves",
    "integration/test_spark_versions.py::test_the_spark_is_of_the_wanted_version",
    "integration/test_spark_versions.py::test_a_task_finds_its_connection_to_spark",
)
PACKAGES = "KSHARE_TEST_PACKAGES"
WANTED = "KSHARE_TEST_SPARK"
# Old versions of PySpark leave sockets to the garbage collector.
_QUIET = ("-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning")


def environment(version: str) -> Path:
    """Return the Python of an environment with a version of PySpark, which is made if missing."""
    folder = CACHE / "spark" / version
    python, ready = folder / "bin" / "python", folder / "ready"
    with locked(CACHE / "spark" / f"{version}.lock"):
        if not ready.exists():
            print(f"installing PySpark {version} ...", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--no-compile"]
            subprocess.run([*pip, f"pyspark=={version}"], check=True)
            packages = next(folder.glob("lib/python3*/site-packages"))
            line = f"import os, site; site.addsitedir(os.environ.get({PACKAGES!r}, ''))\n"
            (packages / "the_rest.pth").write_text(line)
            ready.touch()
        for name, installed in (("kshare-python",) * 2, ("forked_start.py", "kshare-start.py")):
            shutil.copy(ROOT / "spark_plugin" / name, python.with_name(installed))
    return python


def variables(python: Path) -> dict[str, str]:
    """Return the environment variables for a Python of :func:`environment`."""
    starter = str(python.with_name("kshare-python"))
    kept = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    return {
        **kept,
        PACKAGES: os.environ.get(PACKAGES, sysconfig.get_path("purelib")),
        "PYSPARK_PYTHON": starter,
        "PYSPARK_DRIVER_PYTHON": starter,
    }


def run(version: str, tests: tuple[str, ...], more: list[str]) -> int:
    """Run tests on a version of Spark, and return the exit code of pytest."""
    print(f"-- Spark {version}", flush=True)
    python = environment(version)
    command = [str(python), "-m", "pytest", "-q", *_QUIET, "-p", "no:cacheprovider", *tests, *more]
    env = {**variables(python), WANTED: version}
    return subprocess.run(command, check=False, cwd=ROOT, env=env).returncode


def main() -> int:
    """Run the command, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m integration.spark_versions")
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--short", action="store_true", help="only the most telling scenarios")
    parser.add_argument("--install", action="store_true", help="only make the environments")
    arguments, more = parser.parse_known_args()
    if arguments.install:
        for version in arguments.versions:
            environment(version)
        return 0
    codes = [
        run(version, SHORT if arguments.short else PARITY, more) for version in arguments.versions
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
