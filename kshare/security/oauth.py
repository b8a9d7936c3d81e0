"""Tokens for SASL/OAUTHBEARER, from where the options say, refreshed before they expire.

Guarantee: a token of an endpoint or a provider is used for four fifths of its life and then fetched
again; while that fails, the old one is used until it expires. No text holds a token.
Cost: one request for each process and token (threads that ask at the same time may each make one).
"""

import hashlib
import logging
import os
import pickle
import threading
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote, urlsplit

from kshare.errors import KshareError
from kshare.options.frozen import Properties
from kshare.options.model import KafkaConfig
from kshare.security.token_endpoint import token_from_endpoint
from kshare.security.token_provider import provided_token
from kshare.security.tokens import (
    TOKEN_URL,
    Token,
    jaas_extensions,
    token_from_file,
    unsecured_token,
)

__all__ = ["oauth_token"]

_log = logging.getLogger(__name__)
_FRESH_PART: Final = 0.8  # sasl.login.refresh.window.factor
# After a failure, an old token is used for this part of its rest before the next attempt.
_RETRY_PART: Final = 0.1

Clock = Callable[[], float]


class _TokenCache:
    """The tokens of one process; a forked child makes its own, because locks may be held."""

    def __init__(self) -> None:
        self.pid = os.getpid()
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


_cache = _TokenCache()


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
    global _cache  # noqa: PLW0603
    if _cache.pid != os.getpid():
        _cache = _TokenCache()
    provider = kafka.oauth_token_provider
    if provider is not None:
        return _cache.token(provider.encode(), lambda: provided_token(provider, clock()), clock)
    options = kafka.login.options if kafka.login is not None else Properties()
    url = kafka.properties.get(TOKEN_URL, "").strip()
    if not url:
        return unsecured_token(options, clock())
    extensions = jaas_extensions(options)
    if url.lower().startswith("file:"):
        return token_from_file(unquote(urlsplit(url).path), extensions, clock())
    # A digest: the cache holds no second copy of a secret.
    key = hashlib.sha256(pickle.dumps((kafka.properties, options))).digest()
    return _cache.token(key, lambda: token_from_endpoint(kafka, options, url, extensions), clock)
