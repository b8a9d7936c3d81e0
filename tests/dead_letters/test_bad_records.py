"""Bad records as dead letters: what is made of a batch's rows."""

from typing import Any

import pyarrow as pa
import pytest

from kshare.arrow_values import int64_numbers
from kshare.dead_letters import bad_records
from kshare.dead_letters.bad_records import BadRecordLetters
from kshare.dead_letters.letter import Letter
from kshare.dead_letters.record import Record
from kshare.dead_letters.writer import letter_of_record
from kshare.errors import BadRecordError
from kshare.formats.typed_columns import BadRow
from kshare.options import KafkaConfig

KAFKA = KafkaConfig(bootstrap_servers=())
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ROWS = 50
BATCH = pa.record_batch(
    {
        "key": pa.array([b"k%d" % row for row in range(ROWS)], pa.binary()),
        "value": pa.array([b"v%d" % row for row in range(ROWS)], pa.binary()),
        "offset": pa.array(range(100, 100 + ROWS), pa.int64()),
        "timestamp": pa.array([1000 * row for row in range(ROWS)], pa.timestamp("us", "UTC")),
        "headers": pa.array([[{"key": "h", "value": b"%d" % row}] for row in range(ROWS)], HEADERS),
    }
)


class Written:
    """Letters that are kept, with the columns that they were made of."""

    def __init__(self) -> None:
        self.letters: list[Letter] = []
        self.headers: list[list[Any]] = []

    async def write(
        self, record: Record, error: BaseException | None, now: float, rewritten: Any = ()
    ) -> None:
        self.letters.append(letter_of_record(record, error, now, rewritten))
        self.headers.append(record.source.column("headers"))

    def close(self) -> None:
        pass


def bad(row: int) -> BadRow:
    error = BadRecordError(
        "no", topic="t", partition=3, offset=100 + row, column="value", field="", reason="no"
    )
    return BadRow(row, error)


def test_a_column_is_converted_once_for_all_records_of_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each record takes headers and timestamp from the column: else n records cost n * n."""
    written = Written()
    converted: list[int] = []

    def counted(array: pa.Array) -> Any:
        converted.append(len(array))
        return int64_numbers(array)

    monkeypatch.setattr(bad_records, "int64_numbers", counted)
    letters = BadRecordLetters(KAFKA, "dlq", lambda *_: written)
    rows = range(0, ROWS, 2)
    letters(BATCH, [bad(row) for row in rows])
    letters.close()
    assert [each.timestamp for each in written.letters] == list(rows)
    assert [each.headers for each in written.letters] == [[("h", b"%d" % row)] for row in rows]
    assert converted == [len(rows)]
    assert all(each is written.headers[0] for each in written.headers)
