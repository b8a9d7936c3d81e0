"""The pictures of the documents can be drawn again, and show the figures of their one data file."""

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import ROOT

PICTURES = ROOT / "docs" / "pictures"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    runpy.run_path(str(ROOT / "docs" / "pictures.py"))["draw_all"](folder)
    return folder


def words(picture: Path) -> list[str]:
    """The texts of a picture, which matplotlib writes beside their outlines."""
    return re.findall(r"<!-- (.*?) -->", picture.read_text(), re.DOTALL)


@pytest.mark.long
def test_the_pictures_are_those_that_the_script_draws(drawn: Path) -> None:
    assert {file.name for file in drawn.iterdir()} == {file.name for file in PICTURES.glob("*.svg")}
    for file in drawn.iterdir():
        assert words(file) == words(PICTURES / file.name), f"make pictures: {file.name} is old"


@pytest.mark.long
def test_a_picture_is_the_same_each_time(drawn: Path, tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "docs" / "pictures.py"))["draw_all"](tmp_path)
    for file in drawn.iterdir():
        assert file.read_bytes() == (tmp_path / file.name).read_bytes(), file.name


def figures() -> list[dict[str, Any]]:
    data = tomllib.loads((ROOT / "docs" / "figures.toml").read_text())
    rows: list[dict[str, Any]] = data["figure"]
    return rows


@pytest.mark.parametrize("figure", figures(), ids=lambda figure: figure["what"])
def test_the_charts_figures_are_those_of_the_benchmarks(figure: dict[str, Any]) -> None:
    text = (ROOT / "docs" / "design" / "benchmarks.md").read_text()
    for value in (figure["peer_value"], figure["kshare_value"]):
        assert re.search(rf"(?<![\d.,]){value:,}(?![\d.])", text), value
    for end in ("peer_value", "kshare_value"):
        assert any(f"{figure[end]:,}" in word for word in words(PICTURES / "figures.svg"))
