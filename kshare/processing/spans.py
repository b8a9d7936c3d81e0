"""A span of OpenTelemetry for a call of a handler (an optional extra).

A span's parent is what the record's headers say (``traceparent``, or what the propagator that is
set reads); a span of several records has links instead. Dead letters keep the headers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kshare.dead_letters.record import Record

try:
    from opentelemetry.context import Context
    from opentelemetry.propagate import extract
    from opentelemetry.trace import Link, SpanKind, TracerProvider, get_current_span, get_tracer
    from opentelemetry.trace.status import Status, StatusCode
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "traced needs opentelemetry-api: pip install 'kshare[opentelemetry]'"
    ) from error

__all__ = ["span_of"]


@contextmanager
def span_of(given: Record | list[Record], provider: TracerProvider | None) -> Iterator[None]:
    """Cover an attempt of a handler: a span of a record, or of several."""
    records = [given] if isinstance(given, Record) else given
    first, contexts = records[0], [_context(record) for record in records]
    is_one = isinstance(given, Record)
    attributes: dict[str, Any] = {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": first.topic,
    }
    if is_one:
        attributes |= {
            "messaging.destination.partition.id": str(first.partition),
            "messaging.kafka.offset": first.offset,
            "kshare.attempt": first.attempt,
        }
    else:
        attributes["messaging.batch.message_count"] = len(records)
    remote = [] if is_one else [get_current_span(each).get_span_context() for each in contexts]
    tracer = get_tracer("kshare.processing", tracer_provider=provider)
    with tracer.start_as_current_span(
        f"process {first.topic}",
        contexts[0] if is_one else Context(),
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=[Link(each) for each in remote if each.is_valid],
    ) as span:
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception):  # cancelled: it took too long, or it is the end
                span.record_exception(error)
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise


def _context(record: Record) -> Context:
    try:
        headers = record.headers
    except ValueError:  # the column is not read
        headers = []
    texts = {name.lower(): (value or b"").decode("latin-1") for name, value in headers}
    return extract(texts, Context())
