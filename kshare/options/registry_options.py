"""Options of the schema registry's client: ``schemaRegistry.*`` -> ``RegistryConfig``.

Guarantee: nothing is contacted or imported. An address, a login and a source of tokens are checked
as far as they can be; where the environment has lists of functions and of token URLs
(:mod:`kshare.options.allowed`), nothing else is accepted.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit

from kshare.options.allowed import token_url_fault
from kshare.options.frozen import Properties
from kshare.options.kinds import has_labels
from kshare.options.raw import RawOptions
from kshare.options.registry_table import PREFIX, REGISTRY_PROPERTIES
from kshare.options.typed_rows import RegistryConfig

__all__ = ["RegistryParser"]

_NO_URL: Final = "is no URL that can be used"
_SOURCE: Final = "bearer.auth.credentials.source"
_TOKEN_URL: Final = "bearer.auth.issuer.endpoint.url"  # noqa: S105 - the name of a property
_NEEDED: Final = {
    "STATIC_TOKEN": ("bearer.auth.token",),
    "CUSTOM": ("bearer.auth.custom.provider.function",),
    "OAUTHBEARER": (
        _TOKEN_URL,
        "bearer.auth.client.id",
        "bearer.auth.client.secret",
        "bearer.auth.scope",
    ),
    # The client has an address of its own, but asks it only with a query that no option gives.
    "OAUTHBEARER_AZURE_IMDS": (_TOKEN_URL,),
}


class RegistryParser:
    """Parses the options of a registry once.

    Args:
        raw: The options as given.
    """

    def __init__(self, raw: RawOptions) -> None:
        self._raw = raw
        self._faults = raw.faults

    def parse(self) -> RegistryConfig | None:
        """Return how to reach the registry; None if no address is given, or with a fault."""
        given: dict[str, str] = {}
        wrong = False
        for name, text in self._raw.items():
            if not name.lower().startswith(PREFIX.lower()):
                continue
            entry = REGISTRY_PROPERTIES.get(name[len(PREFIX) :].lower())
            if entry is None:
                self._faults.add(
                    name,
                    None,
                    "is no property of the registry's client",
                    f"known are: {', '.join(REGISTRY_PROPERTIES)}",
                )
                continue
            full = f"{PREFIX}{entry.name}"
            if not text.strip():
                self._faults.add(full, None, "is empty")
                wrong = True
            elif not entry.secret and self._faults.parse(full, text, entry.kind) is None:
                wrong = True
            given[entry.name] = text if entry.secret else text.strip()
        if not given:
            return None
        if "url" not in given:
            self._faults.add(f"{PREFIX}url", None, "must be specified with schemaRegistry.*")
            return None
        wrong = wrong or not self._check_urls(given["url"])
        self._check_login(given)
        return None if wrong else RegistryConfig(Properties(given))

    def _check_urls(self, text: str) -> bool:
        """Report addresses that cannot be used. They are never shown: they may hold a password."""
        name = f"{PREFIX}url"
        for url in text.split(","):
            parts = _parts(url)
            if parts is None:
                self._faults.add(name, None, _NO_URL, "write https://host:8081")
                return False
            if "@" in parts.netloc:
                self._faults.add(
                    name,
                    None,
                    "has a user name in it, which would be shown in errors",
                    f"give {PREFIX}basic.auth.user.info",
                )
                return False
        return True

    def _check_login(self, given: Mapping[str, str]) -> None:
        user = given.get("basic.auth.user.info")
        if user is not None and ":" not in user:
            self._faults.add(
                f"{PREFIX}basic.auth.user.info", None, "is wrong", "write user:password"
            )
        source = given.get(_SOURCE, "").upper()
        for name in _NEEDED.get(source, ()):
            if name not in given:
                wrong = f"must be specified with {PREFIX}{_SOURCE}={source}"
                self._faults.add(f"{PREFIX}{name}", None, wrong)
        self._check_token_url(given.get(_TOKEN_URL), source)
        if source and user is not None:
            self._faults.add(
                f"{PREFIX}basic.auth.user.info",
                None,
                "is given beside a source of tokens: give one",
            )
        for name in ("ssl.key.location", "ssl.key.password"):
            if name in given and "ssl.certificate.location" not in given:
                self._faults.add(f"{PREFIX}{name}", None, f"needs {PREFIX}ssl.certificate.location")

    def _check_token_url(self, url: str | None, source: str) -> None:
        """Whoever gives it has the client ask it, and send what it answers to the registry."""
        if url is None:
            return
        name = f"{PREFIX}{_TOKEN_URL}"
        parts = _parts(url)
        if parts is None:
            self._faults.add(name, None, _NO_URL, "write https://host/path")
        elif fault := token_url_fault(url):
            self._faults.add(name, None, *fault)
        elif source == "OAUTHBEARER" and parts.scheme == "http":
            self._faults.warn(name, "sends the client's secret unencrypted; https is safe")


def _parts(url: str) -> SplitResult | None:
    """The parts of an address; None if it is none that can be used."""
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
    except ValueError:
        return None
    host = parts.hostname or ""
    return parts if parts.scheme in {"http", "https"} and host and has_labels(host) else None
