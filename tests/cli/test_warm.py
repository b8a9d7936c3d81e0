"""``kshare warm`` compiles the kernels into a directory, once."""

from pathlib import Path

import pytest

from kshare.cli import main


def test_the_kernels_are_compiled_into_a_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "image" / "cache"
    assert main(["warm", str(folder)]) == 0
    (path,) = folder.glob("*.o")
    assert capsys.readouterr().out == f"compiled: {path}\n"
    made = path.stat().st_mtime_ns
    assert main(["warm", str(folder)]) == 0
    assert path.stat().st_mtime_ns == made


def test_a_stated_cache_directory_is_where_tasks_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert main(["warm"]) == 0
    assert list(tmp_path.glob("*.o"))


def test_a_directory_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("a file")
    assert main(["warm", str(tmp_path / "file" / "folder")]) == 1
    assert "the kernels cannot be kept" in capsys.readouterr().err
