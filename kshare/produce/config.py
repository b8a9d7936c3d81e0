"""The settings of the sink's producers: the user's, and what the sink must have.

Guarantees: what the sink's promises rest on cannot be switched off by an option; the rest is the
user's.

Cost: none.
"""

from collections.abc import Mapping
from typing import Any, Final

from kshare.options.sink import SinkOptions
from kshare.security.librdkafka import librdkafka_config

__all__ = ["TRANSACTION_TIMEOUT_MS", "producer_config", "transactional_config"]

TRANSACTION_TIMEOUT_MS: Final = 900_000
"""The longest that a broker allows by default (``transaction.max.timeout.ms``)."""

_STATISTICS_MS: Final = 50

_DEFAULTS: Final[Mapping[str, Any]] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",  # Java's: by key; records without one at random, in batches
    "linger.ms": 20,
    "message.timeout.ms": 120_000,  # Java's delivery.timeout.ms
    # A row costs librdkafka some 200 bytes beside its own: both bounds together are about 100 MiB.
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 64 << 10,
}
# That a broker goes away is told when a row cannot be delivered. Successes are not told at all: a
# flush that ends without a failure has delivered everything.
_REQUIRED: Final[Mapping[str, Any]] = {"delivery.report.only.error": True, "log_level": 3}


def producer_config(options: SinkOptions) -> dict[str, Any]:
    """What a producer of at-least-once writes is made with."""
    return {
        **librdkafka_config(options.kafka),
        **_DEFAULTS,
        **options.producer,
        **_REQUIRED,
    }


def transactional_config(options: SinkOptions, transactional_id: str) -> dict[str, Any]:
    """The same for one transaction; its statistics tell the producer's id and epoch."""
    config = producer_config(options)
    timeout = int(options.producer.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS))
    return {
        **config,
        "acks": -1,
        "enable.idempotence": True,
        "message.timeout.ms": min(int(config["message.timeout.ms"]), timeout),
        "statistics.interval.ms": _STATISTICS_MS,
        "transaction.timeout.ms": timeout,
        "transactional.id": transactional_id,
    }
