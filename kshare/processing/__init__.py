"""Handlers by key: slow work at full speed, retries that keep order, dead letters.

:class:`Processor` calls a handler for each record, many at a time and one after another for each
key. See docs/processing.md.
"""

from typing import TYPE_CHECKING

from kshare.lazy import names_of

if TYPE_CHECKING:
    from kshare.dead_letters.record import FILTERED, Outcome, Record, Status
    from kshare.errors import ProcessingError, UndecodableError
    from kshare.processing.frames import process_by_key
    from kshare.processing.policy import DeadLetter, Park, Retry, RetryAfter, Stop
    from kshare.processing.processor import Processor
    from kshare.processing.prometheus import register_metrics
    from kshare.processing.tracing import traced

__all__ = [
    "FILTERED",
    "DeadLetter",
    "Outcome",
    "Park",
    "ProcessingError",
    "Processor",
    "Record",
    "Retry",
    "RetryAfter",
    "Status",
    "Stop",
    "UndecodableError",
    "process_by_key",
    "register_metrics",
    "traced",
]

_HOMES = {
    "FILTERED": "kshare.dead_letters.record",
    "DeadLetter": "kshare.processing.policy",
    "Outcome": "kshare.dead_letters.record",
    "Park": "kshare.processing.policy",
    "ProcessingError": "kshare.errors",
    "Processor": "kshare.processing.processor",
    "Record": "kshare.dead_letters.record",
    "Retry": "kshare.processing.policy",
    "RetryAfter": "kshare.processing.policy",
    "Status": "kshare.dead_letters.record",
    "Stop": "kshare.processing.policy",
    "UndecodableError": "kshare.errors",
    "process_by_key": "kshare.processing.frames",
    "register_metrics": "kshare.processing.prometheus",
    "traced": "kshare.processing.tracing",
}

__getattr__ = names_of(__name__, _HOMES)
