"""Bearer tokens that no endpoint issues: in a file, unsecured, or from a function of the user's.

Unsecured ones follow ``OAuthBearerUnsecuredLoginCallbackHandler`` of Kafka 4.1.

The function (``oauthTokenProvider=package.module:function``) takes no arguments. It returns
``(token, expires)``, ``(token, expires, principal)`` or ``(token, expires, principal,
extensions)``: a text, seconds since 1970, a text, a dict of texts.
"""

import base64
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kshare.core.bounded_json import read_json
from kshare.core.dotted_path import find
from kshare.core.showing import error_text, shown_error
from kshare.errors import AuthenticationError, OptionsError
from kshare.options.frozen import FrozenMapping, Properties, Secret
from kshare.options.kinds import BadValueError
from kshare.options.security import extension_fault

__all__ = [
    "TEN_YEARS",
    "TOKEN_URL",
    "Token",
    "is_sendable",
    "jaas_extensions",
    "provided_token",
    "token_from_file",
    "token_from_text",
    "unsecured_token",
]

TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - the name of a property
_LIFETIME_SECONDS: Final = 3600.0
TEN_YEARS: Final = 10 * 365 * 86_400
"""No token is good for longer, in seconds."""
_WANTED: Final = "return (token, seconds since 1970), and optionally principal and extensions"


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token.

    Attributes:
        value: The text that is sent.
        expires: When it expires, in seconds since 1970.
        principal: Its subject; empty if unknown.
        extensions: SASL extensions, sent along with it.
    """

    value: Secret
    expires: float
    principal: str = ""
    extensions: FrozenMapping[str, str] = FrozenMapping()  # noqa: RUF009 - frozen


def is_sendable(text: str) -> bool:
    """True if a text can be sent as a token: ASCII without blanks."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def jaas_extensions(options: Properties, prefix: str = "extension_") -> FrozenMapping[str, str]:
    """Return the SASL extensions that a JAAS line lists."""
    return FrozenMapping(
        {
            name.removeprefix(prefix): value
            for name, value in options.items()
            if name.startswith(prefix)
        }
    )


