"""Tokens for SASL/OAUTHBEARER: client credentials, token files, unsecured tokens.

Law: a token is fetched again before it expires, never sent over a redirect, and never in a text.
What the token endpoint refuses is an :class:`~kshare.errors.AuthenticationError`; what may pass is
tried again for ``sasl.login.retry.backoff.max.ms``, and then an ``OSError``.
Cost: one HTTP request for each process and four fifths of a token's life (threads that ask at the
same time may each make one).

Follows ``HttpJwtRetriever`` and ``OAuthBearerUnsecuredLoginCallbackHandler`` of Kafka 4.1.
"""

import base64
import binascii
import hashlib
import http.client
import json
import os
import pickle
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus, unquote, urlencode, urlsplit

from kshare.errors import AuthenticationError, OptionsError
from kshare.options.frozen import FrozenMapping, Properties, Secret
from kshare.options.model import KafkaConfig
from kshare.security.tls import context_of

__all__ = ["Token", "obtain"]

_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_BODY_MAX: Final = 1 << 20
_LIFETIME_SECONDS: Final = 3600.0
_FRESH_PART: Final = 0.8  # sasl.login.refresh.window.factor
# Answers that the same question will get again (HttpJwtRetriever).
_FINAL_STATUS: Final = frozenset(
    {*range(300, 308), *range(400, 408), *range(409, 416), 426, 501, 505}
)


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token.

    Attributes:
        value: what is sent.
        expires: seconds since 1970.
        principal: its subject; empty if it does not say.
        extensions: sent along with it.
    """

    value: Secret
    expires: float
    principal: str = ""
    extensions: FrozenMapping[str, str] = FrozenMapping()  # noqa: RUF009 - frozen


class _Memory:
    """The tokens of one process; empty in a forked child, whose locks may be held."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.tokens: dict[bytes, tuple[float, Token]] = {}


_memory = _Memory()


def obtain(kafka: KafkaConfig) -> Token:
    """A token that is good for a while.

    Args:
        kafka: with the mechanism OAUTHBEARER.

    Raises:
        AuthenticationError: the token endpoint refused the client, or gave what is no token.
        OptionsError: a file cannot be used.
        OSError: the token endpoint could not be reached; a retry may mend it.
    """
    global _memory  # noqa: PLW0603
    options = kafka.login.options if kafka.login is not None else Properties()
    url = kafka.properties.get(_URL, "").strip()
    if not url:
        return _unsecured(options)
    extensions = _extensions(options, "extension_")
    if url.lower().startswith("file:"):
        return _from_file(unquote(urlsplit(url).path), extensions)
    if _memory.pid != os.getpid():
        _memory = _Memory()
    # A digest: the memory holds no second copy of a secret.
    asked = hashlib.sha256(pickle.dumps((kafka.properties, options))).digest()
    with _memory.lock:
        fresh_until, token = _memory.tokens.get(asked, (0.0, None))
    began = time.time()
    if token is None or began >= fresh_until:
        token = _Endpoint(kafka, options, url).token(extensions)  # may take seconds: no lock
        fresh_until = began + _FRESH_PART * (token.expires - began)
        with _memory.lock:
            _memory.tokens[asked] = (fresh_until, token)
    return token


def _extensions(options: Properties, prefix: str) -> FrozenMapping[str, str]:
    return FrozenMapping(
        {
            name.removeprefix(prefix): value
            for name, value in options.items()
            if name.startswith(prefix)
        }
    )


# -- without an endpoint ------------------------------------------------------------------------


def _unsecured(options: Properties) -> Token:
    """A token that nobody signed, for brokers that allow it."""
    claims: dict[str, Any] = {}
    kinds: dict[str, Callable[[str], Any]] = {
        "String": str,
        "Number": _number,
        "List": lambda text: text[1:].split(text[0]),
    }
    for name, value in options.items():
        for kind, parse in kinds.items():
            prefix = f"unsecuredLogin{kind}Claim_"
            if name.startswith(prefix) and value:
                claims[name.removeprefix(prefix)] = parse(value)
    seconds = float(options.get("unsecuredLoginLifetimeSeconds") or _LIFETIME_SECONDS)
    now = time.time()
    claims = {"iat": now, "exp": now + seconds, **claims}
    text = f"{_encoded({'alg': 'none'})}.{_encoded(claims)}."
    principal = str(claims.get(options.get("unsecuredLoginPrincipalClaimName") or "sub", ""))
    extensions = _extensions(options, "unsecuredLoginExtension_")
    expires = float(claims["exp"])
    if expires <= now:
        raise AuthenticationError(
            "cannot log in: the unsecured token of kafka.sasl.jaas.config is expired since "
            f"{now - expires:.0f} s: leave out its claim exp, or set unsecuredLoginLifetimeSeconds"
        )
    return Token(Secret(text), expires, principal, extensions)


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)


