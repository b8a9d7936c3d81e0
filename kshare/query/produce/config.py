"""The settings of the sink's producers: the user's, and what it must have; and how they commit.

Guarantees: what the sink's promises rest on cannot be switched off by an option; the rest is the
user's.

**Whether an EndTxn may still arrive.** Brokers before KIP-890's clients tell transactions of one
producer epoch apart by nothing. If librdkafka repeats EndTxn over another connection, the first one
may arrive later, and then decides the *next* transaction of that epoch, whatever that one has
written so far. So after a commit that may have been asked for twice, the next transaction needs a
new epoch before it writes anything.

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

from kshare.options import KafkaConfig
from kshare.options.sink import TRANSACTION_TIMEOUT_MS, SinkOptions
from kshare.security.librdkafka import librdkafka_config

__all__ = [
    "PROPAGATION",
    "PROPAGATION_SECONDS",
    "commit_transaction",
    "consumer_producer_config",
    "producer_config",
    "transactional_config",
    "with_late_repetitions",
]

PROPAGATION_SECONDS: Final = 5.0
"""A topic that no broker knows does not exist after so long. librdkafka's 30 s are for topics that
are about to be made; one that brokers make when it is asked for is there within a second or two."""
PROPAGATION: Final[Mapping[str, Any]] = {
    "topic.metadata.propagation.max.ms": int(PROPAGATION_SECONDS * 1000)
}

# Only statistics tell a producer's id and epoch, and librdkafka has no switch for them. A task
# waits for one report when its rows are delivered. Those before are taken as they come.
_STATISTICS_MS: Final = 50

_DEFAULTS: Final[Mapping[str, Any]] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",  # Java's: by key; records without one at random, in batches
    "linger.ms": 20,
    "message.max.bytes": 1 << 20,  # Java's max.request.size
    "message.timeout.ms": 120_000,  # Java's delivery.timeout.ms
    # A row costs librdkafka some 200 bytes beside its own: both bounds together are about 100 MiB.
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 64 << 10,
}
# That a broker goes away is told when a row cannot be delivered. Successes are not told at all: a
# flush that ends without a failure has delivered everything.
_REQUIRED: Final[Mapping[str, Any]] = {"delivery.report.only.error": True, "log_level": 3}
_BACKOFF_MS: Final = 500
_BACKOFF_MAX_MS: Final = 1_000  # librdkafka's default
_FIRST_REPETITION_SECONDS: Final = 0.8 * _BACKOFF_MS / 1000
_LEAST_SECONDS: Final = 1.0


def producer_config(options: SinkOptions) -> dict[str, Any]:
    """Configuration of a producer of at-least-once writes."""
    return {
        **librdkafka_config(options.kafka),
        **_DEFAULTS,
        **options.producer,
        **_REQUIRED,
    }


def transactional_config(options: SinkOptions, transactional_id: str) -> dict[str, Any]:
    """The same for one transaction; its statistics tell the producer's id and epoch."""
    timeout = int(options.producer.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS))
    config = _transactional(producer_config(options), transactional_id, timeout)
    return {**config, "statistics.interval.ms": _STATISTICS_MS}


def consumer_producer_config(
    kafka: KafkaConfig, transactional_id: str, timeout_ms: int
) -> dict[str, Any]:
    """Configuration of a transactional consumer's producer."""
    config = {**librdkafka_config(kafka), **_DEFAULTS, **PROPAGATION, **_REQUIRED}
    config.pop("client.rack", None)  # a consumer's
    return with_late_repetitions(_transactional(config, transactional_id, timeout_ms))


def _transactional(
    config: Mapping[str, Any], transactional_id: str, timeout_ms: int
) -> dict[str, Any]:
    return {
        **config,
        "acks": -1,
        "enable.idempotence": True,
        "message.timeout.ms": min(int(config["message.timeout.ms"]), timeout_ms),
        "transaction.timeout.ms": timeout_ms,
        "transactional.id": transactional_id,
    }


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
