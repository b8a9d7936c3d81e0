"""JSON to variants: the compiled reader, the plain one, PySpark's builder, byte for byte."""

import json
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.variant_utils import VariantUtils

from kshare.formats.json.plain_variant import PlainVariant
from kshare.formats.json.variant_decoder import VariantDecoder
from kshare.formats.payloads import Payloads
from kshare.formats.variant_type import VARIANT
from kshare.read.decode import variant_kind
from tests.support.guards import Fence, guarded_columns
from tests.support.json_payloads import payloads
from tests.support.json_texts import RECORDS, VALUES

FENCE = Fence(1 << 17)
ODD = [
    *RECORDS,
    *(text.encode() for text in VALUES),
    *(f'{{"v": {text}, "w": [{text}]}}'.encode() for text in VALUES),
    b'{"a":1,"a":2}',
    b'[{"a":{"a":1},"b":2,"a":3}]',
    b'{"\\ud800":1,"\\ud801":2,"?":3}',
    b'{"\\ud83d\\ude00":"\\ud83d\\ude00\\n\\uD83D\\uDE00x","b":"\\u0041\\ude00"}',
    '{"\ue000":1,"\U0001f600":2,"\uffff":3,"\u00e9":4,"e":5}'.encode(),
    b'{"\\ud83d\\ude00":1,"\\u0061":2,"a":3}',
    b'{"a\\u0000":1,"a":2,"":3,"aaaaaaaab":4,"aaaaaaaaa":5,"aaaaaaaa":6}',
    *(text + end for text in (b"true", b"null", b"1", b'"a"') for end in (b"x", b"$", b"]", b",")),
    *(text + end for text in (b"false", b"-1.5") for end in (b"\x7f", b"\xc3\xa9", b"\x01", b"_")),
]
Variants = list[tuple[bytes, bytes] | None]


def made(records: list[bytes | None], gap: bytes = b"") -> tuple[Variants, dict[int, str]]:
    """The variants of records, and why some are bad."""
    decoded = VariantDecoder().decode(payloads(records, gap))
    decoded.values.validate(full=True)
    assert decoded.values.type.equals(VARIANT, check_metadata=True)
    rows = [row and (row["value"], row["metadata"]) for row in decoded.values.to_pylist()]
    assert [each.row for each in decoded.faults] == sorted({each.row for each in decoded.faults})
    assert all(rows[each.row] is None and not each.field for each in decoded.faults)
    return rows, {each.row: each.reason for each in decoded.faults}


def general(reason: str) -> str:
    """A reason without the place: each reader finds what is malformed elsewhere."""
    found = re.sub("^is (cut short|no valid JSON at byte .*)$", "is malformed", reason)
    return re.sub("^has a (number|name) of more than .*$", "is malformed", found)


def compared(records: list[bytes], gap: bytes = b"") -> Variants:
    """Read records in both ways, and compare."""
    rows, faults = made(list(records), gap)
    for number, record in enumerate(records):
        plain = PlainVariant(record).read()
        if isinstance(plain, str):
            assert rows[number] is None, record
            assert general(faults[number]) == general(plain), record
        else:
            assert rows[number] == plain, record
            assert number not in faults, record
    return rows


def test_odd_records_are_what_the_plain_reader_reads() -> None:
    rows = compared(ODD)
    assert sum(row is not None for row in rows) > 300
    assert sum(row is None for row in rows) > 100


KEYS = st.sampled_from(["a", "b", "user", "a long name", "", "\u00e9", "aaaaaaaab"]) | st.text(
    st.characters(max_codepoint=0xD7FF), max_size=9
)
NUMBERS = st.one_of(
    st.integers(),
    st.integers(-(1 << 66), 1 << 66),
    st.sampled_from(
        [
            sign * (1 << bits) + more
            for bits in (7, 15, 31, 63)
            for sign in (1, -1)
            for more in (-1, 0, 1)
        ]
    ),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**22), max_value=10**22),
)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=70),
    lambda below: st.lists(below, max_size=6) | st.dictionaries(KEYS, below, max_size=6),
    max_leaves=20,
)


def text_of(value: Any, *, is_ascii: bool) -> str:
    """JSON of a value, in which decimals keep their digits."""
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, list):
        return f"[ {', '.join(text_of(each, is_ascii=is_ascii) for each in value)} ]"
    if isinstance(value, dict):
        pairs = (
            f"{json.dumps(name, ensure_ascii=is_ascii)}:{text_of(each, is_ascii=is_ascii)}"
            for name, each in value.items()
        )
        return "{" + ",".join(pairs) + "}"
    return json.dumps(value, ensure_ascii=is_ascii)


@given(st.lists(DOCUMENTS, min_size=1, max_size=5), st.booleans(), st.sampled_from([b"", b'"{']))
@example([{f"k{n}": n for n in range(300)}], True, b"")
@example([[{"x": 1}] * 300, {"x": ["y" * 300] * 300}, {"x": 1}], True, b"")
@example([0.1, 1e-9, 1e22, 123456789.123456789, Decimal("0." + "1" * 38)], True, b"")
def test_any_document_is_what_spark_builds(
    documents: list[Any], is_ascii: bool, gap: bytes
) -> None:
    texts = [text_of(each, is_ascii=is_ascii) for each in documents]
    rows = compared([text.encode() for text in texts], gap)
    assert rows == [VariantUtils.parse_json(text) for text in texts]


