"""Tokens for SASL/OAUTHBEARER, from where the options say, refreshed before they expire.

Guarantee: a token of an endpoint or a provider is used for four fifths of its life and then fetched
again; while that fails, the old one is used until it expires. No text holds a token. A client's
credentials are never sent to a token endpoint over a redirect, and never in a text. What the
endpoint refuses is an :class:`~kshare.errors.AuthenticationError`; what may pass is tried again for
``sasl.login.retry.backoff.max.ms``, and is then an ``OSError``.
Cost: one request for each process and token (threads that ask at the same time may each make one).

The endpoint is asked as ``HttpJwtRetriever`` of Kafka 4.1 asks, by the standard library's HTTP
client, because Authlib with Requests takes 200 ms longer to import in each planner (measured;
docs/design/decisions.md).
"""

import base64
import http.client
import io
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, Final, cast
from urllib.parse import quote_plus, unquote, urlencode, urlsplit

from kshare.core.backoff import Backoff
from kshare.core.bounded_json import read_json
from kshare.errors import AuthenticationError, KshareError
from kshare.options.frozen import FrozenMapping, Properties, digest_of
from kshare.options.model import KafkaConfig
from kshare.process_local import ProcessLocal
from kshare.security.tls import context_of
from kshare.security.tokens import (
    TEN_YEARS,
    TOKEN_URL,
    Token,
    jaas_extensions,
    provided_token,
    token_from_file,
    token_from_text,
    unsecured_token,
)

__all__ = ["oauth_token", "token_from_endpoint"]

_log = logging.getLogger(__name__)
_FRESH_PART: Final = 0.8  # sasl.login.refresh.window.factor
# After a failure, an old token is used for this part of its rest before the next attempt.
_RETRY_PART: Final = 0.1

Clock = Callable[[], float]
_BODY_MAX: Final = 1 << 20
# Answers that the same question will get again (HttpJwtRetriever).
_FINAL_STATUS: Final = frozenset(
    {*range(300, 308), *range(400, 408), *range(409, 416), 426, 501, 505}
)


class _TokenCache:
    """The tokens of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens: dict[bytes, tuple[float, Token]] = {}

    def token(self, key: bytes, fetch: Callable[[], Token], clock: Clock) -> Token:
        """Return the token of ``key``; fetch it if there is none, or if it is no longer fresh."""
        with self._lock:
            fresh_until, token = self._tokens.get(key, (0.0, None))
        now = clock()
        if token is not None and now < fresh_until:
            return token
        try:
            token = fetch()  # may take seconds: no lock
            fresh_until = now + _FRESH_PART * (token.expires - now)
        except (KshareError, OSError) as error:
            if token is None or now >= token.expires:
                raise
            left = token.expires - now
            _log.warning("OAuth token not refreshed, the old one lasts %.0f s: %s", left, error)
            fresh_until = now + _RETRY_PART * left
        with self._lock:
            self._tokens[key] = (fresh_until, token)
        return token


_cache: Final = ProcessLocal(_TokenCache, keeps_copy=False)


def oauth_token(kafka: KafkaConfig, *, clock: Clock = time.time) -> Token:
    """Return a token that is good for a while.

    Args:
        kafka: With the mechanism OAUTHBEARER.
        clock: Returns seconds since 1970.

    Raises:
        AuthenticationError: The token endpoint refused the client, the token provider failed, or
            what they gave is not a good token.
        OptionsError: A token's file cannot be used, or there is no such token provider.
        OSError: The token endpoint could not be reached; a retry may help.
    """
    provider = kafka.oauth_token_provider
    if provider is not None:
        return _cache().token(provider.encode(), lambda: provided_token(provider, clock()), clock)
    options = kafka.login.options if kafka.login is not None else Properties()
    url = kafka.properties.get(TOKEN_URL, "").strip()
    if not url:
        return unsecured_token(options, clock())
    extensions = jaas_extensions(options)
    if url.lower().startswith("file:"):
        return token_from_file(unquote(urlsplit(url).path), extensions, clock())
    key = digest_of((kafka.properties, options))
    return _cache().token(key, lambda: token_from_endpoint(kafka, options, url, extensions), clock)


def token_from_endpoint(
    kafka: KafkaConfig, options: Properties, url: str, extensions: FrozenMapping[str, str]
) -> Token:
    """Ask the token endpoint, until there is an answer or the time for it is over.

    Args:
        kafka: Java's properties.
        options: The options of the JAAS line.
        url: The endpoint.
        extensions: SASL extensions of the token.

    Raises:
        AuthenticationError: The endpoint refused the client, or its answer is not a token.
        OSError: The endpoint could not be reached; a retry may help.
    """
    return _Endpoint(kafka, options, url).token(extensions)


class _RefusedError(Exception):
    """The endpoint's answer will stay the same."""


class _BoundedSocket:
    """A connected socket whose answer has to be there in time, in however small pieces it comes.

    Args:
        sock: The socket.
        seconds: Maximum time for the answer as a whole.
    """

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self._sock = sock
        self._seconds = seconds
        sock.settimeout(seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def makefile(self, mode: str) -> io.BufferedReader:  # noqa: ARG002 - as of a socket
        """The answer, as a stream with that time."""
        return io.BufferedReader(_BoundedReader(self._sock, self._seconds))


class _BoundedReader(io.RawIOBase):
    """The bytes that come over a socket within a time."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._until = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until - time.monotonic()
        with suppress(TimeoutError):
            if left > 0:
                self._sock.settimeout(left)
                return self._raw.readinto(buffer)
        raise TimeoutError("its answer did not come within sasl.login.read.timeout.ms")

    def close(self) -> None:
        self._raw.close()
        super().close()


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
        first_ms = int(self._given.get("sasl.login.retry.backoff.ms", "100"))
        longest_ms = int(self._given.get("sasl.login.retry.backoff.max.ms", "10000"))
        pauses = Backoff(first_ms, longest_ms)
        deadline = time.monotonic() + longest_ms / 1000
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
            except UnicodeError:  # of the name's encoding: it stays as it is
                raise AuthenticationError(
                    f"the token endpoint {self._shown}: its host is no name that can be looked up"
                ) from None
            except (OSError, http.client.HTTPException) as error:
                pause = pauses.pause()
                if time.monotonic() + pause > deadline:
                    raise OSError(f"the token endpoint {self._shown}: {_text(error)}") from error
            time.sleep(pause)

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
            seconds = self._seconds("sasl.login.read.timeout.ms")
            connection.sock = cast("Any", _BoundedSocket(connection.sock, seconds))
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
            answer = read_json(body)
        except ValueError:
            raise _RefusedError("its answer is no JSON") from None
        text = answer.get("access_token") if isinstance(answer, dict) else None
        if not isinstance(text, str) or not text or not text.isascii() or not text.isprintable():
            raise _RefusedError("its answer holds no access_token")
        lifetime = answer.get("expires_in")
        is_number = isinstance(lifetime, int | float) and not isinstance(lifetime, bool)
        if is_number and lifetime > TEN_YEARS:
            raise _RefusedError("its token would be good for more than ten years (expires_in)")
        seconds = float(max(lifetime, 0)) if is_number else None
        now = time.time()
        token = token_from_text(text, seconds, extensions, now)
        if token.expires <= now:
            raise _RefusedError("its token is expired already (are the clocks right?)")
        return token


def _refusal(status: int, body: bytes) -> str:
    """The error code in an answer by RFC 6749, if it is one: its code is a word of a list."""
    try:
        code = read_json(body).get("error")
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
