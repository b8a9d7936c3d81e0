"""Listeners of a test broker: protocols, certificates, mechanisms and users."""

from integration.certs import Certificates

__all__ = ["LISTENERS", "MECHANISMS", "USERS", "jaas", "sasl_settings", "ssl_settings"]

# What each listener speaks. MISNAMED: with a certificate for another host. EXPIRED: with one
# that was good until yesterday. MUTUAL: wants the client's certificate.
LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "SSL",
    "MISNAMED": "SSL",
    "EXPIRED": "SSL",
    "MUTUAL": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
# The last password is one that a JAAS configuration must quote.
USERS = {"reader": "reader-secret", "stranger": "stranger-secret", "odd": 'a "b" = c\\d; e'}


def jaas(mechanism: str, user: str, password: str) -> str:
    """Return a client's ``sasl.jaas.config``."""
    security = "org.apache.kafka.common.security"
    if mechanism == "OAUTHBEARER":
        module = f"{security}.oauthbearer.OAuthBearerLoginModule"
        return f"{module} required unsecuredLoginStringClaim_sub={_quoted(user)};"
    kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    module = f"{security}.{kind}LoginModule"
    return f"{module} required username={_quoted(user)} password={_quoted(password)};"


def sasl_settings(listener: str) -> dict[str, str]:
    """Return a broker's settings of a listener with SASL."""
    prefix = f"listener.name.{listener.lower()}"
    security = "org.apache.kafka.common.security"
    users = " ".join(f"user_{user}={_quoted(password)}" for user, password in USERS.items())
    scram = f"{security}.scram.ScramLoginModule required;"
    token = 'unsecuredLoginStringClaim_sub="broker"'
    modules = {
        "plain": f"{security}.plain.PlainLoginModule required {users};",
        "scram-sha-256": scram,
        "scram-sha-512": scram,
        "oauthbearer": f"{security}.oauthbearer.OAuthBearerLoginModule required {token};",
    }
    settings = {f"{prefix}.sasl.enabled.mechanisms": ",".join(MECHANISMS)}
    settings |= {f"{prefix}.{name}.sasl.jaas.config": text for name, text in modules.items()}
    return settings


def ssl_settings(listener: str, certificates: Certificates) -> dict[str, str]:
    """Return a broker's settings of a listener with TLS."""
    prefix = f"listener.name.{listener.lower()}.ssl."
    pairs = {"MISNAMED": certificates.misnamed_pair, "EXPIRED": certificates.expired_pair}
    pair = pairs.get(listener, certificates.server_pair)
    return {
        f"{prefix}keystore.type": "PEM",
        f"{prefix}keystore.location": str(pair),
        f"{prefix}truststore.type": "PEM",
        f"{prefix}truststore.location": str(certificates.ca),
        f"{prefix}client.auth": "required" if listener == "MUTUAL" else "none",
    }


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
