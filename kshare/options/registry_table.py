"""The properties of a schema registry's client (``schemaRegistry.*``): every name once.

Guarantee: data only. Names are those of confluent-kafka's ``SchemaRegistryClient``.
"""

from typing import Final, NamedTuple

from kshare.options.kinds import FUNCTION, TEXT, Kind, choice, integer

__all__ = ["PREFIX", "REGISTRY_PROPERTIES", "RegistryProperty"]

PREFIX: Final = "schemaRegistry."


class RegistryProperty(NamedTuple):
    """A property.

    Attributes:
        name: Without the prefix ``schemaRegistry.``.
        doc: What it does, as Markdown on one line.
        kind: The values.
        secret: Whether its text is never shown.
    """

    name: str
    doc: str
    kind: Kind = TEXT
    secret: bool = False


_SOURCES: Final = choice("OAUTHBEARER", "OAUTHBEARER_AZURE_IMDS", "STATIC_TOKEN", "CUSTOM")
_COUNT: Final = integer(1)

_PROPERTIES: Final = (
    RegistryProperty("url", "Address of the registry; several are separated by commas."),
    RegistryProperty("basic.auth.user.info", "`user:password`.", secret=True),
    RegistryProperty("ssl.ca.location", "PEM file, or folder, of the authorities to trust."),
    RegistryProperty("ssl.certificate.location", "PEM file of the client's certificate."),
    RegistryProperty("ssl.key.location", "PEM file of the client's key."),
    RegistryProperty("ssl.key.password", "Password of that file.", secret=True),
    RegistryProperty("bearer.auth.credentials.source", "Where tokens come from.", _SOURCES),
    RegistryProperty("bearer.auth.token", "The token of `STATIC_TOKEN`.", secret=True),
    RegistryProperty(
        "bearer.auth.issuer.endpoint.url",
        "The endpoint of tokens, for `OAUTHBEARER`; for `OAUTHBEARER_AZURE_IMDS` with its query.",
    ),
    RegistryProperty("bearer.auth.client.id", "Id of the client at that endpoint."),
    RegistryProperty("bearer.auth.client.secret", "Its secret.", secret=True),
    RegistryProperty("bearer.auth.scope", "The scope of tokens."),
    RegistryProperty("bearer.auth.logical.cluster", "Confluent Cloud's logical cluster."),
    RegistryProperty("bearer.auth.identity.pool.id", "Confluent Cloud's identity pool."),
    RegistryProperty(
        "bearer.auth.custom.provider.function",
        "Python function that returns confluent-kafka's bearer fields, for `CUSTOM`.",
        FUNCTION,
    ),
    RegistryProperty("proxy", "Address of a proxy.", secret=True),
    RegistryProperty("timeout", "Longest wait for an answer, in seconds; 10 by default.", _COUNT),
)

REGISTRY_PROPERTIES: Final = {entry.name: entry for entry in _PROPERTIES}
"""All properties by name."""
