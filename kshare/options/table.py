"""The names of all options: built, known but not built, refused, without effect.

Law: data only. A name is in exactly one of the tables of its kind, so every option that a user can
set has exactly one answer. Names are compared without regard to case, as Spark does.
"""

from typing import Final

__all__ = [
    "IGNORED_IN_BATCH",
    "KAFKA_BUILT",
    "KAFKA_NOT_BUILT",
    "KAFKA_NO_EFFECT",
    "KAFKA_REFUSED",
    "KAFKA_SECRET",
    "LIBRDKAFKA_NAMES",
    "NOT_BUILT",
    "SINK_ONLY",
    "SOURCE_BUILT",
    "canonical",
]

SOURCE_BUILT: Final = (
    "assign",
    "columns",
    "commitOffsets",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "keyRanges",
    "keys",
    "max.bytes.key.range.results",
    "maxOffsetsAhead",
    "maxOffsetsPerTrigger",
    "maxRangesInCheckpoint",
    "maxRecordsPerPartition",
    "maxRecordsPerTask",
    "maxTasks",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
    "oauthTokenProvider",
    "parkedKeys",
    "rangeAssignor",
    "splitBy",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
    "targetTaskDuration",
    "taskAssignor",
)
"""Options of the source that work."""

NOT_BUILT: Final = ("envelope",)
"""Options that are known and refused, because to ignore them would change what is read."""

SINK_ONLY: Final = (
    "exactlyOnce",
    "topic",
)
"""Options of the sink: ignored by the source, with a warning."""

IGNORED_IN_BATCH: Final = (
    "commitOffsets",
    "maxOffsetsAhead",
    "maxOffsetsPerTrigger",
    "maxRangesInCheckpoint",
    "maxRecordsPerTask",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "parkedKeys",
    "targetTaskDuration",
    "taskAssignor",
)
"""Options that limit or defer: ignored in batch queries, with a warning, as Spark's source does."""

KAFKA_BUILT: Final = (
    "bootstrap.servers",
    "check.crcs",
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "connections.max.idle.ms",
    "default.api.timeout.ms",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "group.id",
    "isolation.level",
    "max.partition.fetch.bytes",
    "metadata.max.age.ms",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "request.timeout.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms",
    "sasl.login.retry.backoff.max.ms",
    "sasl.login.retry.backoff.ms",
    "sasl.mechanism",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.header.urlencode",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "security.protocol",
    "send.buffer.bytes",
    "socket.connection.setup.timeout.ms",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.trustmanager.algorithm",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
)
"""Properties of Kafka's Java consumer that work, without the prefix ``kafka.``."""

KAFKA_SECRET: Final = frozenset(
    {
        "sasl.jaas.config",
        "sasl.oauthbearer.client.credentials.client.secret",
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.truststore.certificates",
        "ssl.truststore.password",
    }
)
"""Those of :data:`KAFKA_BUILT` that Kafka itself declares as passwords: never shown."""

KAFKA_NO_EFFECT: Final = (
    "allow.auto.create.topics",
    "auto.commit.interval.ms",
    "auto.include.jmx.reporter",
    "enable.metrics.push",
    "exclude.internal.topics",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "heartbeat.interval.ms",
    "internal.leave.group.on.close",
    "internal.throw.on.fetch.stable.offset.unsupported",
    "max.poll.interval.ms",
    "max.poll.records",
    "metadata.recovery.rebootstrap.trigger.ms",
    "metadata.recovery.strategy",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "partition.assignment.strategy",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.service.name",
    "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor",
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
    "sasl.oauthbearer.assertion.algorithm",
    "sasl.oauthbearer.assertion.claim.aud",
    "sasl.oauthbearer.assertion.claim.exp.seconds",
    "sasl.oauthbearer.assertion.claim.iss",
    "sasl.oauthbearer.assertion.claim.jti.include",
    "sasl.oauthbearer.assertion.claim.nbf.seconds",
    "sasl.oauthbearer.assertion.claim.sub",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.expected.audience",
    "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.scope.claim.name",
    "sasl.oauthbearer.sub.claim.name",
    "session.timeout.ms",
    "share.acknowledgement.mode",
    "socket.connection.setup.timeout.max.ms",
    "ssl.keymanager.algorithm",
    "ssl.protocol",
    "ssl.secure.random.implementation",
)
"""Known Java properties that change neither which records are read or written here, nor as whom,
nor whom is trusted: a warning says so. (``ssl.protocol`` can only keep Java from the newest TLS of
``ssl.enabled.protocols``.)"""

