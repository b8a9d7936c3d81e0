"""Handlers whose calls have spans. It can be imported without the extra ``opentelemetry``."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["traced"]

_Handler = TypeVar("_Handler", bound=Callable[..., Any])


def traced(handler: _Handler, provider: "TracerProvider | None" = None) -> _Handler:
    """A handler whose calls have spans: ``Processor(traced(charge))``.

    A span is named ``process TOPIC`` and has Kafka's attributes of OpenTelemetry's conventions. It
    covers one attempt; an exception, or a timeout, is its error.

    Args:
        handler: A handler, as for :class:`~kshare.processing.Processor`.
        provider: Makes the tracer. None: the one that is set for the process.

    Raises:
        ModuleNotFoundError: The package opentelemetry-api is not installed.
    """
    from kshare.processing.spans import span_of  # noqa: PLC0415 - an extra

    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - an object's own, if it is async
    ):

        @wraps(handler)
        async def call(given: Any) -> Any:
            with span_of(given, provider):
                return await handler(given)

    else:

        @wraps(handler)
        def call(given: Any) -> Any:
            with span_of(given, provider):
                return handler(given)

    return call  # type: ignore[return-value]
