"""Archives of Spark on the path: what their finders cost a task."""

import importlib.util
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kshare import import_caches
from spark_plugin import task_side
from spark_plugin.partitions import SlicePartition
from tests.support.fake_logs import stream

SPARKS = ("pyspark.zip", "py4j-0.10.9.9-src.zip", "spark-core_2.13-4.0.2.jar")
USERS = ("mine.zip", "my-pyspark.zip", "py4j.zip")


@pytest.fixture
def archives(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Archives on the path, with a module each; Python has looked into all of them."""
    paths = {name: str(tmp_path / name) for name in (*SPARKS, *USERS)}
    for number, path in enumerate(paths.values()):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"in_archive_{number}.py", f"NUMBER = {number}")
    before = sys.path.copy()
    sys.path[:0] = paths.values()
    assert importlib.util.find_spec("nowhere_at_all") is None
    yield paths
    sys.path[:] = before
    for number, path in enumerate(paths.values()):
        sys.path_importer_cache.pop(path, None)
        sys.modules.pop(f"in_archive_{number}", None)


def test_sparks_are_not_read_again(archives: dict[str, str]) -> None:
    import_caches.forget_finders()
    for name in (SPARKS[0], USERS[0]):
        with zipfile.ZipFile(archives[name], "a") as archive:
            archive.writestr(f"later_in_{name[0]}.py", "")
    importlib.invalidate_caches()
    assert importlib.import_module("in_archive_0").NUMBER == 0
    assert importlib.util.find_spec("later_in_p") is None  # the directory is as it was
    assert importlib.util.find_spec("later_in_m") is not None


@pytest.mark.parametrize("name", USERS)
def test_those_of_users_stay(archives: dict[str, str], name: str) -> None:
    finder = sys.path_importer_cache[archives[name]]
    import_caches.forget_finders()
    assert sys.path_importer_cache[archives[name]] is finder


def test_a_task_forgets_them(archives: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_side, "_prepare_process", lambda: None)
    assert list(task_side.read_partition(SlicePartition(()), stream())) == []
    assert not sys.path_importer_cache.keys() & {archives[name] for name in SPARKS}
