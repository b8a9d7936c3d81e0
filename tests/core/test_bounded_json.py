"""What others may have written: a value or a ValueError, and never more than the bounds allow."""

import json
import sys
import tracemalloc
import zlib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.bounded_json import (
    BOUNDS,
    COUNT_MAX,
    DAMAGE,
    JsonBounds,
    count_of,
    flag_of,
    inflated,
    list_of,
    read_json,
    read_object,
    read_without,
    text_of,
)

SMALL = JsonBounds(size=200, depth=3, containers=8)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=10,
)


@given(values, st.booleans())
def test_what_is_json_is_read_as_it_is(value: Any, ascii_: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_)
    assert read_json(text) == read_json(text.encode()) == value


@given(st.binary(max_size=100) | st.text('[]{}",:\\u dD8eE19-', max_size=60).map(str.encode))
def test_anything_is_a_value_or_a_value_error(data: bytes) -> None:
    with suppress(ValueError):
        json.dumps(read_json(data), ensure_ascii=False).encode()


@given(st.data())
def test_what_is_damaged_is_a_value_or_a_value_error(data: st.DataObject) -> None:
    text = bytearray(json.dumps(data.draw(values)).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place] = data.draw(st.integers(0, 255))
    with suppress(ValueError):
        read_json(bytes(text))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("[1, 2", "Expecting"),
        ("{} {}", "Extra data"),
        ("[[[[]]]]", "nested more than 3 levels deep"),
        ('[[{"a": []}]]', "nested more than 3 levels deep"),
        ("[" * 8, "nested more than 3 levels deep"),
        ("[]," * 9, "about 9 arrays and objects; at most 8 are read"),
        ("[" + "1, " * 100 + "1]", "has 303 bytes; at most 200 are read"),
        ("NaN", "NaN, which is no number"),
        ("[1e999]", "1e999, which is beyond a double"),
        ('{"a": 1, "b": 1, "a": 2}', "'a' twice in one object"),
        (r'["\ud800"]', "surrogates not allowed"),
        (r'{"\uDC00": 1}', "surrogates not allowed"),
    ],
)
def test_what_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_json(text, SMALL)


def test_a_number_of_more_digits_than_python_converts_is_refused() -> None:
    with pytest.raises(ValueError, match="digits"):
        read_json("1" * 5_000)


@pytest.mark.parametrize("data", [b"\xff", b"\xef\xbb\xbf{}", '{"a": 1}'.encode("utf-16")])
def test_it_is_utf_8(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"decode|Expecting|BOM"):
        read_json(data)


@pytest.mark.parametrize(
    "text",
    [
        r'["[[[[[[[["]',
        r'["\"[[[[[", "\\", "[{[{"]',
        r"[[[1], [2]], [[3], []]]",
        r'["\ud83d\ude00"]',
    ],
)
def test_brackets_in_texts_and_beside_each_other_do_not_nest(text: str) -> None:
    assert read_json(text, JsonBounds(depth=3)) == json.loads(text)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_deep_text_is_refused_before_it_is_parsed(text: str) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)  # with which the parser would end the process
    try:
        with pytest.raises(ValueError, match="levels deep"):
            read_json(text)
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    "text",
    [
        "[" + "[]," * (BOUNDS.size // 3 - 1) + "0]",
        '{"a":' + "[" * BOUNDS.containers,
        '["' + '\\"' * (BOUNDS.size // 4) + "[" * 20,
    ],
    ids=["lists", "deep", "quotes"],
)
def test_bombs_cost_little(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"it (has|is)"):
            read_json(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20


def test_an_object_is_wanted() -> None:
    assert read_object(b'{"a": [1]}') == {"a": [1]}
    with pytest.raises(ValueError, match=r"found \[1\]; wanted a JSON object"):
        read_object(b"[1]")


# -- compressed ----------------------------------------------------------------------------------


@given(st.binary(max_size=200), st.sampled_from([b"", b"some words"]))
def test_what_was_compressed_comes_back(data: bytes, dictionary: bytes) -> None:
    deflater = zlib.compressobj(zdict=dictionary) if dictionary else zlib.compressobj()
    packed = deflater.compress(data) + deflater.flush()
    assert inflated(packed, JsonBounds(size=200), dictionary=dictionary) == data


@given(st.binary(max_size=100), st.binary(max_size=20), st.integers(0, 50))
def test_what_is_damaged_is_inflated_or_a_value_error(
    data: bytes, other: bytes, place: int
) -> None:
    packed = zlib.compress(data)
    for damaged in (other, packed[:place], packed[:place] + other + packed[place:]):
        with suppress(ValueError):
            assert len(inflated(damaged, JsonBounds(size=50))) <= 50


def test_more_than_the_bound_is_refused() -> None:
    bomb = zlib.compress(bytes(1 << 20))
    assert len(inflated(bomb, JsonBounds(size=1 << 20))) == 1 << 20
    with pytest.raises(ValueError, match="cut short, or longer than 1048575 bytes"):
        inflated(bomb, JsonBounds(size=(1 << 20) - 1))
    with pytest.raises(ValueError, match="cannot be decompressed"):
        inflated(b"no stream")
    with pytest.raises(ValueError, match="cannot be decompressed"):
        inflated(bomb[:2] + b"\xff" + bomb[3:])


def test_a_name_may_be_left_out_however_often_it_is_there() -> None:
    text = '{"a": 1, "x": [{"x": 2}], "x": 3, "b": {"x": 4, "c": 5}}'
    assert read_without(text, "x") == {"a": 1, "b": {"c": 5}}
    for wrong in ('{"c": 1, "c": 2}', "NaN", "1e999", "[[1, -Infinity]]"):
        assert read_without(f'[{{"a": [1], "x": {wrong}}}]', "x") == [{"a": [1]}]
        for text in (f'{{"a": {{"b": {wrong}}}, "x": 1}}', f"[{wrong}]", wrong):
            with pytest.raises(ValueError, match=r"twice|no number|beyond"):
                read_without(text, "x")
    for text in ('{"a": 1, "x": 2, "a": 1}', "[" * 99, '{"x": "\\ud800", "a": "\\ud800"}', "{"):
        with pytest.raises(ValueError, match=r"."):
            read_without(text, "x")


# -- fields --------------------------------------------------------------------------------------


def test_fields_have_types() -> None:
    assert [text_of("a"), flag_of(False), count_of(0)] == ["a", False, 0]
    assert count_of(2**63 - 1) == COUNT_MAX
    assert list_of([1]) == [1]
    for read, wrong in (
        (text_of, 1),
        (list_of, "ab"),
        (list_of, {}),
        (flag_of, 1),
        (count_of, True),
        (count_of, 1.0),
    ):
        with pytest.raises(TypeError, match="wanted"):
            read(wrong)
    for count in (-1, 2**63, -(10**4000), 10**4000):
        with pytest.raises(DAMAGE, match="wanted 0 to"):
            count_of(count)
    assert count_of(5, most=5) == 5
    with pytest.raises(ValueError, match="found 6; wanted 0 to 5"):
        count_of(6, most=5)
