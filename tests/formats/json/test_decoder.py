"""The compiled reader of JSON against the plain one."""

import json
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kshare.formats.ddl import parse_schema
from kshare.formats.decoder import Decoded
from kshare.formats.json.decoder import JsonDecoder
from kshare.formats.json.options import JsonOptions
from kshare.formats.json.plain import PlainReader, nearest_float
from kshare.formats.payloads import Payloads
from tests.support.guards import Fence, guarded_columns
from tests.support.json_payloads import numbers, payloads
from tests.support.json_texts import RECORDS, TYPES, VALUES

FENCE = Fence(1 << 17)
WIDE = parse_schema(", ".join(f"{chr(97 + i)} {kind}" for i, kind in enumerate(TYPES)))
NAMES = [field.name for field in WIDE]
ALL = [f'{{"v": {text}, "w": 7}}'.encode() for text in VALUES]
DEFAULT = JsonOptions()


def compared(
    schema: pa.StructType,
    records: list[bytes],
    options: JsonOptions = DEFAULT,
    gap: bytes = b"",
) -> Decoded:
    """Read records in both ways, and compare."""
    decoded = JsonDecoder(schema, options).decode(payloads(list(records), gap))
    decoded.values.validate(full=True)
    assert decoded.values.type == schema
    reader = PlainReader(schema, options)
    read = [reader.read(record) for record in records]
    kept = [None if fault and not options.partial else value for value, fault in read]
    faults = {each.row: each for each in decoded.faults}
    assert [each.row for each in decoded.faults] == sorted(faults)
    plain = numbers(pa.array(kept, schema))
    for row, found in enumerate(numbers(decoded.values)):
        assert found == plain[row], records[row]
        fault = read[row][1]
        assert (row in faults) == (fault is not None), records[row]
        if fault is not None:
            said = (faults[row].field, faults[row].reason)
            assert without_place(said) == without_place(fault), records[row]
    return decoded


def without_place(fault: tuple[str, str]) -> tuple[str, str]:
    """A fault whose bytes are not those of this reader: each finds what is malformed elsewhere."""
    field, reason = fault
    general = re.sub("^is (cut short|no valid JSON at byte .*)$", "is malformed", reason)
    return field, re.sub("^has a (number|name) of more than .*$", "is malformed", general)


@pytest.mark.parametrize("kind", TYPES)
def test_each_odd_value_as_each_type(kind: str) -> None:
    compared(parse_schema(f"v {kind}, w INT"), ALL)


@pytest.mark.parametrize("schema", ["v INT, w INT, s STRING", "w INT", "v STRING, s STRING"])
def test_odd_records(schema: str) -> None:
    compared(parse_schema(schema), list(RECORDS))
    compared(parse_schema(schema), list(RECORDS), JsonOptions(partial=False))


STRINGS = st.text(max_size=12) | st.sampled_from(["2026-01-02T03:04:05Z", "YWJj", "1.25"])
BLANKS = st.sampled_from(["", "", "", " ", "\n\t", "  "])


def spaced(text: str, blank: str) -> str:
    return f"{blank}{text}{blank}"


