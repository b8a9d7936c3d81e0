"""What a query says of reader schemas that differ from those of its last batch."""

import pytest

from kshare.core.checkpoint import BatchOffsets
from kshare.core.progress import Progress, TopicPartition
from kshare.formats.schemas import ReaderSchema, ReaderSchemas
from kshare.options import KafkaConfig
from kshare.options.typed_rows import RowFormat, TypedRows
from kshare.query.planner.schema_pins import SchemaPins

PLACE = {TopicPartition("t", 0): Progress.at(5)}
KAFKA = KafkaConfig(bootstrap_servers=())


def pins() -> SchemaPins:
    form = RowFormat(column="value", format="string")
    return SchemaPins(ReaderSchemas(TypedRows(formats=(form,)), (ReaderSchema(form),), "t"), KAFKA)


def test_a_new_query_has_nothing_to_compare(caplog: pytest.LogCaptureFixture) -> None:
    pins().compare(BatchOffsets({}, started={TopicPartition("t", 0): 3}))
    SchemaPins().compare(BatchOffsets(PLACE))
    pins().compare(BatchOffsets(PLACE, schemas={"value": "string"}))
    assert caplog.records == []


def test_what_has_changed_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    compared = pins()
    for _ in range(2):
        compared.compare(BatchOffsets(PLACE, schemas={"value": "avro id:7"}))
    (text,) = [each.getMessage() for each in caplog.records]
    assert text.startswith(
        "value was read with the schema avro id:7, and is with string now. Rows have the columns "
        "of now, those of batches that are run again, too."
    )


def test_bytes_are_compared_too(caplog: pytest.LogCaptureFixture) -> None:
    SchemaPins().compare(BatchOffsets(PLACE, schemas={"key": "string"}))
    pins().compare(BatchOffsets(PLACE))
    first, second = (each.getMessage() for each in caplog.records)
    assert first.startswith("key was read as string, and is bytes now")
    assert second.startswith("value was bytes, and is read as string now")
