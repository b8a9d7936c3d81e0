"""Login and trust of a client: ``sasl.*`` and ``ssl.*``, checked.

Guarantee: what Kafka's Java client refuses when it is made is refused here, with its reasons; no
text holds a password, a key, a token's URL or a value of a JAAS line. Stores and token files are
read when a connection is made, and a token provider is imported then.
"""

import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from kshare.options.allowed import function_fault, token_url_fault
from kshare.options.frozen import Properties
from kshare.options.jaas import JaasEntry, parse_jaas
from kshare.options.kafka_table import PROPERTIES
from kshare.options.kinds import has_labels
from kshare.options.raw import RawProperties

__all__ = ["Login", "SecurityParser", "extension_fault"]

# The login module (a Java class) of each mechanism, and how a line looks.
_MODULES: Final = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    "OAUTHBEARER": "OAuthBearerLoginModule",
}
_SECURITY: Final = "org.apache.kafka.common.security"
_WITH_USER: Final = 'required username="..." password="...";'
_JAAS: Final = {
    "PLAIN": f"{_SECURITY}.plain.PlainLoginModule {_WITH_USER}",
    "SCRAM-SHA-256": f"{_SECURITY}.scram.ScramLoginModule {_WITH_USER}",
    "SCRAM-SHA-512": f"{_SECURITY}.scram.ScramLoginModule {_WITH_USER}",
    "OAUTHBEARER": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule required;",
}
# What Java takes for all mechanisms but OAUTHBEARER, unless another is given.
_DEFAULT_HANDLER: Final = "common.security.authenticator.AbstractLogin$DefaultLoginCallbackHandler"
_OAUTH_HANDLER: Final = f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler"
_OAUTH_HANDLERS: Final = (
    "common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    "common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)
# How Java checks a chain of certificates (PKIX and its names; SunX509 checks less): OpenSSL checks
# as the first do. Any other is of a provider's own, and may check more.
_TRUST_ALGORITHMS: Final = ("PKIX", "SunPKIX", "X509", "X.509", "SunX509", "IbmPKIX", "IbmX509")
_UNSENDABLE: Final = "that cannot be sent"
_HANDLER: Final = "sasl.login.callback.handler.class"
_OF_TOKENS: Final = "sasl.oauthbearer."
# Those that say as whom; the others are about time.
_OF_LOGINS: Final = ("sasl.mechanism", "sasl.jaas.config", _HANDLER, _OF_TOKENS)
_PROVIDER: Final = "oauthTokenProvider"
_MSK: Final = (
    "instead of Java's, Amazon's Python signer makes the tokens (docs/security.md); write:\n"
    "      kafka.sasl.mechanism=OAUTHBEARER\n"
    "      oauthTokenProvider=package.module:function"
)
_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - the name of a property


def extension_fault(name: str, value: str) -> str | None:
    """The fault of a SASL extension (Kafka's validateExtensions); None if nothing."""
    if not re.fullmatch(r"[A-Za-z]+", name, re.ASCII) or name == "auth":
        return "whose name is not of letters"
    return None if re.fullmatch(r"[\x21-\x7E \t\r\n]+", value) else _UNSENDABLE


class Login(NamedTuple):
    """The login of a client.

    Attributes:
        mechanism: The SASL mechanism; None without SASL.
        jaas: The line of ``sasl.jaas.config``.
        token_provider: The path of the Python function that returns OAuth tokens.
    """

    mechanism: str | None = None
    jaas: JaasEntry | None = None
    token_provider: str | None = None


