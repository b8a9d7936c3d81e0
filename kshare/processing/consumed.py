"""Which consumers can be processed, and their messages as records."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from kshare.errors import OptionsError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.message import Chunk, Message
from kshare.processing.core.record import Record
from kshare.processing.policy import DeadLetter
from kshare.processing.processor import Processor

__all__ = ["check_consumer", "message_of", "not_before", "records_of"]

_NOT_BEFORE: Final = "not-before"
_YEAR_10000_MS: Final = 253_402_300_800_000


def check_consumer(consumer: KeySharedConsumer, processor: Processor) -> None:
    """Check that a processor may process what a consumer reads.

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
    needed: dict[str, tuple[str, ...]] = {"a handler is given them": ("key", "value", "offset")}
    if isinstance(processor.on_failure, DeadLetter):
        needed["a dead letter has them"] = ("timestamp", "headers")
    for why, names in needed.items() if config.columns else ():
        missing = [name for name in names if name not in config.columns]
        if missing:
            problems.append(f"columns has no {', '.join(missing)}; {why}")
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

    Its value is a text: milliseconds since 1970, before the year 10000. Another one is no such
    header.
    """
    for name, value in record.headers:
        if name == _NOT_BEFORE:
            with suppress(ValueError):
                milliseconds = int(value or b"")
                return milliseconds / 1000 if 0 <= milliseconds < _YEAR_10000_MS else 0.0
    return 0.0
