"""The settings of the sink's producers: the user's, and what the sink must have.

Guarantees: what the sink's promises rest on cannot be switched off by an option; the rest is the
user's.

Cost: none.
"""

from collections.abc import Mapping
from typing import Any, Final

from kshare.options import KafkaConfig
from kshare.options.sink import TRANSACTION_TIMEOUT_MS, SinkOptions
from kshare.produce.commit import with_late_repetitions
from kshare.security.librdkafka import librdkafka_config

__all__ = [
    "PROPAGATION",
    "consumer_producer_config",
    "producer_config",
    "transactional_config",
]

PROPAGATION: Final[Mapping[str, Any]] = {"topic.metadata.propagation.max.ms": 5_000}
"""A topic that no broker knows does not exist after so long. librdkafka's 30 s are for topics that
are about to be made; one that brokers make when it is asked for is there within a second or two."""

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