class SecurityParser:
    """Parses the security of one set of properties once.

    Args:
        raw: The properties as given.
    """

    def __init__(self, raw: RawProperties) -> None:
        self._raw = raw
        self._faults = raw.faults

    def parse(self, protocol: str, token_provider: str | None) -> Login:
        """Return how the client logs in; parts that are wrong are left out, with a fault.

        Args:
            protocol: ``security.protocol``, checked.
            token_provider: ``oauthTokenProvider``, checked.
        """
        self._tls(protocol)
        return self._sasl(protocol, token_provider)

    # -- SASL -------------------------------------------------------------------------------

    def _sasl(self, protocol: str, token_provider: str | None) -> Login:
        if not protocol.startswith("SASL_"):
            why = f"has no effect with kafka.security.protocol={protocol}; set SASL_SSL or "
            why += "SASL_PLAINTEXT to log in"
            self._warn_of(_OF_LOGINS, why)
            if token_provider is not None:
                self._faults.warn(_PROVIDER, why)
            return Login()
        if "sasl.mechanism" not in self._raw:
            self._raw.fault(
                "sasl.mechanism",
                "must be specified, Java's default GSSAPI (Kerberos) is not built",
                f"allowed: {', '.join(_MODULES)}",
            )
            return Login()
        mechanism = self._raw["sasl.mechanism"].strip().upper()
        if mechanism == "AWS_MSK_IAM":
            self._raw.fault("sasl.mechanism", "is not built", _MSK)
            return Login()
        if mechanism not in _MODULES:
            wrong = "is not built" if mechanism == "GSSAPI" else "is not known"
            self._raw.fault("sasl.mechanism", wrong, f"allowed: {', '.join(_MODULES)}")
            return Login()
        if mechanism == "OAUTHBEARER":
            token_provider = self._token_provider(token_provider)
            jaas = self._jaas(
                mechanism, required=not token_provider and _TOKEN_URL not in self._raw
            )
            self._oauth(jaas, token_provider)
            return Login(mechanism, jaas, token_provider)
        self._no_tokens(mechanism, token_provider)
        jaas = self._jaas(mechanism, required=True)
        if jaas is not None:
            self._credentials(mechanism, jaas)
        return Login(mechanism, jaas)

    def _no_tokens(self, mechanism: str, token_provider: str | None) -> None:
        """Check what is given of tokens, and of who makes them, where a password logs in."""
        why = f"has no effect with kafka.sasl.mechanism={mechanism}"
        if token_provider is not None:
            self._faults.warn(_PROVIDER, why)
        self._warn_of(_OF_TOKENS, why)
        handler = self._raw.get(_HANDLER, "").strip()
        if not handler or handler.endswith(_DEFAULT_HANDLER):
            return
        # Java would ask it for the password, or refuse it: never would it be passed over.
        is_of_tokens = handler.endswith(_OAUTH_HANDLERS) or not _is_java_class(handler)
        wrong = "names a Java class, which kshare cannot load"
        if is_of_tokens:
            wrong = f"makes tokens, which {mechanism} does not take"
        self._raw.fault(_HANDLER, wrong, "leave it out")

    def _warn_of(self, beginnings: str | tuple[str, ...], why: str) -> None:
        """Warn of each property that is given and would work elsewhere."""
        for name in self._raw:
            if name.startswith(beginnings) and name in PROPERTIES:
                self._faults.warn(f"kafka.{name}", why)

    def _jaas(self, mechanism: str, *, required: bool) -> JaasEntry | None:
        """Parse the JAAS line; None if there is none, or with a fault."""
        text = self._raw.get("sasl.jaas.config")
        if text is None:
            if required:
                self._raw.fault(
                    "sasl.jaas.config", "must be specified", f"write {_JAAS[mechanism]}"
                )
            return None
        try:
            jaas = parse_jaas(text)
        except ValueError as error:
            self._raw.fault("sasl.jaas.config", str(error), f"write {_JAAS[mechanism]}")
            return None
        # Some distributions rename Java's packages, so the class alone counts.
        if jaas.module.rpartition(".")[2] != _MODULES[mechanism]:
            self._raw.fault(
                "sasl.jaas.config",
                f"names a login module that does not fit {mechanism}",
                f"write {_JAAS[mechanism]}",
            )
            return None
        return jaas

    def _credentials(self, mechanism: str, login: JaasEntry) -> None:
        missing = [name for name in ("username", "password") if not login.options.get(name)]
        if missing:
            self._raw.fault(
                "sasl.jaas.config", f"lacks {' and '.join(missing)}", f"write {_JAAS[mechanism]}"
            )
        for name in ("username", "password"):
            if login.options.get(name, "")[:1].isspace():
                self._raw.fault(
                    "sasl.jaas.config",
                    f"has a {name} that begins with a blank, which librdkafka leaves out when it "
                    "logs in",
                    f"choose a {name} that begins with another character",
                )
        if any("\0" in value for value in login.options.values()):
            self._raw.fault("sasl.jaas.config", "has a NUL character in a value")
        if login.options.get("tokenauth", "").lower() == "true":
            self._raw.fault(
                "sasl.jaas.config", "has tokenauth=true: delegation tokens are not built"
            )

    def _token_provider(self, provider: str | None) -> str | None:
        """Return the path of the Python function that returns tokens; None if there is none.

        It may also be named as Java's handler class.
        """
        handler = self._raw.get(_HANDLER, "").strip()
        if not handler or handler.endswith(_OAUTH_HANDLERS):
            return provider
        if _is_java_class(handler):
            self._raw.fault(
                _HANDLER,
                "names a Java class, which kshare cannot load",
                f"leave it out or give {_OAUTH_HANDLER}",
            )
            return provider
        if fault := function_fault(handler):
            self._raw.fault(_HANDLER, *fault)
        if provider not in {None, handler}:
            self._raw.fault(_HANDLER, f"is given beside {_PROVIDER}: give one")
        return handler

    def _oauth(self, jaas: JaasEntry | None, token_provider: str | None) -> None:
        """Check where tokens come from: a function, a URL, or the JAAS line itself."""
        url = self._raw.get(_TOKEN_URL)
        options = jaas.options if jaas is not None else Properties()
        if token_provider is not None:
            if url is not None:
                self._faults.add(
                    f"kafka.{_TOKEN_URL}", None, f"is given beside {_PROVIDER}: give one"
                )
            if options:
                self._faults.warn(
                    "kafka.sasl.jaas.config",
                    f"has options, which have no effect with {_PROVIDER}: {', '.join(options)}",
                )
            return
        for name in options:
            if name.startswith(("extension_", "unsecuredLoginExtension_")):
                self._extension(name.partition("_")[2], options[name])
        if url is None:
            if jaas is not None:
                self._unsecured(options)
            return
        kind = self._token_url(url)
        if kind in {"http", "https"}:
            for prop, name in (("client.id", "clientId"), ("client.secret", "clientSecret")):
                full = f"sasl.oauthbearer.client.credentials.{prop}"
                if not (self._raw.get(full) or options.get(name)):
                    self._faults.add(
                        f"kafka.{full}",
                        None,
                        f"must be specified with kafka.{_TOKEN_URL}",
                        f"here, or as {name} in kafka.sasl.jaas.config",
                    )

    def _extension(self, name: str, value: str) -> None:
        wrong = extension_fault(name, value)
        if wrong is not None:
            shown = f": {name[:40]}" if wrong == _UNSENDABLE else ""
            self._raw.fault("sasl.jaas.config", f"has a SASL extension {wrong}{shown}")

    def _unsecured(self, options: Properties) -> None:
        claim = options.get("unsecuredLoginPrincipalClaimName") or "sub"
        if not any(name.startswith("unsecuredLogin") for name in options):
            self._faults.add(
                f"kafka.{_TOKEN_URL}",
                None,
                "must be specified",
                "give the https URL of the token endpoint, or file:// and the path of a token",
            )
        elif not options.get(f"unsecuredLoginStringClaim_{claim}"):
            self._raw.fault(
                "sasl.jaas.config", f"lacks unsecuredLoginStringClaim_{claim}, the principal's name"
            )
        for name, value in options.items():
            number = name.startswith("unsecuredLoginNumberClaim_")
            if (number or name == "unsecuredLoginLifetimeSeconds") and not _is_number(value):
                self._raw.fault("sasl.jaas.config", f"has a value of {name} that is no number")

    def _token_url(self, url: str) -> str | None:
        """The scheme of the token's URL; it is never shown, it may hold a password."""
        try:
            parts = urlsplit(url.strip())
            wrong = "@" in parts.netloc or (parts.scheme != "file" and not parts.hostname)
            wrong = wrong or parts.scheme not in {"http", "https", "file"}
            wrong = wrong or not (parts.scheme == "file" or has_labels(parts.hostname or ""))
            wrong = wrong or (parts.scheme == "file" and not parts.path.startswith("/"))
            _ = parts.port
        except ValueError:
            wrong = True
        if wrong:
            self._faults.add(
                f"kafka.{_TOKEN_URL}",
                None,
                "is no URL that can be used",
                "wanted https://host/path, http://host/path or file:///path, without a user name",
            )
            return None
        if fault := token_url_fault(url):
            self._faults.add(f"kafka.{_TOKEN_URL}", None, *fault)
        if parts.scheme == "http":
            self._faults.warn(
                f"kafka.{_TOKEN_URL}", "sends the client's secret unencrypted; https is safe"
            )
        return parts.scheme

    # -- TLS --------------------------------------------------------------------------------

    def _tls(self, protocol: str) -> None:
        if protocol not in {"SSL", "SASL_SSL"}:
            self._warn_of("ssl.", f"has no effect with kafka.security.protocol={protocol}")
            return
        get = self._raw.get
        algorithm = get("ssl.endpoint.identification.algorithm", "https").strip().lower()
        if algorithm not in {"", "https"}:
            self._raw.fault(
                "ssl.endpoint.identification.algorithm",
                "is not known",
                "allowed: https (default), or an empty text to accept any host name",
            )
        if algorithm == "":
            self._faults.warn(
                "kafka.ssl.endpoint.identification.algorithm",
                "is empty: any host with a certificate of the trusted authorities is accepted",
            )
        versions = get("ssl.enabled.protocols", "TLSv1.2,TLSv1.3").split(",")
        wanted = {version.strip() for version in versions}
        if not wanted or not wanted <= {"TLSv1.2", "TLSv1.3"}:
            self._raw.fault(
                "ssl.enabled.protocols",
                "is wrong",
                "allowed: TLSv1.2, TLSv1.3, separated by commas",
            )
        elif len(wanted) == 1:
            self._faults.warn(
                "kafka.ssl.enabled.protocols",
                "counts for tasks that read; planner and sink (librdkafka) speak the newest "
                "version that brokers have",
            )
        trust = get("ssl.trustmanager.algorithm", "PKIX").strip().lower()
        if trust not in {name.lower() for name in _TRUST_ALGORITHMS}:
            self._raw.fault(
                "ssl.trustmanager.algorithm",
                "is not built",
                f"allowed: {', '.join(_TRUST_ALGORITHMS)}, which all mean PKIX here",
            )
        self._key_store()
        self._store("ssl.truststore", "leave it out", "ssl.truststore.certificates")

    def _store(self, store: str, password_instead: str, *inline: str) -> str:
        """Refuse what Kafka's DefaultSslEngineFactory does of a store, with the same words.

        Args:
            store: The beginning of its properties' names.
            password_instead: What to do about a password for PEM.
            inline: The properties that hold its content.

        Returns:
            Its type.
        """
        raw = self._raw
        kind = raw.get(f"{store}.type", "JKS").strip().upper()
        if kind not in {"JKS", "PKCS12", "PEM"}:
            raw.fault(f"{store}.type", "is not built", "allowed: PEM, PKCS12, JKS")
            kind = "JKS"
        if any(name in raw for name in inline):
            if kind != "PEM":
                raw.fault(inline[0], f"needs kafka.{store}.type=PEM")
            if f"{store}.location" in raw:
                raw.fault(f"{store}.location", f"is given beside {inline[0]}: give one")
        if kind == "PEM" and f"{store}.password" in raw:
            raw.fault(f"{store}.password", "cannot be given with PEM", password_instead)
        return kind

    def _key_store(self) -> None:
        raw, key = self._raw, "ssl.keystore.key"
        chain, password = "ssl.keystore.certificate.chain", "ssl.keystore.password"
        kind = self._store("ssl.keystore", "set kafka.ssl.key.password", key, chain)
        for one, other in ((key, chain), (chain, key)):
            if one in raw and other not in raw:
                raw.fault(other, f"must be specified with {one}")
        if kind != "PEM" and "ssl.keystore.location" in raw and password not in raw:
            raw.fault(password, f"must be specified for a {kind} key store")


def _is_java_class(name: str) -> bool:
    """True unless it may be a Python function, whose name begins with no capital letter."""
    names = name.replace(":", ".", 1).split(".")
    return len(names) < 2 or not all(map(str.isidentifier, names)) or names[-1][0].isupper()


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", text.strip(), re.ASCII) is not None
