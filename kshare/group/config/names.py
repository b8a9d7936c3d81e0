"""Names of librdkafka's consumer and of Kafka's Java client, and what becomes of them."""

from typing import Final

from kshare.options.kafka_table import PROPERTIES

__all__ = [
    "HARMLESS",
    "JAVA_NAMES",
    "LOGIN_MODULES",
    "NO_EFFECT_NAMES",
    "PEM_STORES",
    "REFUSED_NAMES",
]

JAVA_NAMES: Final = {
    **{entry.librdkafka[0]: name for name, entry in PROPERTIES.items() if entry.librdkafka},
    "bootstrap.servers": "bootstrap.servers",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.id": "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.secret": "sasl.oauthbearer.client.credentials.client.secret",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
}
"""Java's names by librdkafka's."""

PEM_STORES: Final = {
    "ssl.ca.location": "ssl.truststore.type",
    "ssl.ca.pem": "ssl.truststore.type",
    "ssl.certificate.pem": "ssl.keystore.type",
    "ssl.key.pem": "ssl.keystore.type",
}
"""Properties of librdkafka that are PEM, and Java's property that says so."""

LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}

NO_EFFECT_NAMES: Final = frozenset(
    {
        "api.version.request",
        "broker.address.family",
        "broker.address.ttl",
        "builtin.features",
        "coordinator.query.interval.ms",
        "debug",
        "enable.sparse.connections",
        "error_cb",
        "fetch.error.backoff.ms",
        "fetch.queue.backoff.ms",
        "log.connection.close",
        "log.queue",
        "log.thread.name",
        "log_level",
        "logger",
        "max.in.flight",
        "queued.min.messages",
        "sasl.oauthbearer.method",
        "socket.keepalive.enable",
        "socket.max.fails",
        "socket.nagle.disable",
        "statistics.interval.ms",
        "stats_cb",
        "throttle_cb",
        "topic.metadata.refresh.fast.interval.ms",
        "topic.metadata.refresh.interval.ms",
        "topic.metadata.refresh.sparse",
    }
)
"""Names that change neither what is read, nor as whom, nor whom is trusted."""

_BYTES: Final = (
    "keys and values are bytes; decode what Message.key() and value() return, or set value.format "
    "for consume_batch"
)

REFUSED_NAMES: Final = {
    "consume.callback.max.messages": "there are no consume callbacks",
    "default.topic.config": "give its properties with the others",
    "enable.auto.offset.store": "set acknowledgement.mode=explicit, and acknowledge records",
    "enable.ssl.certificate.verification": "set ssl.truststore.location to what is trusted",
    "key.deserializer": _BYTES,
    "max.in.flight.per.key": (
        "kshare.processing.Processor works on many keys at once, and keeps the order of each"
    ),
    "message.copy.max.bytes": "it is librdkafka's own",
    "oauth_cb": "set oauthTokenProvider=package.module:function",
    "ssl.certificate.location": "put certificate and key into one PEM file: ssl.keystore.location",
    "ssl.key.location": "put certificate and key into one PEM file: ssl.keystore.location",
    "value.deserializer": _BYTES,
}
"""Names that would change what is read, or whom is trusted; and what to do instead."""

HARMLESS: Final = {
    "enable.auto.offset.store": "true",
    "enable.ssl.certificate.verification": "true",
}
"""Values with which a refused name asks for what is done anyway."""
