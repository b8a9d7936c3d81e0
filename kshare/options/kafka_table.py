"""The properties of Kafka's Java client (``kafka.*``): every name once.

Guarantee: data only. A name has exactly one answer: it works, has no effect, is not built, or is
refused; names of librdkafka get Java's. To add a property, add a line here, and a field to
:class:`~kshare.options.model.KafkaConfig` if kshare itself uses it.
"""

from typing import Final, Literal, NamedTuple

from kshare.options.kinds import BOOLEAN, INT_MAX, TEXT, Kind, choice, integer

__all__ = [
    "CONSUMER_NAMES",
    "CONSUMER_NO_EFFECT",
    "CONSUMER_REFUSED",
    "LIBRDKAFKA_NAMES",
    "NOT_BUILT",
    "NO_EFFECT",
    "PROPERTIES",
    "REFUSED",
    "SECRET",
    "Property",
]


class Property(NamedTuple):
    """A property of Java's clients that works.

    Attributes:
        name: Without the prefix ``kafka.``.
        kind: The values; None: they are checked together with other properties.
        field: The field of ``KafkaConfig`` that holds the value; None: it stays a text.
        librdkafka: librdkafka's name of a number, and its lowest and highest value there; None: it
            is not passed on, or not as it is.
        client: Which of Java's clients has it.
        secret: Whether Kafka declares it as a password, so that it is never shown.
        default: The default as the documentation shows it; empty: that of ``field``, or none.
        doc: What differs from Kafka, as Markdown.
    """

    name: str
    kind: Kind | None = None
    field: str | None = None
    librdkafka: tuple[str, int, int] | None = None
    client: Literal["both", "consumer", "producer"] = "both"
    secret: bool = False
    default: str = ""
    doc: str = ""


_READ_COMMITTED = choice("read_uncommitted", "read_committed")
_ISOLATION = Kind(
    _READ_COMMITTED.values, lambda text: _READ_COMMITTED.parse(text) == "read_committed"
)

