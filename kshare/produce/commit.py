"""Committing a transaction, and whether its EndTxn may still arrive.

Brokers before KIP-890's clients tell transactions of one producer epoch apart by nothing. If
librdkafka repeats EndTxn over another connection, the first one may arrive later, and then decides
the *next* transaction of that epoch, whatever that one has written so far. So after a commit that
may have been asked for twice, the next transaction needs a new epoch before it writes anything.

librdkafka does not tell that it has repeated a request. But it never does so before 0.8 of
``retry.backoff.ms`` (its jitter is 20 %), whether an answer is missing, is an error, or the
connection breaks: a commit that took less time was asked for once. Late records are harmless: in
the same epoch the broker knows their sequence numbers.

Cost: of a commit that takes 0.4 s or more, a new producer.
"""

import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Producer

__all__ = ["commit_transaction", "with_late_repetitions"]

_BACKOFF_MS: Final = 500
_BACKOFF_MAX_MS: Final = 1_000  # librdkafka's default
_FIRST_REPETITION_SECONDS: Final = 0.8 * _BACKOFF_MS / 1000
_LEAST_SECONDS: Final = 1.0


def with_late_repetitions(config: Mapping[str, Any]) -> dict[str, Any]:
    """A producer's configuration by which :func:`commit_transaction` can tell repetitions."""
    backoff = max(config.get("retry.backoff.ms", 0), _BACKOFF_MS)
    most = max(config.get("retry.backoff.max.ms", _BACKOFF_MAX_MS), backoff)
    return {**config, "retry.backoff.ms": backoff, "retry.backoff.max.ms": most}


def commit_transaction(producer: Producer, seconds: float) -> bool:
    """Commit a transaction all of whose records are delivered.

    Args:
        producer: Made :func:`with_late_repetitions`.
        seconds: Maximum time to wait; a second at least.

    Returns:
        Whether the producer may begin another transaction. If not, a new one of the same id may.

    Raises:
        KafkaException: It is not known to be committed.
    """
    began = time.monotonic()
    producer.commit_transaction(max(seconds, _LEAST_SECONDS))
    return time.monotonic() - began < _FIRST_REPETITION_SECONDS
