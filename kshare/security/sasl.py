"""SASL mechanisms of kafka-python, with what Java's client adds.

Guarantee: user names with ``=`` and ``,`` are sent as in RFC 5802; an empty password is never sent.
"""

from typing import TYPE_CHECKING, Any

from kshare.kafka_python import AbstractTokenProvider, get_sasl_mechanism
from kshare.options.model import KafkaConfig

if TYPE_CHECKING:
    from kshare.security.tokens import Token

__all__ = ["sasl_mechanism"]


def sasl_mechanism(kafka: KafkaConfig) -> Any:
    """Return a mechanism of kafka-python, ready for one login; None without SASL.

    Raises:
        AuthenticationError: The token endpoint refused the client, or the token provider failed.
        OptionsError: A token's file cannot be used.
        OSError: The token endpoint could not be reached; a retry may help.
    """
    if not kafka.uses_sasl:
        return None
    name = kafka.sasl_mechanism
    kind = get_sasl_mechanism(name)
    if name == "OAUTHBEARER":
        from kshare.security.oauth import oauth_token  # noqa: PLC0415 - an HTTP client: 20 ms

        return kind(sasl_oauth_token_provider=_provider(oauth_token(kafka)))
    user, password = kafka.sasl_username, kafka.sasl_password
    if not user or password is None:
        raise RuntimeError("parse_options lets no login without user and password through")
    if name != "PLAIN":
        user = user.replace("=", "=3D").replace(",", "=2C")
    return kind(
        sasl_mechanism=name, sasl_plain_username=user, sasl_plain_password=password.reveal()
    )


def _provider(token: "Token") -> Any:
    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return token.value.reveal()

        def extensions(self) -> dict[str, str]:
            return dict(token.extensions)

    return Provider()
