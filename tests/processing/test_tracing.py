"""Spans of OpenTelemetry around the calls of a handler."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, get_current_span

from kshare.processing import DeadLetter, Processor, Record, Retry, traced
from tests.processing.engines import PARTITION, MemoryEdge, handle

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
PARENT = f"00-{TRACE:032x}-{SPAN:016x}-01".encode()
SOON = Retry(attempts=2, first=0.001, most=0.01)


class RowsWithHeaders:
    """Rows of which the first has a parent."""

    topic_partition = PARTITION

    def column(self, name: str) -> list[Any]:
        assert name == "headers"
        return [[{"key": "traceparent", "value": PARENT}], None, None, None]


def spans(
    handler: Callable[..., Any], keys: Sequence[bytes], **more: Any
) -> tuple[list[ReadableSpan], MemoryEdge]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    processor = Processor(traced(handler, provider), **more)
    edge, _ = handle(processor, keys, source=RowsWithHeaders())
    return sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0), edge


async def asynchronous(record: Record) -> None:
    await asyncio.sleep(0)
    seen_by.append(get_current_span().get_span_context().trace_id)


def plain(record: Record) -> None:
    seen_by.append(get_current_span().get_span_context().trace_id)


seen_by: list[int] = []


@pytest.mark.parametrize("handler", [asynchronous, plain])
def test_a_call_has_a_span_whose_parent_is_in_the_headers(handler: Callable[..., Any]) -> None:
    seen_by.clear()
    (first, second), edge = spans(handler, [b"a", b"a"])
    assert edge.offsets() == [0, 1]
    assert first.name == "process orders"
    assert first.parent is not None
    assert (first.parent.trace_id, first.parent.span_id) == (TRACE, SPAN)
    assert second.parent is None
    assert [span.context.trace_id for span in (first, second)] == seen_by  # the handler's own
    assert first.attributes is not None
    assert dict(first.attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
        "kshare.attempt": 1,
    }


def test_each_attempt_has_a_span_with_its_error() -> None:
    async def charge(record: Record) -> None:
        raise ValueError("no such customer")

    found, edge = spans(charge, [b"a"], retry=SOON, on_failure=DeadLetter("dlq"))
    assert [record.offset for record in edge.letters] == [0]
    assert [(span.attributes or {})["kshare.attempt"] for span in found] == [1, 2]
    for span in found:
        assert span.status.status_code is StatusCode.ERROR
        (event,) = span.events
        assert (event.attributes or {})["exception.message"] == "no such customer"


def test_a_call_that_took_too_long_has_a_span_that_failed() -> None:
    async def hang(record: Record) -> None:
        await asyncio.Event().wait()

    found, _ = spans(
        hang, [b"a"], timeout=0.01, retry=Retry(attempts=1), on_failure=DeadLetter("dlq")
    )
    (span,) = found
    assert span.status.status_code is StatusCode.ERROR
    assert [(event.attributes or {})["exception.type"] for event in span.events] == [
        "asyncio.exceptions.CancelledError"
    ]


def test_a_call_of_many_records_has_links() -> None:
    async def write(records: list[Record]) -> None:
        pass

    (span,), _ = spans(write, [b"a", b"b", b"c"], on_batch=True)
    assert span.parent is None
    assert (span.attributes or {})["messaging.batch.message_count"] == 3
    assert [link.context.span_id for link in span.links] == [SPAN]


def test_a_record_whose_headers_are_not_read_has_no_parent() -> None:
    class WithoutHeaders(RowsWithHeaders):
        def column(self, name: str) -> list[Any]:
            raise ValueError("headers is not read")

    handled = list[int]()

    async def handler(record: Record) -> None:
        handled.append(record.offset)

    handle(Processor(traced(handler)), [b"a"], source=WithoutHeaders())
    assert handled == [0]


def test_the_handler_keeps_its_name() -> None:
    assert traced(plain).__name__ == "plain"


def test_nothing_is_imported_without_it() -> None:
    script = """
import sys
import kshare.processing
from kshare.processing import DeadLetter, Processor, process_by_key
import kshare.processing.runner
assert "opentelemetry" not in sys.modules
sys.modules["opentelemetry"] = None
try:
    kshare.processing.traced(print)
except ModuleNotFoundError as error:
    assert "pip install 'kshare[opentelemetry]'" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", script], check=True)
