"""DESIGN.md is short; the map of the modules follows from their docstrings."""

import runpy

from tests.support.documents import ROOT

MAP = runpy.run_path(str(ROOT / "docs/map.py"))


def test_the_map_is_up_to_date() -> None:
    """``make map`` writes it."""
    assert (ROOT / "docs/design/map.md").read_text() == MAP["modules"]()


def test_every_module_says_what_it_is_for() -> None:
    for package in ("kshare", "spark_plugin"):
        for path in (ROOT / package).rglob("*.py"):
            assert MAP["summary"](path) or path.name == "__init__.py", path


def test_the_design_is_read_at_one_sitting() -> None:
    assert len((ROOT / "DESIGN.md").read_text().split()) <= 2_500


def test_every_package_is_in_the_layers() -> None:
    text = (ROOT / "DESIGN.md").read_text()
    layers = text[text.index("## Layers") : text.index("## A micro-batch")]
    for package in (ROOT / "kshare").glob("*/__init__.py"):
        assert package.parent.name in layers, package.parent.name
