"""Texts by a pattern: the compiled reader knows the usual ones, and reads as the plain one does."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.formats.ddl import parse_schema
from kshare.formats.json.decoder import JsonDecoder
from kshare.formats.json.options import JsonOptions
from kshare.formats.json.pattern_steps import pattern_steps
from kshare.formats.json.patterns import Pattern, PatternError
from kshare.formats.json.plain import PlainReader
from tests.support.json_payloads import numbers, payloads

SCHEMA = parse_schema("v TIMESTAMP, l TIMESTAMP_NTZ, d DATE")
INSTANT = pa.timestamp("us", "UTC")

PARTS = [
    *("yyyy", "uuuu", "yy", "y", "MM", "M", "dd", "d", "HH", "H", "hh", "mm", "m", "ss"),
    *("S", "SSS", "SSSSSS", "SSSSSSSSS", "a", "X", "XX", "XXX", "x", "xx", "xxx", "Z", "MMM", "VV"),
    *("-", "/", ".", " ", ":", "'T'", "'at 5'", "[.SSS]", "[XXX]", "[x]", "['T'HH]", "[HH]"),
    *("[:ss[.SSS]]",),
]


def can_be_read(pattern: str) -> bool:
    try:
        Pattern(pattern)
    except PatternError:
        return False
    return True


MADE = st.lists(st.sampled_from(PARTS), min_size=1, max_size=9, unique=True).map("".join)
PATTERNS = MADE.filter(can_be_read) | st.sampled_from(
    [
        "yyyy-MM-dd",
        "yyyy-MM-dd HH:mm:ss",
        "dd.MM.yyyy HH:mm",
        "d/M/yy h:mm a",
        "yyyy-MM-dd'T'HH:mm[:ss][.SSS][XXX]",
        "yyyyMMddHHmmssSSS",
    ]
)
DIGITS = {
    "y": "2026 2026 26 0000 9999",
    "u": "2026 1969",
    "M": "02 2 12 13 Feb 0",
    "d": "29 28 3 31",
    "H": "23 7 07 24",
    "h": "12 1 01 0 13",
    "m": "59 5 60",
    "s": "59 5 00 60",
    "S": "1 123 123456 999999999",
    "a": "AM PM am XM A",
    "V": "Z Europe/Paris",
    **dict.fromkeys("XxZ", "Z +01:00 -0530 +01 +18:00 +18:01 -00:60 +1 + z"),
}


@st.composite
def texts(draw: st.DrawFn, pattern: str) -> str:
    """A text that is nearly of a pattern."""
    made, at = "", 0
    while at < len(pattern):
        letter, end = pattern[at], at + 1
        if letter == "'":
            end = pattern.index("'", at + 1) + 1
            made += pattern[at + 1 : end - 1]
        elif letter == "[" and draw(st.booleans()):
            depth = 1
            while depth:
                depth += {"[": 1, "]": -1}.get(pattern[end], 0)
                end += 1
        elif letter in DIGITS:
            while end < len(pattern) and pattern[end] == letter:
                end += 1
            listed = DIGITS[letter].split()
            fitting = [each for each in listed if len(each) == end - at] or listed
            made += draw(st.sampled_from(fitting) | st.sampled_from(listed))
        elif letter not in "[]":
            made += letter
        at = end
    if draw(st.integers(0, 3)) == 0:
        cut = draw(st.integers(0, len(made)))
        made = made[:cut] + draw(st.sampled_from(["", "0", "x", ":", "\u0661"])) + made[cut + 1 :]
    return made


@given(st.data())
def test_texts_are_read_as_the_plain_reader_reads_them(data: st.DataObject) -> None:
    pattern = data.draw(PATTERNS)
    found = data.draw(st.lists(texts(pattern), min_size=1, max_size=6))
    options = JsonOptions(
        timestamp_format=pattern,
        timestamp_ntz_format=pattern,
        date_format=pattern,
        time_zone=data.draw(st.sampled_from(["UTC", "Europe/Paris"])),
    )
    records = [json.dumps(dict.fromkeys("vld", text)).encode() for text in found]
    decoded = JsonDecoder(SCHEMA, options).decode(payloads(list(records)))
    reader = PlainReader(SCHEMA, options)
    read = [reader.read(record) for record in records]
    assert numbers(decoded.values) == numbers(pa.array([value for value, _ in read], SCHEMA))
    bad = [row for row, (_, fault) in enumerate(read) if fault is not None]
    assert [fault.row for fault in decoded.faults] == bad


@pytest.mark.parametrize(
    ("pattern", "is_exact"),
    [
        ("yyyy-MM-dd HH:mm:ss", True),
        ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", True),
        ("yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]", False),
        ("dd/MM/yy h:mm a", True),
        ("yyyyMMddHHmmssSSS", True),
    ],
)
def test_the_compiled_reader_knows_usual_patterns(pattern: str, is_exact: bool) -> None:
    head, *_ = pattern_steps(pattern, INSTANT)
    assert head[2] == is_exact


@pytest.mark.parametrize(
    "pattern",
    [
        "d MMM yyyy",  # names of months
        "yyyy-MM-dd VV",  # names of zones
        "yyyy[.SSS][.SSSSSS]",  # which of both counts
        "yyyy yy",
        "yyyy[MM]",  # digits that may be there
        "yyyy'5'MM",  # a digit that might be a number's
        "y-M-d",  # years of any length
    ],
)
def test_other_patterns_are_left_to_the_plain_reader(pattern: str) -> None:
    assert pattern_steps(pattern, INSTANT) == []


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.date32()])
def test_an_offset_where_none_may_be_is_left_to_the_plain_reader(kind: pa.DataType) -> None:
    assert pattern_steps("yyyy-MM-ddXXX", kind) == []
