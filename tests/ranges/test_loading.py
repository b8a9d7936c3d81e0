import sys
from pathlib import Path

import pytest

from kshare.assignment import (
    RANGE_ASSIGNORS,
    adaptive,
    lag_weighted,
    load_range_assignor,
    round_robin,
)


def test_the_built_in_names() -> None:
    assert dict(RANGE_ASSIGNORS) == {
        "round-robin": round_robin,
        "lag-weighted": lag_weighted,
        "adaptive": adaptive,
    }
    for name, assignor in RANGE_ASSIGNORS.items():
        assert load_range_assignor(name) is assignor


@pytest.mark.parametrize("separator", [".", ":"])
def test_a_dotted_path(separator: str) -> None:
    name = f"kshare.ranges.pending{separator}lag_weighted"
    assert load_range_assignor(name) is lag_weighted


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "neither built in nor the dotted path"),
        ("sticky", "neither built in nor the dotted path"),
        (".relative.path", "neither built in nor the dotted path"),
        ("no_such_package.module.function", "no_such_package.module cannot be imported"),
        ("kshare.assignment:no_such", "kshare.assignment has no no_such"),
        ("kshare.ranges.pending.__doc__", "cannot be called"),
    ],
)
def test_names_that_cannot_be_used(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        load_range_assignor(name)
    assert "built in are: round-robin, lag-weighted, adaptive" in str(caught.value)


def test_a_module_that_fails_to_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_assignor_module.py").write_text("raise RuntimeError('boom')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"cannot be imported: RuntimeError.*boom"):
        load_range_assignor("broken_assignor_module.assign")
    assert "broken_assignor_module" not in sys.modules
