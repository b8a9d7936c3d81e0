"""The options of ``format("kshare")``: texts -> frozen values, all faults together.

Guarantee: nothing is contacted and no file is read; either the options come back, or one
:class:`~kshare.errors.OptionsError` that lists every fault. No text form of what comes back holds a
secret. The sink's parser is imported when it is asked for.
"""

from typing import TYPE_CHECKING

from kshare.lazy import names_of
from kshare.options import model
from kshare.options.model import *  # noqa: F403 - the values that all of kshare works with
from kshare.options.source import parse_options

if TYPE_CHECKING:
    from kshare.options.sink import ParsedSinkOptions, SinkOptions, parse_sink_options

__all__ = ["ParsedSinkOptions", "SinkOptions", "parse_options", "parse_sink_options"]
__all__ += model.__all__

_SINK = ("ParsedSinkOptions", "SinkOptions", "parse_sink_options")

__getattr__ = names_of(__name__, dict.fromkeys(_SINK, "kshare.options.sink"))
