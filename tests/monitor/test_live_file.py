"""Where an open batch is, in a file of this host."""

import os
import tempfile
import time
from pathlib import Path

import pytest

from kshare.core.live import FRESH_SECONDS, Live, run_of
from kshare.monitor.live_file import clear_live, clear_old, read_live, write_live


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def live_of(batch: str, ago: float = 0.0) -> Live:
    return Live(batch, round((time.time() - ago) * 1000), ())


def test_the_last_that_was_written_is_read(folder: Path) -> None:
    assert read_live("3f9c-1") is None
    for number in (1, 2):
        live = live_of(f"3f9c-{number}")
        write_live(live)
        assert read_live("3f9c-1") == live
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_live("3f9d-1") is None
    clear_live("3f9c")
    assert read_live("3f9c-1") is None


@pytest.mark.parametrize("batch", ["../x-1", "b", "x/y-2", ""])
def test_a_name_that_no_planner_draws_is_no_file(batch: str, folder: Path) -> None:
    write_live(live_of(batch))
    clear_live(run_of(batch))
    assert read_live(batch) is None
    assert not [*folder.iterdir()]


def test_what_is_old_damaged_or_of_another_user_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_live(live_of("3f9c-1", FRESH_SECONDS + 1))
    assert read_live("3f9c-1") is None
    write_live(live_of("3f9c-1"))
    (file,) = folder.iterdir()
    file.chmod(0o622)  # others may write to it
    assert read_live("3f9c-1") is None
    file.chmod(0o600)
    assert read_live("3f9c-1") is not None
    file.write_bytes(b"?")
    assert read_live("3f9c-1") is None
    user = os.geteuid()
    write_live(live_of("3f9c-1"))
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    file.rename(folder / file.name.replace(f"-{user}-", f"-{user + 1}-"))
    assert read_live("3f9c-1") is None


def test_a_write_that_has_died_and_files_of_killed_runs_go(folder: Path) -> None:
    write_live(live_of("3f9c-1"))
    (file,) = folder.iterdir()
    file.rename(file.with_suffix(".part"))
    write_live(live_of("3f9c-1"))
    assert [*folder.iterdir()] == [file]
    write_live(live_of("3f9d-1"))
    os.utime(file, (time.time() - 90_000,) * 2)
    clear_old()
    assert read_live("3f9d-1") is not None
    assert read_live("3f9c-1") is None