def token_from_text(
    text: str, lifetime: float | None, extensions: FrozenMapping[str, str], now: float
) -> Token:
    """Return a token with what it says of itself, if it is a JWT that can be read.

    Args:
        text: The token.
        lifetime: How long it is good if it does not say, in seconds; None: an hour.
        extensions: SASL extensions.
        now: The time, in seconds since 1970.
    """
    claims: Any = {}
    parts = text.split(".")
    if len(parts) == 3:
        try:
            claims = read_json(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        except ValueError:
            claims = {}
    if not isinstance(claims, dict):
        claims = {}
    expires = claims.get("exp")
    is_number = isinstance(expires, int | float) and not isinstance(expires, bool)
    if not is_number or expires > now + TEN_YEARS:  # one that never ends says nothing
        expires = now + (_LIFETIME_SECONDS if lifetime is None else lifetime)
    subject = claims.get("sub")
    principal = subject if isinstance(subject, str) else ""
    return Token(Secret(text), float(max(expires, 0)), principal, extensions)


def token_from_file(path: str, extensions: FrozenMapping[str, str], now: float) -> Token:
    """Read a token from a file.

    Raises:
        AuthenticationError: The token has expired.
        OptionsError: The file cannot be read, or holds no token.
    """
    try:
        text = Path(path).read_text("ascii").strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no ASCII text"
        raise OptionsError(
            [f"kafka.{TOKEN_URL}: the file of the token cannot be read: {why}"]
        ) from None
    if not is_sendable(text):
        raise OptionsError([f"kafka.{TOKEN_URL}: the file holds no token"])
    token = token_from_text(text, None, extensions, now)
    if token.expires <= now:
        raise AuthenticationError(
            f"cannot log in: the token in the file of kafka.{TOKEN_URL} is expired since "
            f"{now - token.expires:.0f} s"
        )
    return token


def unsecured_token(options: Properties, now: float) -> Token:
    """Make a token that no one signed, for brokers that allow it.

    Args:
        options: The options of the JAAS line.
        now: The time, in seconds since 1970.

    Raises:
        AuthenticationError: The line's claims say that it has expired.
    """
    claims: dict[str, Any] = {}
    kinds: dict[str, Callable[[str], Any]] = {
        "String": str,
        "Number": lambda text: float(text) if "." in text else int(text),
        "List": lambda text: text[1:].split(text[0]),
    }
    for name, value in options.items():
        for kind, parse in kinds.items():
            prefix = f"unsecuredLogin{kind}Claim_"
            if name.startswith(prefix) and value:
                claims[name.removeprefix(prefix)] = parse(value)
    seconds = float(options.get("unsecuredLoginLifetimeSeconds") or _LIFETIME_SECONDS)
    claims = {"iat": now, "exp": now + seconds, **claims}
    text = f"{_encoded({'alg': 'none'})}.{_encoded(claims)}."
    principal = str(claims.get(options.get("unsecuredLoginPrincipalClaimName") or "sub", ""))
    expires = float(claims["exp"])
    if expires <= now:
        raise AuthenticationError(
            "cannot log in: the unsecured token of kafka.sasl.jaas.config is expired since "
            f"{now - expires:.0f} s: leave out its claim exp, or set unsecuredLoginLifetimeSeconds"
        )
    extensions = jaas_extensions(options, "unsecuredLoginExtension_")
    return Token(Secret(text), expires, principal, extensions)


def _encoded(part: Mapping[str, Any]) -> str:
    text = json.dumps(part, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def provided_token(path: str, now: float) -> Token:
    """Call the function for a token.

    Args:
        path: Where the function is: ``package.module:function``.
        now: The time, in seconds since 1970.

    Raises:
        AuthenticationError: The function failed, or what it returned is not a good token; the text
            names the function, and holds nothing of the token.
        OptionsError: The path does not lead to a function.
        OSError: The function raised one: a retry may help.
    """
    try:
        function = find(path, "token provider", ())
    except ValueError as error:
        raise OptionsError([f"oauthTokenProvider: {error}"]) from error
    try:
        returned = function()
    except OSError as error:
        raise OSError(
            f"oauthTokenProvider {path}: {error_text(error) or type(error).__name__}"
        ) from error
    except Exception as error:
        raise _failed(path, f"failed: {shown_error(error)}") from error
    try:
        return _token(returned, now)
    except BadValueError as error:
        hint = f"; {error.right}" if error.right else ""
        raise _failed(path, f"returned {error}{hint}") from None


def _failed(path: str, why: str) -> AuthenticationError:
    return AuthenticationError(f"cannot log in: oauthTokenProvider {path} {why}")


def _token(returned: Any, now: float) -> Token:
    """Return what the function returned as a token; raise ``BadValueError`` if it is not one."""
    if not isinstance(returned, tuple) or not 2 <= len(returned) <= 4:
        length = f" of {len(returned)}" if isinstance(returned, tuple) else ""
        raise BadValueError(f"a {type(returned).__name__}{length}", _WANTED)
    value, expires, *more = returned
    principal = more[0] if more else ""
    extensions = more[1] if len(more) > 1 else None
    if not isinstance(value, str) or not is_sendable(value):
        raise BadValueError("a token that is not a text of ASCII without blanks", _WANTED)
    if not isinstance(principal, str):
        raise BadValueError(f"a principal of type {type(principal).__name__}", _WANTED)
    _check_expiry(expires, now)
    return Token(Secret(value), float(expires), principal, _extensions(extensions))


def _check_expiry(expires: Any, now: float) -> None:
    number = isinstance(expires, int | float) and not isinstance(expires, bool)
    if not number or not math.isfinite(expires):
        raise BadValueError(f"an expiry of type {type(expires).__name__}", _WANTED)
    if expires > now + TEN_YEARS:
        right = "give seconds since 1970, not milliseconds"
        raise BadValueError("an expiry more than ten years ahead", right)
    if expires <= now:
        raise BadValueError(f"a token that expired {now - expires:.0f} s ago")


def _extensions(extensions: Any) -> FrozenMapping[str, str]:
    if not isinstance(extensions, Mapping | None):
        raise BadValueError(f"extensions of type {type(extensions).__name__}", _WANTED)
    for name, text in (extensions or {}).items():
        texts = isinstance(name, str) and isinstance(text, str)
        wrong = extension_fault(name, text) if texts else "that is not a text"
        if wrong is not None:
            raise BadValueError(f"a SASL extension {wrong}: {str(name)[:40]}")
    return FrozenMapping(extensions)