def texts(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    names = st.sampled_from([*NAMES, *NAMES, "x", "\u00e9", "", "\\u0061"]).map('"{}"'.format)
    pair = st.builds(lambda n, v, b: f"{spaced(n, b)}:{spaced(v, b)}", names, values, BLANKS)
    return st.one_of(
        st.lists(values, max_size=4).map(lambda each: f"[{','.join(each)}]"),
        st.lists(pair, max_size=6).map(lambda each: f"{{{','.join(each)}}}"),
    )


SCALARS = st.one_of(
    st.sampled_from(VALUES),
    st.integers().map(str),
    st.floats(allow_nan=False).map(repr),
    STRINGS.map(json.dumps),
    STRINGS.map(lambda text: json.dumps(text, ensure_ascii=False)),
)
TEXTS = st.recursive(SCALARS, texts, max_leaves=12)
OBJECTS = st.lists(st.tuples(st.sampled_from([*NAMES, "other"]), TEXTS), max_size=8).map(
    lambda pairs: "{" + ",".join(f'"{name}": {text}' for name, text in pairs) + "}"
)


@given(st.lists(OBJECTS.map(str.encode), min_size=1, max_size=4), st.sampled_from([b"", b'"{']))
def test_any_record_is_read_as_the_plain_reader_reads_it(records: list[bytes], gap: bytes) -> None:
    compared(WIDE, records, gap=gap)


OPTIONS = [
    JsonOptions(allow_comments=True),
    JsonOptions(allow_unquoted_field_names=True),
    JsonOptions(allow_single_quotes=False),
    JsonOptions(allow_numeric_leading_zeros=True),
    JsonOptions(allow_non_numeric_numbers=False),
    JsonOptions(allow_backslash_escaping_any_character=True),
    JsonOptions(allow_unquoted_control_chars=True),
    JsonOptions(time_zone="Europe/Paris"),
    JsonOptions(time_zone="+05:30"),
    JsonOptions(max_depth=3),
    JsonOptions(timestamp_format="yyyy-MM-dd HH:mm", date_format="dd.MM.yyyy"),
]


@pytest.mark.parametrize("options", OPTIONS)
def test_options_mean_the_same_to_both(options: JsonOptions) -> None:
    schema = parse_schema("v TIMESTAMP, s STRING, w INT, d DATE, f DOUBLE")
    records = [*RECORDS, *ALL, *(record.replace(b'"v"', b'"s"') for record in ALL)]
    compared(schema, records, options)


@given(OBJECTS.map(str.encode), st.data())
@example(b'{"a": "\\u12', None)
def test_damaged_bytes_are_bad_records_and_never_crash(record: bytes, data: Any) -> None:
    damaged = bytearray(record)
    if data is not None:
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, max(len(damaged) - 1, 0)))
            damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    compared(WIDE, [bytes(damaged)])


@given(st.lists(OBJECTS.map(str.encode), min_size=1, max_size=5))
def test_nothing_is_read_or_written_out_of_bounds(records: list[bytes]) -> None:
    """Each record ends at a page that no one may touch; so does what is written."""
    packed = payloads(list(records))
    fenced = Payloads(FENCE.put(packed.data.tobytes()), packed.starts, packed.ends, packed.writers)
    wanted = JsonDecoder(WIDE).decode(packed)
    with guarded_columns():
        found = JsonDecoder(WIDE).decode(fenced)
    assert numbers(found.values) == numbers(wanted.values)
    assert found.faults == wanted.faults


def test_places_out_of_the_data_are_bad_records() -> None:
    decoded = JsonDecoder(parse_schema("a INT")).decode(
        Payloads(
            np.frombuffer(b'{"a":1}', np.uint8),
            np.array([0, 5, 0, -1]),
            np.array([7, 3, 9, 99]),
            np.zeros(4, np.int32),
        )
    )
    assert decoded.values.to_pylist() == [{"a": 1}, None, None, None]
    assert [(each.row, each.reason) for each in decoded.faults] == [
        (1, "is cut short"),
        (2, "is cut short"),
    ]


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 25))
def test_doubles_are_the_nearest(value: float, digits: int) -> None:
    text = f"{Decimal(value):.{digits}e}"
    schema = parse_schema("v DOUBLE")
    decoded = compared(schema, [f'{{"v":{text}}}'.encode(), f'{{"v":{value!r}}}'.encode()])
    assert decoded.values.to_pylist() == [{"v": float(text)}, {"v": value}]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(1, 18))
def test_floats_are_the_nearest(value: float, digits: int) -> None:
    text = f"{Decimal(value):.{digits}e}"
    compared(parse_schema("v FLOAT"), [f'{{"v":{text}}}'.encode()])
    assert nearest_float(repr(value)) == value


