"""``kshare warm``, which images were built with, has nothing to do."""

from pathlib import Path

import pytest

from kshare.cli import main
from kshare.errors import KernelLibraryError
from kshare.wire.decode import kernel_library


def test_there_is_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warm"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("nothing to do: ")
    assert kernel_library.file_name() in said


def test_a_directory_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "image"
    assert main(["warm", str(folder)]) == 0
    assert f"{folder} is not needed" in capsys.readouterr().out
    assert not folder.exists()


def test_an_installation_without_kernels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> Path:
        raise KernelLibraryError("there are none")

    monkeypatch.setattr(kernel_library, "locate", missing)
    assert main(["warm"]) == 1
    assert capsys.readouterr().err == "kshare warm: there are none\n"
