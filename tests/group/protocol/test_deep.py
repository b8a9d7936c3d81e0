"""Deep walks are counted, and a later run goes on where the last one ended."""

import json
from pathlib import Path

import pytest

from tests.group.protocol import deep


def counts(path: Path, *walks: int, first: int = 7) -> dict[str, dict[str, object]]:
    """What is counted after some runs, each up to a number of walks."""
    for number in walks:
        given = [str(number), str(first), "--processes", "1", "--worlds", "standalone", "leases"]
        deep.main([*given, "--state", str(path)])
    read: dict[str, dict[str, object]] = json.loads(path.read_text())["counts"]
    return {name: {**each, "seconds": None} for name, each in read.items()}


def test_a_later_run_goes_on(tmp_path: Path) -> None:
    at_once, in_parts = counts(tmp_path / "one", 5), counts(tmp_path / "two", 2, 5)
    assert at_once == in_parts
    assert [at_once[name]["walks"] for name in deep.NAMES] == [5, 0, 0, 5, 0]
    assert at_once["leases"]["faults"] == []


def test_a_run_of_other_seeds_does_not_go_on(tmp_path: Path) -> None:
    counts(tmp_path / "state", 1)
    with pytest.raises(ValueError, match="is of seeds from 7 on, not from 8"):
        counts(tmp_path / "state", 2, first=8)


def test_what_breaks_a_law_is_named_with_its_seed() -> None:
    def world(seed: int, _: object = None) -> object:
        return "a law" if seed == 5 else None

    count = deep.walked(world, range(3, 8))
    assert (count.walks, count.faults) == (5, ["seed 5: a law"])
