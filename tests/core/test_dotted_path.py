"""What a dotted path leads to."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kshare.core.dotted_path import find, unknown

BUILT_IN = ("one", "two")


@pytest.mark.parametrize("separator", [".", ":"])
def test_a_callable(separator: str) -> None:
    assert find(f"json{separator}dumps", "codec", BUILT_IN) is json.dumps


def test_an_attribute_of_an_attribute() -> None:
    assert find("json:JSONDecoder.decode", "codec", BUILT_IN) is json.JSONDecoder.decode


def test_an_object_that_assigns(monkeypatch: pytest.MonkeyPatch) -> None:
    """An assignor need not be callable."""
    assignor = SimpleNamespace(assign=lambda state: state)
    monkeypatch.setitem(sys.modules, "some_module", SimpleNamespace(assignor=assignor))
    assert find("some_module.assignor", "assignor", BUILT_IN) is assignor


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "it is neither built in nor the dotted path of a callable"),
        ("three", "it is neither built in nor the dotted path of a callable"),
        (".relative.path", "it is neither built in nor the dotted path of a callable"),
        (":dumps", "it is neither built in nor the dotted path of a callable"),
        ("json:", "it is neither built in nor the dotted path of a callable"),
        ("no_such_package.function", "module no_such_package cannot be imported"),
        ("json:no_such", "module json has no no_such"),
        ("json:JSONDecoder.no_such", "module json has no JSONDecoder.no_such"),
        ("json.__name__", "__name__ in module json cannot be called"),
    ],
)
def test_a_path_that_leads_nowhere(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match="built in are: one, two") as caught:
        find(name, "codec", BUILT_IN)
    assert str(caught.value).startswith(f"no codec {name!r}: {reason}")


def test_a_module_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails_when_imported.py").write_text("raise RuntimeError('boom')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"cannot be imported: RuntimeError\('boom'\)"):
        find("fails_when_imported.made", "codec", BUILT_IN)


def test_the_error() -> None:
    text = "no codec 'x': it is gone; built in are: one, two"
    assert str(unknown("x", "codec", "it is gone", BUILT_IN)) == text
    assert str(unknown("x", "codec", "it is gone", ())) == "no codec 'x': it is gone"
