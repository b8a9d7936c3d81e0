"""DESIGN.md names every module, so that a newcomer finds each in its map."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    path.relative_to(ROOT)
    for package in ("kshare", "spark_plugin")
    for path in (ROOT / package).rglob("*.py")
    if not path.stem.startswith("_")
)


@pytest.fixture(scope="module")
def map_() -> str:
    text = (ROOT / "DESIGN.md").read_text()
    return text[text.index("    kshare/ ") : text.index("## The read path")]


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_the_map_names_the_module(map_: str, module: Path) -> None:
    assert re.search(rf"\b{module.stem}\b", map_)
