"""confluent-kafka's client of a registry: how it is made, and what it says.

Guarantee: it logs nothing of its requests; kshare says what it asks in vain. Requests of others
through the same HTTP library are logged as they were.
"""

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Final

from kshare.core.dotted_path import find
from kshare.errors import OptionsError
from kshare.options.typed_rows import RegistryConfig

__all__ = [
    "NOT_FOUND_CODES",
    "NO_JSON",
    "SCHEMA_NOT_FOUND",
    "UNREADABLE",
    "confluent",
    "is_of_transport",
    "is_unreadable",
    "opened",
]

SCHEMA_NOT_FOUND: Final = 40403
NOT_FOUND_CODES: Final = frozenset({40401, 40402, SCHEMA_NOT_FOUND})
"""Error codes of a registry that has no such subject, version or schema: Confluent's, Karapace's,
and Apicurio's since 2.1. A 404 without is a proxy's, or that of a wrong path."""
NO_JSON: Final = "answers, but not with JSON"
UNREADABLE: Final = (ValueError, TypeError, KeyError, AttributeError)
"""The client raises these if it can make nothing of an answer, such as a proxy's page."""
_TOKENS: Final = "handle_bearer_auth"

_FUNCTION: Final = "bearer.auth.custom.provider.function"
_TIMEOUT_SECONDS: Final = 10
_EXTRA: Final = "pip install 'kshare[registry]' brings what it needs"
# The client speaks through httpx, or a later httpx under another name; each logs every request
# at INFO.
_LOGGERS: Final = ("httpx", "httpx2")
_is_ours: Final = ContextVar("_is_ours", default=False)


def _is_of_others(_: logging.LogRecord) -> bool:
    return not _is_ours.get()


@contextmanager
def opened(config: RegistryConfig) -> Iterator[Any]:
    """A client of confluent-kafka's. It lives for a question: they are few, and Spark forks.

    Args:
        config: How to reach the registry.

    Raises:
        OptionsError: It cannot be made.
    """
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_is_of_others)  # a second time does nothing
    before = _is_ours.set(True)
    try:
        try:
            made = confluent().SchemaRegistryClient(_client_config(config))
        except (OSError, ValueError, TypeError) as error:  # certificates, functions
            raise OptionsError([f"schemaRegistry.*: {error}"]) from None
        with made as client:
            yield client
    finally:
        _is_ours.reset(before)


def confluent() -> Any:
    """confluent-kafka's package.

    Raises:
        OptionsError: What it needs is not installed.
    """
    try:
        return import_module("confluent_kafka.schema_registry")  # an extra
    except ImportError as error:
        lacks = f"schemaRegistry.url: the registry's client cannot be imported ({error})"
        raise OptionsError([f"{lacks}; {_EXTRA}"]) from None


def _client_config(config: RegistryConfig) -> dict[str, Any]:
    """The settings of confluent-kafka's client: retries are kshare's own."""
    settings: dict[str, Any] = {**config.properties, "max.retries": 0}
    settings["timeout"] = int(settings.get("timeout", _TIMEOUT_SECONDS))
    if (source := settings.get("bearer.auth.credentials.source")) is not None:
        settings["bearer.auth.credentials.source"] = source.upper()
    if _FUNCTION in settings:
        settings[_FUNCTION] = find(settings[_FUNCTION], "provider of tokens", ())
        settings["bearer.auth.custom.provider.config"] = {}
    return settings


def is_of_transport(error: Exception) -> bool:
    """True if a registry was not reached, or no token was given."""
    # By its name, as the client speaks through httpx, or a later httpx under another name.
    names = {kind.__name__ for kind in type(error).__mro__}
    return not names.isdisjoint({"TransportError", "OAuthTokenError"})


def is_unreadable(error: Exception) -> bool:
    """True if a registry has answered with what is none of its answers."""
    if type(error).__name__ == "DecodingError":  # the HTTP library's, of what is compressed
        return True
    # A user's function for tokens may raise the same.
    calls = {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}
    return isinstance(error, UNREADABLE) and _TOKENS not in calls