# Bounds are those of ConsumerConfig of Kafka 4.1, save that times to wait for an answer are at
# least 1: with 0 none can come. Those of librdkafka are from CONFIGURATION.md of librdkafka 2.13.
_PROPERTIES: Final = (
    Property("bootstrap.servers", doc="`host:port` of one broker or more, separated by commas"),
    Property("check.crcs", BOOLEAN, "check_crcs", client="consumer"),
    Property(
        "client.dns.lookup",
        choice("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        default="`use_all_dns_ips`",
    ),
    Property("client.id", TEXT, "client_id"),
    Property(
        "client.rack",
        TEXT,
        "client_rack",
        client="consumer",
        doc="tasks read from the follower in this rack, where brokers allow it",
    ),
    Property(
        "connections.max.idle.ms",
        integer(-1),
        "connections_max_idle_ms",
        ("connections.max.idle.ms", 0, INT_MAX),
        doc="of tasks that read; planner and sink close no idle connection, unless it is given",
    ),
    Property("default.api.timeout.ms", integer(1, INT_MAX), "api_timeout_ms"),
    Property("fetch.max.bytes", integer(0, INT_MAX), "fetch_max_bytes", client="consumer"),
    Property("fetch.max.wait.ms", integer(0, INT_MAX), "fetch_max_wait_ms", client="consumer"),
    Property("fetch.min.bytes", integer(0, INT_MAX), "fetch_min_bytes", client="consumer"),
    Property(
        "group.id",
        TEXT,
        "group_id",
        client="consumer",
        doc="the group of `commitOffsets` and `startingOffsets=group`",
    ),
    Property(
        "isolation.level",
        _ISOLATION,
        "read_committed",
        client="consumer",
        default="`read_uncommitted`",
    ),
    Property(
        "max.partition.fetch.bytes",
        integer(0, INT_MAX),
        "max_partition_fetch_bytes",
        client="consumer",
        doc="Java's default is 1 MiB",
    ),
    Property(
        "metadata.max.age.ms",
        integer(0),
        "metadata_max_age_ms",
        ("metadata.max.age.ms", 1, 86_400_000),
    ),
    Property(
        "receive.buffer.bytes",
        integer(-1, INT_MAX),
        "receive_buffer_bytes",
        ("socket.receive.buffer.bytes", 0, 100_000_000),
        doc="of tasks that read, and Java's default is 64 KiB; planner and sink have the "
        "system's, unless it is given",
    ),
    Property(
        "reconnect.backoff.max.ms",
        integer(0),
        "reconnect_backoff_max_ms",
    ),
    Property(
        "reconnect.backoff.ms",
        integer(0),
        "reconnect_backoff_ms",
        doc="given alone, it is `reconnect.backoff.max.ms` too, as in Java",
    ),
    Property(
        "request.timeout.ms",
        integer(1, INT_MAX),
        "request_timeout_ms",
        ("socket.timeout.ms", 10, 300_000),
        doc="of tasks that read; planner and sink wait `60000` for an answer, unless it is given",
    ),
    Property(
        "retry.backoff.max.ms",
        integer(0),
        "retry_backoff_max_ms",
        ("retry.backoff.max.ms", 1, 300_000),
    ),
    Property("retry.backoff.ms", integer(0), "retry_backoff_ms", ("retry.backoff.ms", 1, 300_000)),
    Property("sasl.jaas.config", secret=True, doc="as in Java; see [security.md](security.md)"),
    Property(
        "sasl.login.callback.handler.class",
        doc="Kafka's own `OAuthBearerLoginCallbackHandler`, or a Python function as "
        "`oauthTokenProvider` takes it",
    ),
    Property("sasl.login.connect.timeout.ms", integer(1, INT_MAX)),
    Property("sasl.login.read.timeout.ms", integer(1, INT_MAX)),
    Property("sasl.login.retry.backoff.max.ms", integer(0)),
    Property("sasl.login.retry.backoff.ms", integer(0)),
    Property("sasl.mechanism", doc="`PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER`"),
    Property("sasl.oauthbearer.client.credentials.client.id"),
    Property("sasl.oauthbearer.client.credentials.client.secret", secret=True),
    Property("sasl.oauthbearer.header.urlencode", BOOLEAN, default="`false`"),
    Property("sasl.oauthbearer.scope"),
    Property("sasl.oauthbearer.token.endpoint.url", doc="`https:`, `http:` or `file:`"),
    Property(
        "security.protocol",
        choice("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        "security_protocol",
    ),
    Property(
        "send.buffer.bytes",
        integer(-1, INT_MAX),
        "send_buffer_bytes",
        ("socket.send.buffer.bytes", 0, 100_000_000),
        doc="of tasks that read; planner and sink have the system's, unless it is given",
    ),
    Property(
        "socket.connection.setup.timeout.ms",
        integer(1),
        "connection_setup_timeout_ms",
        ("socket.connection.setup.timeout.ms", 1000, INT_MAX),
        doc="of tasks that read; planner and sink wait `30000`, with the login, unless it is given",
    ),
    Property("ssl.enabled.protocols", default="`TLSv1.2,TLSv1.3`"),
    Property("ssl.endpoint.identification.algorithm", default="`https`", doc="or empty"),
    Property("ssl.key.password", secret=True),
    Property("ssl.keystore.certificate.chain", secret=True),
    Property("ssl.keystore.key", secret=True),
    Property("ssl.keystore.location"),
    Property("ssl.keystore.password", secret=True),
    Property("ssl.keystore.type", default="`JKS`", doc="or `PKCS12`, `PEM`"),
    Property("ssl.trustmanager.algorithm", default="`PKIX`"),
    Property("ssl.truststore.certificates", secret=True),
    Property("ssl.truststore.location", default="the system's"),
    Property("ssl.truststore.password", secret=True),
    Property("ssl.truststore.type", default="`JKS`", doc="or `PKCS12`, `PEM`"),
)

PROPERTIES: Final = {entry.name: entry for entry in _PROPERTIES}
"""Properties of Java's consumer that work, by name."""

SECRET: Final = frozenset(entry.name for entry in _PROPERTIES if entry.secret)
"""Properties that Kafka itself declares as passwords: never shown."""

NO_EFFECT: Final = (
    "auto.include.jmx.reporter",
    "enable.metrics.push",
    "metadata.recovery.rebootstrap.trigger.ms",
    "metadata.recovery.strategy",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
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
    "socket.connection.setup.timeout.max.ms",
    "ssl.keymanager.algorithm",
    "ssl.protocol",
    "ssl.secure.random.implementation",
)
"""Known Java properties that change neither which records are read or written here, nor as whom,
nor whom is trusted: a warning says so. (``ssl.protocol`` can only keep Java from the newest TLS of
``ssl.enabled.protocols``.)"""

CONSUMER_NO_EFFECT: Final = (
    "allow.auto.create.topics",
    "auto.commit.interval.ms",
    "exclude.internal.topics",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "heartbeat.interval.ms",
    "internal.leave.group.on.close",
    "internal.throw.on.fetch.stable.offset.unsupported",
    "max.poll.interval.ms",
    "max.poll.records",
    "partition.assignment.strategy",
    "session.timeout.ms",
    "share.acknowledgement.mode",
)
"""The same, of Java's consumer only."""

_JAVA_CLASS = "names a Java class or file, which kshare cannot load"

NOT_BUILT: Final = {
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

REFUSED: Final = {"interceptor.classes": "interceptors can change records, which is not safe"}
"""Properties that Spark's source and sink refuse too, with their reasons in short."""

CONSUMER_REFUSED: Final = {
    "auto.offset.reset": (
        "set the option 'startingOffsets' to 'earliest' or 'latest' instead. Structured Streaming "
        "manages which offsets are read, so that no data is missed when new topics or partitions "
        "appear; 'startingOffsets' applies only when a new query starts, resuming goes on where "
        "the query left off"
    ),
    "enable.auto.commit": "the checkpoint holds the offsets, nothing is committed behind its back",
    "key.deserializer": (
        "keys are always byte arrays. Use DataFrame operations to deserialize them explicitly"
    ),
    "value.deserializer": (
        "values are always byte arrays. Use DataFrame operations to deserialize them explicitly"
    ),
}
"""The same, of Java's consumer only."""

CONSUMER_NAMES: Final = frozenset(
    {
        *(entry.name for entry in _PROPERTIES if entry.client == "consumer"),
        *CONSUMER_NO_EFFECT,
        *CONSUMER_REFUSED,
    }
)
"""All properties of Java's consumer that its producer does not have."""

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
