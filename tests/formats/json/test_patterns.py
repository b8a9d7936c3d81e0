"""Patterns of dates and times, the options that have them, and texts without one."""

import pytest

from kshare.errors import OptionsError
from kshare.formats.json.options import JSON_OPTIONS, JsonOptions
from kshare.formats.json.patterns import Moment, Pattern, PatternError
from kshare.formats.json.syntax import java_double, java_text
from kshare.formats.json.times import date_of, days, legacy_date, timestamp_of, zone_of


@pytest.mark.parametrize(
    ("pattern", "text", "wanted"),
    [
        ("yyyy-MM-dd", "2026-01-02", Moment((2026, 1, 2), (0, 0, 0, 0), None)),
        ("yy/M/d", "26/1/2", Moment((2026, 1, 2), (0, 0, 0, 0), None)),
        ("yyyyMMddHHmmssSSS", "20260102030405678", Moment((2026, 1, 2), (3, 4, 5, 678000), None)),
        ("d MMM yyyy h:mm a", "2 Jan 2026 12:04 AM", Moment((2026, 1, 2), (0, 4, 0, 0), None)),
        ("d MMMM yyyy h a", "2 May 2026 12 PM", Moment((2026, 5, 2), (12, 0, 0, 0), None)),
        ("HH:mm[:ss]XXX", "03:04Z", Moment((1970, 1, 1), (3, 4, 0, 0), "Z")),
        ("yyyy''MM'T'x", "2026'02T+01", Moment((2026, 2, 1), (0, 0, 0, 0), "+01")),
        ("yyyy VV", "2026 Europe/Paris", Moment((2026, 1, 1), (0, 0, 0, 0), "Europe/Paris")),
        ("yyyy Z", "2026 +0130", Moment((2026, 1, 1), (0, 0, 0, 0), "+0130")),
        ("yyyy-MM-dd", "2026-1-2", None),
        ("h", "13", None),
    ],
)
def test_patterns(pattern: str, text: str, wanted: Moment | None) -> None:
    assert Pattern(pattern).read(text) == wanted


@pytest.mark.parametrize("pattern", ["yyyy'", "[yyyy", "yyyy]", "QQ", "yyyyyyyy", "{yyyy}", "EEE"])
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        Pattern(pattern)


def test_options_have_sparks_names_in_any_case() -> None:
    options = JsonOptions.of({"TIMEZONE": "Europe/Paris", "maxnestingdepth": "7", "other": "x"})
    assert options == JsonOptions(time_zone="Europe/Paris", max_depth=7)
    assert JsonOptions.of({"allowComments": "TRUE"}).is_lenient
    assert set(JSON_OPTIONS.values()) <= set(JsonOptions.__slots__)


def test_all_options_that_are_wrong_are_named() -> None:
    wrong = {"timeZone": "Mars/Base", "maxNestingDepth": "0", "allowComments": "yes"}
    with pytest.raises(OptionsError) as error:
        JsonOptions.of({**wrong, "dateFormat": "QQ"})
    for name in (*wrong, "dateFormat"):
        assert name in str(error.value)


def test_days_are_those_of_the_proleptic_calendar() -> None:
    assert [days(1970, 1, 1), days(1969, 12, 31), days(2000, 2, 29)] == [0, -1, 11016]
    assert days(1900, 2, 29) is None
    assert days(-1, 12, 31) == -719_529


def test_dates_that_spark_has_kept() -> None:
    assert legacy_date("2026-01-02GMT") == date_of("2026-01-02")
    assert legacy_date("-00200000") == -200_009  # the same date in the Julian calendar
    assert legacy_date("99999999999") is None


def test_zones() -> None:
    assert zone_of("PST") == zone_of("America/Los_Angeles")
    assert zone_of("+1:00") == zone_of("+01") == zone_of("UTC+1") == zone_of("+010000")
    for name in ("+18:01", "utc", "../etc/passwd", "GMT+x", "", "Mars/Base"):
        assert zone_of(name) is None
    assert timestamp_of("2026-07-01T00:00:00", "Europe/Paris") == 1_782_856_800_000_000


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (123.456, "123.456"),
        (1.5e300, "1.5E300"),
        (5e-324, "4.9E-324"),
        (float("inf"), "Infinity"),
    ],
)
def test_doubles_as_java_writes_them(number: float, text: str) -> None:
    assert java_double(number) == text


def test_what_is_no_utf_8_is_replaced_as_java_does() -> None:
    assert java_text(b"a\xed\xa0\x80b\xff") == "a\ufffdb\ufffd"
