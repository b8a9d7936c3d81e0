"""Which consumers can be processed, and their messages as records."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from kshare.errors import OptionsError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.message import Chunk, Message
from kshare.processing.core.record import Record
from kshare.processing.processor import Processor

__all__ = ["check_consumer", "message_of", "not_before", "records_of"]

_NOT_BEFORE: Final = "not-before"


def check_consumer(consumer: KeySharedConsumer) -> None:
    """Check that a consumer may be processed.

    Raises:
        OptionsError: It may not; every fault is listed.
    """
    config, problems = consumer.config, []
    if not config.explicit:
        problems.append(
            "acknowledgement.mode is implicit; a processor acknowledges each record: set "
            "acknowledgement.mode=explicit"
        )
    if not config.auto_commit:
        problems.append("enable.auto.commit is false; nothing would be committed: leave it out")
    if config.in_flight_per_key is not None:
        problems.append(
            "max.in.flight.per.key is set; the processor itself keeps the order of keys"
        )
    if config.transactional_id is not None:
        problems.append("transactional.id is set; a processor cannot run within transactions")
    if config.order != "key":
        problems.append(f"consumption.order is {config.order}; give order to Processor instead")
    if config.columns and not {"key", "value", "offset"} <= set(config.columns):
        problems.append("columns has no key, value or offset; a handler is given them")
    if problems:
        raise OptionsError(problems, of="the consumer of Processor.run")


def message_of(record: Record) -> Message:
    """The message that a record was made of."""
    return Message((record.source, record.row, record.raw_value))


def records_of(processor: Processor, messages: Iterable[Message]) -> Iterable[Record]:
    """Records of messages, with the time of a header ``not-before``."""
    chunk: Chunk | None = None
    keys, values, offsets, has_headers = [], [], [], False
    for message in messages:
        if message[0] is not chunk:
            chunk = message[0]
            keys, values, offsets = map(chunk.column, ("key", "value", "offset"))
            has_headers = _has_headers(chunk)
        row = message[1]
        record = processor.record(chunk, row, offsets[row], keys[row], values[row])
        if has_headers:
            record.due = not_before(record)
        yield record


def _has_headers(chunk: Chunk) -> bool:
    if "headers" not in chunk.batch.schema.names:
        return False
    headers = chunk.batch.column("headers")
    return bool(headers.null_count < len(headers))


def not_before(record: Record) -> float:
    """The time of a record's header ``not-before`` in seconds since 1970; 0 if it has none.

    Its value is a text: milliseconds since 1970. One that is no number is no such header.
    """
    for name, value in record.headers:
        if name == _NOT_BEFORE:
            with suppress(ValueError):
                return int(value or b"") / 1000
    return 0.0
