"""``kshare offsets reset``: times and durations, as text."""

import argparse
from datetime import UTC, datetime, timedelta

import pytest

from kshare.cli.arguments import add_commands
from kshare.cli.offsets import reset_target

NOW = datetime(2026, 3, 8, 6, tzinfo=UTC)


def target(*given: str) -> object:
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    arguments = parser.parse_args(["offsets", "reset", "--group", "billing", *given])
    return reset_target(parser, arguments, NOW)


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("PT1H30M", timedelta(hours=1, minutes=30)),
        ("P1D", timedelta(days=1)),
        ("P1W", timedelta(weeks=1)),
        ("P2DT3H4M5.5S", timedelta(days=2, hours=3, minutes=4, seconds=5.5)),
        ("90m", timedelta(minutes=90)),
        ("2 hours", timedelta(hours=2)),
    ],
)
def test_a_duration_is_before_now(text: str, before: timedelta) -> None:
    assert target("--by-duration", text) == NOW - before


@pytest.mark.parametrize(
    "text", ["2026-03-01T06:00:00Z", "2026-03-01T06:00:00.000", "2026-03-01T08:00:00+02:00"]
)
def test_a_time_without_a_zone_is_utc(text: str) -> None:
    assert target("--to-datetime", text) == datetime(2026, 3, 1, 6, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    ["P", "PT", "10", "", "-P1D", "1h30m", "P9999999999D", "P9999999D", f"PT{'9' * 400}S"],
)
def test_what_is_no_duration(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        target(f"--by-duration={text}")
    assert "argument --by-duration: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["{", "[" * 5000, '{"t": {"0": 1, "0": 2}}', '{"t": {"0": %s}}' % ("9" * 5000), '{"t": []}'],
)
def test_what_is_no_place(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        target(f"--to={text}")
    assert "argument --to: " in capsys.readouterr().err