_JAVA_CLASS = "names a Java class or file, which kshare cannot load"

KAFKA_NOT_BUILT: Final = {
    "sasl.client.callback.handler.class": _JAVA_CLASS,
    "sasl.login.class": _JAVA_CLASS,
    "sasl.oauthbearer.assertion.file": "only the client credentials grant is built",
    "sasl.oauthbearer.assertion.private.key.file": "only the client credentials grant is built",
    "sasl.oauthbearer.assertion.template.file": "only the client credentials grant is built",
    "sasl.oauthbearer.jwt.retriever.class": _JAVA_CLASS,
    "sasl.oauthbearer.jwt.validator.class": _JAVA_CLASS,
    "security.providers": _JAVA_CLASS,
    "ssl.cipher.suites": "the system's OpenSSL chooses the cipher suites",
    "ssl.engine.factory.class": _JAVA_CLASS,
    "ssl.provider": "names a provider of Java's TLS; the system's OpenSSL is used",
}
"""Known Java properties that are refused, and why."""

KAFKA_REFUSED: Final = {
    "auto.offset.reset": (
        "set the option 'startingOffsets' to 'earliest' or 'latest' instead. Structured Streaming "
        "manages which offsets are read, so that no data is missed when new topics or partitions "
        "appear; 'startingOffsets' applies only when a new query starts, resuming goes on where "
        "the query left off"
    ),
    "enable.auto.commit": "the checkpoint holds the offsets, nothing is committed behind its back",
    "interceptor.classes": "interceptors can change records, which is not safe",
    "key.deserializer": (
        "keys are always byte arrays. Use DataFrame operations to deserialize them explicitly"
    ),
    "value.deserializer": (
        "values are always byte arrays. Use DataFrame operations to deserialize them explicitly"
    ),
}
"""Properties that Spark's source refuses too, with its reasons in short."""

LIBRDKAFKA_NAMES: Final = {
    "api.version.request": "no property: versions are always negotiated",
    "enable.ssl.certificate.verification": "kafka.ssl.truststore.location",
    "metadata.broker.list": "kafka.bootstrap.servers",
    "sasl.mechanisms": "kafka.sasl.mechanism",
    "sasl.oauthbearer.client.id": "kafka.sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.secret": "kafka.sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.config": "kafka.sasl.jaas.config",
    "sasl.password": "kafka.sasl.jaas.config",
    "sasl.username": "kafka.sasl.jaas.config",
    "ssl.ca.location": "kafka.ssl.truststore.location with kafka.ssl.truststore.type=PEM",
    "ssl.ca.pem": "kafka.ssl.truststore.certificates with kafka.ssl.truststore.type=PEM",
    "ssl.certificate.location": "kafka.ssl.keystore.location with kafka.ssl.keystore.type=PEM",
    "ssl.certificate.pem": "kafka.ssl.keystore.certificate.chain with kafka.ssl.keystore.type=PEM",
    "ssl.key.location": "kafka.ssl.keystore.location with kafka.ssl.keystore.type=PEM",
    "ssl.key.pem": "kafka.ssl.keystore.key with kafka.ssl.keystore.type=PEM",
}
"""Names of librdkafka that people try, and the Java name that they want."""

_CANONICAL: Final = {name.lower(): name for name in (*SOURCE_BUILT, *NOT_BUILT, *SINK_ONLY)}


# What Kafka Streams calls them, and the spelling of Spark's options for the name of the key-shared
# consumption proposal.
_KAFKAS_NAMES: Final = {
    "maxbyteskeyrangeresults": "max.bytes.key.range.results",
    "task.assignor.class": "taskassignor",
}


def canonical(name: str) -> str:
    """The documented spelling of an option; an unknown name is given back as it is.

    Args:
        name: an option in any case; ``kafka.`` properties are lower-case by nature.
    """
    lowered = name.lower()
    if lowered.startswith("kafka."):
        return lowered
    return _CANONICAL.get(_KAFKAS_NAMES.get(lowered, lowered), name)
