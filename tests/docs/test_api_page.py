"""``docs/api.md`` has what the public packages export."""

import importlib
import pkgutil
import re

import pytest

from tests.support.documents import ROOT

PACKAGES = (
    "kshare",
    "kshare.group",
    "kshare.log_format",
    "kshare.processing",
    "kshare.testing",
    "spark_plugin",
)
PAGE = (ROOT / "docs/api.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", PACKAGES)
def test_each_public_name_is_on_the_page_of_the_interface(package: str) -> None:
    exported = set(importlib.import_module(package).__all__) - {"__version__"}
    _, _, rest = PAGE.partition(f"\n## {package}\n")
    section = re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    shown_whole = f"::: {package}\n\n" in section
    assert shown_whole or exported <= set(re.findall(r"\w+", section))


def test_what_the_page_names_is_there() -> None:
    found = re.findall(r"^::: (\S+)\n(?: +options:\n +members: \[(.*)\]\n)?", PAGE, re.MULTILINE)
    assert len(found) > 10
    for path, members in found:
        there = pkgutil.resolve_name(path)
        for member in filter(None, members.split(", ")):
            assert hasattr(there, member), f"{path}.{member}"
