"""TLS: ``ssl.*`` -> :class:`ssl.SSLContext`.

Guarantee: a broker is trusted only if its certificate leads to a trusted one and, unless
``ssl.endpoint.identification.algorithm`` is empty, names the host; TLS 1.2 and 1.3 only.
Cost: stores are read for each connection; the client's key is in a file for a moment (in memory, on
Linux), encrypted with a password that is never written.
"""

import secrets
import ssl
from typing import TYPE_CHECKING

from kshare.errors import OptionsError
from kshare.operating_system import OperatingSystem, this_system
from kshare.options.frozen import Properties
from kshare.options.model import KafkaConfig
from kshare.security.store_files import has_key, private_file
from kshare.security.trust_store import trust_store

if TYPE_CHECKING:
    from kshare.security.key_store import KeyStore

__all__ = ["client_keys", "context_of", "identifies_endpoints", "ssl_context"]

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def ssl_context(kafka: KafkaConfig) -> ssl.SSLContext | None:
    """Return the context of connections to brokers; None without TLS.

    Raises:
        OptionsError: A store cannot be used; the text names the option.
    """
    return context_of(kafka.properties) if kafka.uses_tls else None


def identifies_endpoints(properties: Properties) -> bool:
    """True if certificates must name the host: so it is, unless the option is an empty text."""
    name = "ssl.endpoint.identification.algorithm"
    return properties.get(name, "https").strip().lower() == "https"


def context_of(properties: Properties, system: OperatingSystem | None = None) -> ssl.SSLContext:
    """Return the context of a client.

    Args:
        properties: Java's ``ssl.*``, without ``kafka.``.
        system: What the operating system has; by default, that of this process.

    Raises:
        OptionsError: A store cannot be used; the text names the option.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = identifies_endpoints(properties)
    context.verify_mode = ssl.CERT_REQUIRED
    given = properties.get("ssl.enabled.protocols", "TLSv1.2,TLSv1.3").split(",")
    versions = sorted(_VERSIONS[name.strip()] for name in given)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    trusted = trust_store(properties)
    if trusted is None:
        context.load_default_certs()
    else:
        # As in Java, all that is in the trust store is trusted, self-signed or not.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(cadata=trusted)
        except ssl.SSLError:
            raise OptionsError(
                ["kafka.ssl.truststore.*: holds a certificate that cannot be read"]
            ) from None
    keys = client_keys(properties)
    if keys is not None:
        _load_keys(context, keys, system or this_system())
    return context


def client_keys(properties: Properties) -> "KeyStore | None":
    """The client's certificate and key; None if it has none of its own.

    Raises:
        OptionsError: The key store cannot be used.
    """
    if not has_key(properties):
        return None
    from kshare.security.key_store import key_store  # noqa: PLC0415 - cryptography: 130 ms

    return key_store(properties)


def _load_keys(context: ssl.SSLContext, keys: "KeyStore", system: OperatingSystem) -> None:
    """Python takes keys from files only."""
    password = secrets.token_urlsafe(32)
    content = (keys.certificates + keys.key_pem(password)).encode()
    with private_file("kshare-client.pem", content, system) as path:
        try:
            context.load_cert_chain(path, password=password)
        except ssl.SSLError:
            raise OptionsError(
                ["kafka.ssl.keystore.*: holds a key or a certificate that OpenSSL cannot use"]
            ) from None
