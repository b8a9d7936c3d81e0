"""Odd texts as variants, made by Spark's ``parse_json`` and by kshare: byte for byte the same."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kshare.formats.json.variant_decoder import VariantDecoder
from tests.support.json_payloads import payloads
from tests.support.json_texts import RECORDS, VALUES

WHOLE = [text.encode() for text in VALUES]
INNER = [f'{{"v": {text}, "w": [{text}]}}'.encode() for text in VALUES]
NAMES = [
    b'{"a":1,"a":2}',
    b'[{"a":{"a":1},"b":2,"a":3}]',
    b'{"\\ud800":1,"\\ud801":2,"?":3}',
    b'["\\ud83d\\ude00\\n\\uD83D\\uDE00x"]',
    b'{"\\ud83d\\ude00":1,"\\u0061":2,"b":3}',
    '{"\ue000":1,"\U0001f600":2,"\uffff":3,"\u00e9":4,"e":5}'.encode(),
    b'{"a\\u0000":1,"a":2,"":3,"aaaaaaaab":4,"aaaaaaaaa":5,"aaaaaaaa":6}',
    b"{" + b",".join(b'"k%d":%d' % (n * 7919 % 300, n) for n in range(300)) + b"}",
    b"[" + b",".join(b'{"x%d":%d}' % (n % 30, n) for n in range(30_000)) + b"]",
    b'["' + b"y" * 70_000 + b'"]',
]
BEHIND = [
    text + end
    for text in (b"true", b"null", b"1", b"-1.5", b'"a"', b"[]")
    for end in (
        b"x",
        b"0",
        b"$",
        b"_",
        b"]",
        b"}",
        b",",
        b'"',
        b" x",
        b"\x01",
        b"\x7f",
        b"\xc3\xa9",
    )
]


def test_odd_records_are_what_parse_json_reads(spark: SparkSession) -> None:
    records = [*RECORDS, *WHOLE, *INNER, *NAMES, *BEHIND]
    rows = [(number, bytearray(record)) for number, record in enumerate(records)]
    frame = spark.createDataFrame(rows, "i INT, b BINARY").coalesce(1)
    theirs = frame.select(F.try_parse_json(F.col("b").cast("string")).alias("v"), "i").orderBy("i")
    wanted = [row.v and (bytes(row.v.value), bytes(row.v.metadata)) for row in theirs.collect()]
    decoded = VariantDecoder().decode(payloads(list(records)))
    found = [row and (row["value"], row["metadata"]) for row in decoded.values.to_pylist()]
    assert {fault.row for fault in decoded.faults} == {
        number for number, row in enumerate(found) if row is None
    }
    half = {fault.row for fault in decoded.faults if fault.reason.endswith("surrogate pair")}
    assert len(half) > 5
    # Versions before 4.2 make question marks of them.
    wanted = [None if number in half else row for number, row in enumerate(wanted)]
    differ = [
        (record[:80], one, other)
        for record, one, other in zip(records, wanted, found, strict=True)
        if one != other
    ]
    assert differ == []
    assert sum(row is None for row in wanted) > 100