def _encoded(part: Mapping[str, Any]) -> str:
    text = json.dumps(part, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def _from_file(path: str, extensions: FrozenMapping[str, str]) -> Token:
    try:
        text = Path(path).read_text("ascii").strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no ASCII text"
        raise OptionsError([f"kafka.{_URL}: the file of the token cannot be read: {why}"]) from None
    if not text or not text.isprintable() or " " in text:
        raise OptionsError([f"kafka.{_URL}: the file holds no token"])
    token = _token(text, None, extensions)
    if token.expires <= time.time():
        raise AuthenticationError(
            f"cannot log in: the token in the file of kafka.{_URL} is expired since "
            f"{time.time() - token.expires:.0f} s"
        )
    return token


def _token(text: str, lifetime: float | None, extensions: FrozenMapping[str, str]) -> Token:
    """A token with what it says of itself, if it is a JWT that can be read."""
    claims: Any = {}
    parts = text.split(".")
    if len(parts) == 3:
        try:
            claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        except (binascii.Error, ValueError):
            claims = {}
    if not isinstance(claims, dict):
        claims = {}
    expires = claims.get("exp")
    if not isinstance(expires, int | float) or isinstance(expires, bool):
        expires = time.time() + (_LIFETIME_SECONDS if lifetime is None else lifetime)
    subject = claims.get("sub")
    principal = subject if isinstance(subject, str) else ""
    return Token(Secret(text), float(expires), principal, extensions)


# -- the endpoint -------------------------------------------------------------------------------


class _RefusedError(Exception):
    """The endpoint's answer will stay the same."""


class _Endpoint:
    """The token endpoint, asked with the client's credentials."""

    def __init__(self, kafka: KafkaConfig, options: Properties, url: str) -> None:
        self._given = kafka.properties
        self._options = options
        self._url = urlsplit(url)
        self._shown = f"{self._url.scheme}://{self._url.hostname}{self._url.path}"
        self._api_timeout = kafka.api_timeout_ms / 1000

    def token(self, extensions: FrozenMapping[str, str]) -> Token:
        """Ask until there is an answer, or the time for it is over."""
        pause = int(self._given.get("sasl.login.retry.backoff.ms", "100")) / 1000
        longest = int(self._given.get("sasl.login.retry.backoff.max.ms", "10000")) / 1000
        deadline = time.monotonic() + longest
        while True:
            try:
                return self._answer(self._ask(), extensions)
            except _RefusedError as error:
                raise AuthenticationError(
                    f"the token endpoint {self._shown} gave no token: {error}"
                ) from None
            except ssl.SSLCertVerificationError as error:
                raise AuthenticationError(
                    f"the token endpoint {self._shown}: its certificate was not accepted: "
                    f"{error.verify_message}"
                ) from None
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() + pause > deadline:
                    raise OSError(f"the token endpoint {self._shown}: {_text(error)}") from error
            time.sleep(pause)
            pause *= 2

    def _ask(self) -> bytes:
        headers = {
            "Accept": "application/json",
            "Authorization": f"Basic {self._credentials()}",
            "Cache-Control": "no-cache",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        form = {"grant_type": "client_credentials"}
        scope = self._given.get("sasl.oauthbearer.scope") or self._options.get("scope")
        if scope:
            form["scope"] = scope
        path = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        with closing(self._connection()) as connection:
            connection.connect()
            self._limit_reading(connection.sock)
            connection.request("POST", path, urlencode(form).encode(), headers)
            response = connection.getresponse()
            body = response.read(_BODY_MAX + 1)
            if response.status in {200, 201}:
                return body
            why = f"HTTP status {response.status} {_refusal(response.status, body)}"
            if response.status in _FINAL_STATUS:
                raise _RefusedError(why)
            raise OSError(why)

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        seconds = self._seconds("sasl.login.connect.timeout.ms")
        if self._url.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=seconds)
        # As in Java, its TLS is configured by the options of the JAAS line.
        tls = {name: text for name, text in self._options.items() if name.startswith("ssl.")}
        return http.client.HTTPSConnection(
            host, port, timeout=seconds, context=context_of(Properties(tls))
        )

    def _limit_reading(self, sock: socket.socket) -> None:
        sock.settimeout(self._seconds("sasl.login.read.timeout.ms"))

    def _seconds(self, name: str) -> float:
        given = self._given.get(name)
        return min(10.0, self._api_timeout) if given is None else int(given) / 1000

    def _credentials(self) -> str:
        prefix = "sasl.oauthbearer.client.credentials.client"
        pair = [
            self._given.get(f"{prefix}.{name}") or self._options.get(other, "")
            for name, other in (("id", "clientId"), ("secret", "clientSecret"))
        ]
        if self._given.get("sasl.oauthbearer.header.urlencode", "").strip().lower() == "true":
            pair = [quote_plus(part) for part in pair]
        return base64.b64encode(":".join(pair).encode()).decode()

    def _answer(self, body: bytes, extensions: FrozenMapping[str, str]) -> Token:
        if len(body) > _BODY_MAX:
            raise _RefusedError("its answer is longer than 1 MiB")
        try:
            answer = json.loads(body)
        except ValueError:
            raise _RefusedError("its answer is no JSON") from None
        text = answer.get("access_token") if isinstance(answer, dict) else None
        if not isinstance(text, str) or not text or not text.isascii() or not text.isprintable():
            raise _RefusedError("its answer holds no access_token")
        lifetime = answer.get("expires_in")
        seconds = float(lifetime) if isinstance(lifetime, int | float) else None
        token = _token(text, seconds, extensions)
        if token.expires <= time.time():
            raise _RefusedError("its token is expired already (are the clocks right?)")
        return token


def _refusal(status: int, body: bytes) -> str:
    """What an error answer of RFC 6749 says, as far as it is one: its code is a word of a list."""
    try:
        code = json.loads(body).get("error")
    except (ValueError, AttributeError):
        code = None
    known = {
        "invalid_request": "",
        "invalid_client": ": the client's id or secret is wrong",
        "invalid_grant": "",
        "unauthorized_client": ": the client may not use client credentials",
        "unsupported_grant_type": "",
        "invalid_scope": ": kafka.sasl.oauthbearer.scope is wrong",
    }
    if code in known:
        return f"({code}{known[code]})"
    return "(the client's id or secret is wrong)" if status == 401 else ""


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