@given(DOCUMENTS, st.data())
def test_damaged_bytes_are_bad_records_and_never_crash(document: Any, data: Any) -> None:
    damaged = bytearray(text_of(document, is_ascii=False).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(len(damaged) - 1, 0)))
        damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    compared([bytes(damaged)])


@given(st.lists(DOCUMENTS, min_size=1, max_size=5))
def test_nothing_is_read_or_written_out_of_bounds(documents: list[Any]) -> None:
    """Each record ends at a page that no one may touch; so does what is written."""
    packed = payloads([text_of(each, is_ascii=False).encode() for each in documents])
    fenced = Payloads(FENCE.put(packed.data.tobytes()), packed.starts, packed.ends, packed.writers)
    wanted = VariantDecoder().decode(packed)
    with guarded_columns():
        found = VariantDecoder().decode(fenced)
    assert found.values.equals(wanted.values)
    assert found.faults == wanted.faults


@pytest.mark.parametrize("grown", ["0,", "1e9,", "[],", "{},", '{"":0},', "[[[[[1e9]]]]],"])
@pytest.mark.parametrize("count", [3, 60, 30_000])
def test_what_grows_most_finds_room(grown: str, count: int) -> None:
    text = "[" * 900 + (grown * count).rstrip(",") + "]" * 900
    wide = '{"a":' * 4 + "{" + ",".join(f'"k{n}":{n}' for n in range(count)) + "}" + "}" * 4
    with guarded_columns():
        # Small ones behind a large one: room that is kept free for heads is there, too.
        compared([text.encode(), wide.encode(), b"[[[[[]]]]]", b"[1]", wide.encode()] * 2)


@given(st.integers(0, 1 << 32))
def test_names_that_change_from_record_to_record(seed: int) -> None:
    """More names in a batch than the table has at first, some of them again and again."""
    chance = np.random.default_rng(seed)
    records = [
        json.dumps(
            {f"n{n}" * int(chance.integers(1, 60)): int(n) for n in chance.integers(0, 900, size)}
        ).encode()
        for size in chance.integers(0, 40, 60)
    ]
    rows = compared(records)
    assert rows == [VariantUtils.parse_json(record.decode()) for record in records]


def test_names_whose_hashes_are_alike_are_read_all_the_same() -> None:
    """Many names in one record: the table grows while it is read."""
    record = json.dumps({f"{n:x}": {f"{n * 7919:x}": n} for n in range(20_000)}).encode()
    (row,) = compared([record])
    assert row == VariantUtils.parse_json(record.decode())


def test_what_is_wrong_is_said() -> None:
    rows, faults = made(
        [
            b'{"a":1}',
            None,
            b"",
            b" \n",
            b'{"a":tru}',
            b'{"a":1',
            b'{"a":1,"a":2}',
            b'{"a":"\\ud83d\\ude00 and \\ud83d"}',
            b"[" * 1001 + b"]" * 1001,
            b"[" * 1000 + b"]" * 1000,
            b'{"a":1} and what stands behind',
        ]
    )
    assert faults == {
        2: "is empty",
        3: "is empty",
        4: "is no valid JSON at byte 6",
        5: "is cut short",
        6: "has an object with two fields a",
        7: "has a string with half a surrogate pair",
        8: "has more than 1,000 objects and arrays in each other",
    }
    assert rows[1] is None
    assert rows[9] is not None
    assert rows[10] == rows[0] == (b"\x02\x01\x00\x00\x02\x0c\x01", b"\x01\x01\x00\x01a")


@pytest.mark.parametrize(
    "text",
    [
        '["' + "x" * (variant_kind.SIZE_MAX - 4) + '"]',
        '{"k":[' + "1e9," * 1_700_000 + "1]}",
        '{"' + '":1,"'.join("k" * 49_000 + str(n) for n in range(350)) + '":1}',
    ],
    ids=["string", "array", "names"],
)
def test_a_variant_that_is_too_large_is_a_bad_record(text: str) -> None:
    rows, faults = made([b"[1]", text.encode(), b"[1]"])
    assert faults == {1: "makes a variant of more than 16 MiB"}
    assert PlainVariant(text.encode()).read() == faults[1]
    assert rows[0] == rows[2]


def test_places_out_of_the_data_are_bad_records() -> None:
    decoded = VariantDecoder().decode(
        Payloads(
            np.frombuffer(b'{"a":1}', np.uint8),
            np.array([0, 5, 0, -1]),
            np.array([7, 3, 9, 99]),
            np.zeros(4, np.int32),
        )
    )
    assert [row is None for row in decoded.values.to_pylist()] == [False, True, True, True]
    assert [(each.row, each.reason) for each in decoded.faults] == [
        (1, "is cut short"),
        (2, "is cut short"),
    ]
