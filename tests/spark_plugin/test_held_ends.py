"""A source hears of ``available_now`` by a file, which is there while the query runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kshare.errors import KshareError
from spark_plugin.held_ends import SAY_SECONDS, Hold, folder_name, hold

HOLDER = """
import sys
from spark_plugin.held_ends import hold
with hold(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "of-a-load")


def test_names_differ_and_nothing_is_made() -> None:
    names = {folder_name() for _ in range(100)}
    assert len(names) == 100
    assert not any(Path(name).exists() for name in names)


def test_a_source_is_held_while_the_query_runs(folder: str) -> None:
    assert not Hold(None)
    assert not Hold(folder)
    with hold(folder) as is_seen:
        assert not is_seen()
        found = Hold(folder)
        assert found
        assert is_seen()
    assert not found
    assert not Path(folder).exists()


def test_one_that_started_before_is_not_held(folder: str) -> None:
    before = Hold(folder)
    with hold(folder):
        assert not before


def test_two_queries_of_one_load(folder: str) -> None:
    """What starts is held until all are done that ran then."""
    with hold(folder) as first_is_seen:
        with hold(folder) as second_is_seen:
            found = Hold(folder)
            assert first_is_seen()
            assert second_is_seen()
        assert found
        with hold(folder):
            pass
    assert not found
    assert not Path(folder).exists()


def test_a_driver_that_is_killed_holds_nothing(folder: str) -> None:
    command = [sys.executable, "-c", HOLDER, folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"held\n"
        found = Hold(folder)
        assert found
        driver.kill()
    with pytest.raises(KshareError, match="process that ran available_now has gone"):
        bool(found)
    assert not Hold(folder)
    with hold(folder):  # what it left behind is in nobody's way
        assert Hold(folder)


def test_a_cleaner_of_temporary_files_ends_a_hold_and_fails_nothing(folder: str) -> None:
    with hold(folder):
        found = Hold(folder)
        for file in Path(folder).iterdir():
            file.unlink()
        Path(folder).rmdir()
        assert not found


def test_only_the_user_may_enter_the_folder(folder: str) -> None:
    with hold(folder):
        assert Path(folder).stat().st_mode & 0o777 == 0o700
        assert Path(folder).stat().st_uid == os.geteuid()


def test_a_source_that_stands_at_its_ends_says_so_once(folder: str) -> None:
    now = [0.0]
    with hold(folder):
        found = Hold(folder, clock=lambda: now[0])
        assert not found.is_late(at_end=True)
        now[0] += SAY_SECONDS - 1
        assert not found.is_late(at_end=True)
        assert not found.is_late(at_end=False)  # something came: an older end was finished
        assert not found.is_late(at_end=True)
        now[0] += SAY_SECONDS
        assert found.is_late(at_end=True)
        assert not found.is_late(at_end=True)