@given(st.integers(-(10**20), 10**20), st.integers(-12, 12), st.integers(1, 38), st.integers(0, 9))
def test_decimals(number: int, exponent: int, precision: int, scale: int) -> None:
    schema = pa.struct([("v", pa.decimal128(precision, min(scale, precision)))])
    compared(schema, [f'{{"v":{number}e{exponent}}}'.encode(), f'{{"v":"{number}"}}'.encode()])


@given(st.datetimes(), st.sampled_from(["", "Z", "+01:00", "-11:30"]), st.sampled_from("T "))
def test_timestamps(moment: Any, zone: str, between: str) -> None:
    text = moment.isoformat(sep=between) + zone
    schema = parse_schema("v TIMESTAMP, w TIMESTAMP_NTZ, d DATE")
    record = f'{{"v":"{text}","w":"{moment.isoformat()}","d":"{moment.date()}"}}'.encode()
    row = compared(schema, [record]).values.to_pylist()[0]
    assert (row["w"], row["d"]) == (moment, moment.date())


def test_dates_that_32_bits_do_not_hold_are_bad() -> None:
    texts = [
        *("5881580-07-11", "-5877641-06-23"),  # the last day, and the first
        *("5881580-07-12", "-5877641-06-22", "9999999-12-31", "-9999999-01-01 00:00"),
        "9999999",  # a number of days, as it is no year
        "2147483648",
    ]
    decoded = compared(parse_schema("d DATE"), [f'{{"d":"{each}"}}'.encode() for each in texts])
    found = decoded.values.field("d").cast(pa.int32()).to_pylist()
    assert found == [2**31 - 1, -(2**31), None, None, None, None, 9_999_999, None]
    assert [each.row for each in decoded.faults] == [2, 3, 4, 5, 7]


def test_fields_that_are_not_wanted_are_passed_over() -> None:
    schema = parse_schema("a INT, b STRUCT<c: INT, d: ARRAY<INT>>, e STRING")
    decoder = JsonDecoder(schema, fields=["b.c", "e"])
    record = b'{"a":"no int","b":{"d":{"x":[1]},"c":5},"e":"f"}'
    decoded = decoder.decode(payloads([record, record.replace(b"[1]", b"[}")]))
    assert decoded.values.to_pylist()[0] == {"b": {"c": 5}, "e": "f"}
    assert [each.row for each in decoded.faults] == [1]
    with pytest.raises(ValueError, match="there is no field z"):
        JsonDecoder(schema, fields=["z"])


def test_what_is_wrong_is_said() -> None:
    schema = parse_schema("a INT, items ARRAY<STRUCT<sku: STRING, n: INT>>")
    records: list[bytes | None] = [
        b'{"a":1}',
        None,
        b'{"a":3000000000}',
        b'{"items":[{"n":1},{"n":"two"}]}',
        b'{"items":{"n":1}}',
        b"[1,2]",
        b'{"a":tru}',
        b'{"a":1',
        b" ",
    ]
    decoded = JsonDecoder(schema).decode(payloads(records))
    assert [(each.row, each.field, each.reason) for each in decoded.faults] == [
        (2, "a", "has 3000000000 where an int is wanted"),
        (3, "items.n", 'has "two" where an int is wanted'),
        (4, "items", "has an object where an array is wanted"),
        (5, "", "is an array, where an object is wanted"),
        (6, "", "is no valid JSON at byte 6"),
        (7, "", "is cut short"),
    ]


def test_a_crafted_record_is_bad_and_takes_little_memory() -> None:
    """Objects of no bytes to speak of, in which a thousand fields are missing."""
    schema = pa.struct([("l", pa.list_(pa.struct([(f"f{i}", pa.int64()) for i in range(1000)])))])
    record = b'{"l":[' + b"{}," * 20_000 + b"{}]}"
    decoded = JsonDecoder(schema).decode(payloads([b'{"l":[{"f1":1}]}', record]))
    assert [each.row for each in decoded.faults] == [1]
    assert "more than 4,194,304 fields" in decoded.faults[0].reason


def test_a_type_that_json_cannot_be_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a\.b: JSON cannot be read as"):
        JsonDecoder(pa.struct([("a", pa.struct([("b", pa.time64("us"))]))]))
