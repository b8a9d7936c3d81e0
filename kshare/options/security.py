"""How a client logs in and whom it trusts: ``sasl.*`` and ``ssl.*``, checked.

Law: what Kafka's Java client refuses when it is made is refused here, with its reasons; no text
holds a password, a key, a token's URL or a value of a JAAS line. Cost: text only; stores and token
files are read when a connection is made.
"""

import re
from typing import Final
from urllib.parse import urlsplit

from kshare.options.faults import Faults
from kshare.options.frozen import Properties
from kshare.options.jaas import JaasEntry, parse_jaas
from kshare.options.table import KAFKA_BUILT, KAFKA_SECRET

__all__ = ["SecurityParser"]

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
_OAUTH_HANDLER: Final = f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler"
_OAUTH_HANDLERS: Final = (
    "common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    "common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)
# How Java checks a chain of certificates (PKIX and its names; SunX509 checks less): OpenSSL checks
# as the first do. Any other is of a provider's own, and may check more.
_TRUST_ALGORITHMS: Final = ("PKIX", "SunPKIX", "X509", "X.509", "SunX509", "IbmPKIX", "IbmX509")
_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - the name of a property


class SecurityParser:
    """Parses the security of one set of properties once.

    Args:
        properties: in lower case, without the prefix ``kafka.``.
        faults: takes what is wrong.
    """

    def __init__(self, properties: Properties, faults: Faults) -> None:
        self._properties = properties
        self._faults = faults

    def parse(self, protocol: str) -> tuple[str | None, JaasEntry | None]:
        """The SASL mechanism and the login; None without SASL, or with a fault.

        Args:
            protocol: ``security.protocol``, checked.
        """
        self._tls(protocol)
        return self._sasl(protocol)

    def _fault(self, name: str, wrong: str, right: str = "") -> None:
        value = self._properties.get(name)
        shown = None if value is None or name in KAFKA_SECRET else value
        self._faults.add(f"kafka.{name}", shown, wrong, right)

    # -- SASL -------------------------------------------------------------------------------

    def _sasl(self, protocol: str) -> tuple[str | None, JaasEntry | None]:
        """The mechanism and the login; None without SASL or with a fault."""
        if not protocol.startswith("SASL_"):
            for name in ("sasl.mechanism", "sasl.jaas.config"):
                if name in self._properties:
                    self._faults.warn(
                        f"kafka.{name}",
                        f"has no effect with kafka.security.protocol={protocol}; set SASL_SSL or "
                        "SASL_PLAINTEXT to log in",
                    )
            return None, None
        if "sasl.mechanism" not in self._properties:
            self._fault(
                "sasl.mechanism",
                "must be specified, Java's default GSSAPI (Kerberos) is not built",
                f"allowed: {', '.join(_MODULES)}",
            )
            return None, None
        given = self._properties["sasl.mechanism"].strip().upper()
        if given not in _MODULES:
            known = given in {"GSSAPI", "AWS_MSK_IAM"}
            wrong = "is not built" if known else "is not known"
            self._fault("sasl.mechanism", wrong, f"allowed: {', '.join(_MODULES)}")
            return None, None
        login = self._login(given)
        if given == "OAUTHBEARER":
            self._oauth(login)
        elif login is not None:
            self._credentials(given, login)
        return given, login

    def _login(self, mechanism: str) -> JaasEntry | None:
        text = self._properties.get("sasl.jaas.config")
        if text is None:
            if mechanism != "OAUTHBEARER" or _TOKEN_URL not in self._properties:
                self._fault("sasl.jaas.config", "must be specified", f"write {_JAAS[mechanism]}")
            return None
        try:
            login = parse_jaas(text)
        except ValueError as error:
            self._fault("sasl.jaas.config", str(error), f"write {_JAAS[mechanism]}")
            return None
        # Some distributions rename Java's packages, so the class alone counts.
        if login.module.rpartition(".")[2] != _MODULES[mechanism]:
            self._fault(
                "sasl.jaas.config",
                f"names a login module that does not fit {mechanism}",
                f"write {_JAAS[mechanism]}",
            )
            return None
        return login

    def _credentials(self, mechanism: str, login: JaasEntry) -> None:
        missing = [name for name in ("username", "password") if not login.options.get(name)]
        if missing:
            self._fault(
                "sasl.jaas.config", f"lacks {' and '.join(missing)}", f"write {_JAAS[mechanism]}"
            )
        if any("\0" in value for value in login.options.values()):
            self._fault("sasl.jaas.config", "has a NUL character in a value")
        if login.options.get("tokenauth", "").lower() == "true":
            self._fault("sasl.jaas.config", "has tokenauth=true: delegation tokens are not built")

    def _oauth(self, login: JaasEntry | None) -> None:
        handler = self._properties.get("sasl.login.callback.handler.class")
        if handler is not None and not handler.strip().endswith(_OAUTH_HANDLERS):
            self._fault(
                "sasl.login.callback.handler.class",
                "names a Java class, which kshare cannot load",
                f"leave it out or give {_OAUTH_HANDLER}",
            )
        url = self._properties.get(_TOKEN_URL)
        options = login.options if login is not None else Properties()
        for name in options:
            if name.startswith(("extension_", "unsecuredLoginExtension_")):
                self._extension(name.partition("_")[2], options[name])
        if url is None:
            if login is not None:
                self._unsecured(options)
            return
        kind = self._token_url(url)
        if kind in {"http", "https"}:
            for prop, name in (("client.id", "clientId"), ("client.secret", "clientSecret")):
                full = f"sasl.oauthbearer.client.credentials.{prop}"
                if not (self._properties.get(full) or options.get(name)):
                    self._faults.add(
                        f"kafka.{full}",
                        None,
                        f"must be specified with kafka.{_TOKEN_URL}",
                        f"here, or as {name} in kafka.sasl.jaas.config",
                    )

    def _extension(self, name: str, value: str) -> None:
        """OAuthBearerClientInitialResponse.validateExtensions of Kafka."""
        if not re.fullmatch(r"[A-Za-z]+", name, re.ASCII) or name == "auth":
            self._fault("sasl.jaas.config", "has a SASL extension whose name is not of letters")
        if not re.fullmatch(r"[\x21-\x7E \t\r\n]+", value):
            self._fault(
                "sasl.jaas.config", f"has a SASL extension that cannot be sent: {name[:40]}"
            )

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
            self._fault(
                "sasl.jaas.config", f"lacks unsecuredLoginStringClaim_{claim}, the principal's name"
            )
        for name, value in options.items():
            number = name.startswith("unsecuredLoginNumberClaim_")
            if (number or name == "unsecuredLoginLifetimeSeconds") and not _is_number(value):
                self._fault("sasl.jaas.config", f"has a value of {name} that is no number")

    def _token_url(self, url: str) -> str | None:
        """The scheme of the token's URL; it is never shown, it may hold a password."""
        try:
            parts = urlsplit(url.strip())
            wrong = "@" in parts.netloc or (parts.scheme != "file" and not parts.hostname)
            wrong = wrong or parts.scheme not in {"http", "https", "file"}
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
        if parts.scheme == "http":
            self._faults.warn(
                f"kafka.{_TOKEN_URL}", "sends the client's secret unencrypted; https is safe"
            )
        return parts.scheme

    # -- TLS --------------------------------------------------------------------------------

    def _tls(self, protocol: str) -> None:
        if protocol not in {"SSL", "SASL_SSL"}:
            for name in self._properties:
                if name.startswith("ssl.") and name in KAFKA_BUILT:
                    self._faults.warn(
                        f"kafka.{name}", f"has no effect with kafka.security.protocol={protocol}"
                    )
            return
        given = self._properties.get
        algorithm = given("ssl.endpoint.identification.algorithm", "https").strip().lower()
        if algorithm not in {"", "https"}:
            self._fault(
                "ssl.endpoint.identification.algorithm",
                "is not known",
                "allowed: https (default), or an empty text to accept any host name",
            )
        if algorithm == "":
            self._faults.warn(
                "kafka.ssl.endpoint.identification.algorithm",
                "is empty: any host with a certificate of the trusted authorities is accepted",
            )
        versions = given("ssl.enabled.protocols", "TLSv1.2,TLSv1.3").split(",")
        wanted = {version.strip() for version in versions}
        if not wanted or not wanted <= {"TLSv1.2", "TLSv1.3"}:
            self._fault(
                "ssl.enabled.protocols",
                "is wrong",
                "allowed: TLSv1.2, TLSv1.3, separated by commas",
            )
        trust = given("ssl.trustmanager.algorithm", "PKIX").strip().lower()
        if trust not in {name.lower() for name in _TRUST_ALGORITHMS}:
            self._fault(
                "ssl.trustmanager.algorithm",
                "is not built",
                f"allowed: {', '.join(_TRUST_ALGORITHMS)}, which all mean PKIX here",
            )
        self._key_store()
        self._trust_store()

    def _store_type(self, name: str) -> str:
        value = self._properties.get(name, "JKS").strip().upper()
        if value not in {"JKS", "PKCS12", "PEM"}:
            self._fault(name, "is not built", "allowed: PEM, PKCS12, JKS")
            return "JKS"
        return value

    def _key_store(self) -> None:
        """What DefaultSslEngineFactory.createKeystore of Kafka refuses, and the same words."""
        given = self._properties
        kind = self._store_type("ssl.keystore.type")
        inline = "ssl.keystore.key" in given or "ssl.keystore.certificate.chain" in given
        if inline and kind != "PEM":
            self._needs_pem("ssl.keystore.key", "ssl.keystore.type")
        if inline and "ssl.keystore.location" in given:
            self._fault("ssl.keystore.location", "is given beside ssl.keystore.key: give one")
        for one, other in (("key", "certificate.chain"), ("certificate.chain", "key")):
            if f"ssl.keystore.{one}" in given and f"ssl.keystore.{other}" not in given:
                self._fault(f"ssl.keystore.{other}", f"must be specified with ssl.keystore.{one}")
        if kind == "PEM" and "ssl.keystore.password" in given:
            self._fault(
                "ssl.keystore.password", "cannot be given with PEM", "set kafka.ssl.key.password"
            )
        if (
            kind != "PEM"
            and "ssl.keystore.location" in given
            and "ssl.keystore.password" not in given
        ):
            self._fault("ssl.keystore.password", f"must be specified for a {kind} key store")

    def _trust_store(self) -> None:
        given = self._properties
        kind = self._store_type("ssl.truststore.type")
        inline = "ssl.truststore.certificates" in given
        if inline and kind != "PEM":
            self._needs_pem("ssl.truststore.certificates", "ssl.truststore.type")
        if inline and "ssl.truststore.location" in given:
            self._fault(
                "ssl.truststore.location", "is given beside ssl.truststore.certificates: give one"
            )
        if kind == "PEM" and "ssl.truststore.password" in given:
            self._fault("ssl.truststore.password", "cannot be given with PEM", "leave it out")

    def _needs_pem(self, name: str, kind: str) -> None:
        self._fault(name, f"needs kafka.{kind}=PEM")


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text.strip(), re.ASCII) is not None
