"""The options of ``format("kshare")``: texts -> frozen values, all faults together.

Law: nothing is contacted and no file is read; either the options come back, or one
:class:`~kshare.errors.OptionsError` that lists every fault. No text form of what comes back holds a
secret. Cost: text only; the sink's parser is imported when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kshare.options.model import (
    EARLIEST,
    LATEST,
    Assign,
    AtTimestamp,
    Earliest,
    KafkaConfig,
    Latest,
    OffsetSpec,
    ParsedOptions,
    PerPartition,
    SourceOptions,
    Subscribe,
    SubscribePattern,
    TimestampPerPartition,
    Topics,
)
from kshare.options.parse import parse_options

if TYPE_CHECKING:
    from kshare.options.sink import ParsedSinkOptions, SinkOptions, parse_sink_options

__all__ = [
    "EARLIEST",
    "LATEST",
    "Assign",
    "AtTimestamp",
    "Earliest",
    "KafkaConfig",
    "Latest",
    "OffsetSpec",
    "ParsedOptions",
    "ParsedSinkOptions",
    "PerPartition",
    "SinkOptions",
    "SourceOptions",
    "Subscribe",
    "SubscribePattern",
    "TimestampPerPartition",
    "Topics",
    "parse_options",
    "parse_sink_options",
]


def __getattr__(name: str) -> Any:
    if name in {"ParsedSinkOptions", "SinkOptions", "parse_sink_options"}:
        return getattr(import_module("kshare.options.sink"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
