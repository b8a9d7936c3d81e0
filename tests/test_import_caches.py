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
            archive.writestr(f"package_{number}/__init__.py", "")
            archive.writestr(f"package_{number}/inner.py", "")
    before = sys.path.copy()
    sys.path[:0] = paths.values()
    assert importlib.util.find_spec("nowhere_at_all") is None
    for number in range(len(paths)):
        importlib.import_module(f"package_{number}.inner")
    yield paths
    sys.path[:] = before
    for number, path in enumerate(paths.values()):
        for known in [path, f"{path}/package_{number}"]:
            sys.path_importer_cache.pop(known, None)
        for module in ("in_archive_{}", "package_{}", "package_{}.inner"):
            sys.modules.pop(module.format(number), None)


def test_sparks_are_not_read_again(archives: dict[str, str]) -> None:
    import_caches.forget_finders()
    for name in (SPARKS[0], USERS[0]):
        with zipfile.ZipFile(archives[name], "a") as archive:
            archive.writestr(f"later_in_{name[0]}.py", "")
    importlib.invalidate_caches()
    assert importlib.import_module("in_archive_0").NUMBER == 0
    assert importlib.util.find_spec("later_in_p") is None  # the directory is as it was
    assert importlib.util.find_spec("later_in_m") is not None


def finders_in(archive: str) -> dict[str, object]:
    """The finders of an archive and of the packages in it."""
    known = sys.path_importer_cache.items()
    return {path: finder for path, finder in known if path.startswith(archive)}


@pytest.mark.parametrize("name", SPARKS)
def test_no_package_of_sparks_is_read_again(archives: dict[str, str], name: str) -> None:
    """``pyspark.zip`` has 20 packages: its directory would be read once for each of them."""
    assert len(finders_in(archives[name])) == 2
    import_caches.forget_finders()
    assert finders_in(archives[name]) == {}


@pytest.mark.parametrize("name", USERS)
def test_those_of_users_stay(archives: dict[str, str], name: str) -> None:
    finders = finders_in(archives[name])
    assert len(finders) == 2
    import_caches.forget_finders()
    assert finders_in(archives[name]) == finders


def test_a_task_forgets_them(archives: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_side, "_prepare_process", lambda: None)
    assert list(task_side.read_partition(SlicePartition(()), stream())) == []
    assert not sys.path_importer_cache.keys() & {archives[name] for name in SPARKS}
