"""What Spark's ``from_json`` makes of odd texts, and what kshare's readers make of them."""

from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kshare.formats.ddl import parse_schema
from kshare.formats.json.decoder import JsonDecoder
from kshare.formats.json.options import JsonOptions
from tests.support.json_payloads import numbers, payloads
from tests.support.json_texts import RECORDS, TYPES, VALUES

CORRUPT: Final = "_corrupt_record"
Rows = list[tuple[Any, bool]]
"""The value of each record, with the bits of times and floats; and whether it is bad."""

HALF_READ: Final = (*('"\\u12"', '"\\u12g4"', '"\\q"', "[1 2]", '{"a":1,}', '{"a":1]', "'a'"),)
"""What is no JSON, and Spark reads on behind it: it may keep other fields of the bad record."""

OTHERWISE: Final = {
    # Java's texts of these have needless digits before version 19.
    ("STRING", "2e23"),
    ("STRING", "8.41E21"),
    # Blanks in base 64 that are no JSON: Spark takes them.
    *(("BINARY", f'"{blank}"') for blank in "\t\n\0\x1f"),
}
"""What differs, and stays so."""


def frame_of(spark: SparkSession, records: list[bytes]) -> DataFrame:
    rows = [(number, bytearray(record)) for number, record in enumerate(records)]
    return spark.createDataFrame(rows, "i INT, b BINARY").coalesce(1)


def of_spark(
    spark: SparkSession, schemas: list[str], records: list[bytes], options: dict[str, str]
) -> list[Rows]:
    """What ``from_json`` gives with each of some schemas, in one query."""
    text = F.col("b").cast("string")
    said = {"columnNameOfCorruptRecord": CORRUPT, **options}
    found = [
        F.from_json(text, f"{schema}, {CORRUPT} STRING", said).alias(f"c{number}")
        for number, schema in enumerate(schemas)
    ]
    table = frame_of(spark, records).select("i", *found).orderBy("i").toArrow()
    result = []
    for number in range(len(schemas)):
        column = pa.concat_arrays(table.column(f"c{number}").chunks)
        result.append(
            [
                (None, False) if row is None else (row[:-1], row[-1] is not None)
                for row in numbers(column)
            ]
        )
    return result


def of_kshare(schema: str, records: list[bytes], options: dict[str, str]) -> Rows:
    decoder = JsonDecoder(parse_schema(schema), JsonOptions.of(options))
    decoded = decoder.decode(payloads(list(records)))
    bad = {fault.row for fault in decoded.faults}
    return [(row, number in bad) for number, row in enumerate(numbers(decoded.values))]


def test_every_odd_value_as_every_type_is_what_from_json_reads(spark: SparkSession) -> None:
    records = [f'{{"v": {text}, "w": 7}}'.encode() for text in VALUES]
    schemas = [f"v {kind}, w INT" for kind in TYPES]
    for kind, schema, wanted in zip(
        TYPES, schemas, of_spark(spark, schemas, records, {}), strict=True
    ):
        for text, theirs, ours in zip(VALUES, wanted, of_kshare(schema, records, {}), strict=True):
            if text in HALF_READ and ours != theirs:
                assert ours == ((None, None), True)
                assert theirs == ((None, 7), True), (kind, text)
            elif (kind, text) in OTHERWISE:
                assert ours != theirs, (kind, text)
            else:
                assert ours == theirs, (kind, text)


OPTIONS: Final[tuple[dict[str, str], ...]] = (
    {},
    {"allowComments": "true"},
    {"allowUnquotedFieldNames": "true"},
    {"allowSingleQuotes": "false"},
    {"allowNumericLeadingZeros": "true"},
    {"allowNonNumericNumbers": "false"},
    {"allowBackslashEscapingAnyCharacter": "true"},
    {"allowUnquotedControlChars": "true"},
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_odd_records_are_what_from_json_reads(spark: SparkSession, options: dict[str, str]) -> None:
    records, schema = list(RECORDS), "v INT, w INT, s STRING"
    (wanted,) = of_spark(spark, [schema], records, options)
    for record, theirs, ours in zip(
        records, wanted, of_kshare(schema, records, options), strict=True
    ):
        assert ours == theirs, record[:100]


TIMES: Final = (
    ("yyyy-MM-dd HH:mm:ss", "2026-01-02 03:04:05"),
    ("dd.MM.yyyy HH:mm", "02.01.2026 03:04"),
    ("yyyyMMddHHmmss", "20260102030405"),
    ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2026-01-02T03:04:05.678+01:00"),
    ("yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]", "2026-01-02T03:04:05"),
    ("d MMM yyyy hh:mm a", "2 Jan 2026 11:04 PM"),
)


def test_patterns_and_zones_are_those_of_from_json(spark: SparkSession) -> None:
    """Each text by each pattern, and where no pattern is."""
    schema = "v TIMESTAMP, l TIMESTAMP_NTZ"
    texts = [
        *(text for _, text in TIMES),
        *("2026-03-29 02:30:00", "2026-10-25 02:30:00", "2026-07-01T00:00:00Z", "1800-01-01"),
        *("2026-1-2 3:4:5", "2026-02-30 03:04:05", "x", ""),
    ]
    records = [f'{{"v":"{text}","l":"{text}"}}'.encode() for text in texts]
    for pattern in (None, *(pattern for pattern, _ in TIMES)):
        options = {"timeZone": "Europe/Paris"}
        if pattern:
            options |= {"timestampFormat": pattern, "timestampNTZFormat": pattern}
        (wanted,) = of_spark(spark, [schema], records, options)
        ours = of_kshare(schema, records, options)
        for text, theirs, found in zip(texts, wanted, ours, strict=True):
            assert found == theirs, (pattern, text)


@pytest.mark.parametrize(
    ("record", "is_bad"), [('{"v":1}', False), ('{"v":"x"}', True), ("[]", True), ("", False)]
)
def test_bad_is_what_failfast_refuses(spark: SparkSession, record: str, is_bad: bool) -> None:
    text = F.col("b").cast("string")
    frame = frame_of(spark, [record.encode()])
    query = frame.select(F.from_json(text, "v INT", {"mode": "FAILFAST"}))
    ((_, bad),) = of_kshare("v INT", [record.encode()], {})
    assert bad == is_bad
    if is_bad:
        with pytest.raises(Exception, match="MALFORMED_RECORD_IN_PARSING"):
            query.collect()
    else:
        query.collect()
