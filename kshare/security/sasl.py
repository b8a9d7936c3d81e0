"""SASL: what kafka-python has of it, with what Java's client does besides.

Law: user names with ``=`` and ``,`` are sent as RFC 5802 has it; an empty password is never sent.
Cost: a login; the imports of kafka-python at the first.
"""

from typing import TYPE_CHECKING, Any

from kshare.options.model import KafkaConfig

if TYPE_CHECKING:
    from kshare.security.tokens import Token

__all__ = ["sasl_mechanism"]


def sasl_mechanism(kafka: KafkaConfig) -> Any:
    """A mechanism of kafka-python's, ready for one login; None without SASL.

    Raises:
        AuthenticationError: the token endpoint refused the client.
        OptionsError: a token's file cannot be used.
        OSError: the token endpoint could not be reached; a retry may mend it.
    """
    if not kafka.uses_sasl:
        return None
    from kafka.net.sasl import get_sasl_mechanism  # noqa: PLC0415

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
    from kafka.net.sasl.oauth import AbstractTokenProvider  # noqa: PLC0415

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return token.value.reveal()

        def extensions(self) -> dict[str, str]:
            return dict(token.extensions)

    return Provider()
