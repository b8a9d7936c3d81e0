"""Tokens from a Python function of the user's: ``oauthTokenProvider=package.module:function``.

The function takes no arguments. It returns ``(token, expires)``, ``(token, expires, principal)`` or
``(token, expires, principal, extensions)``: a text, seconds since 1970, a text, a dict of texts.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from kshare.core.dotted_path import find
from kshare.errors import AuthenticationError, OptionsError
from kshare.options.frozen import FrozenMapping, Secret
from kshare.options.kinds import BadValueError
from kshare.options.security import extension_fault
from kshare.security.tokens import Token, is_sendable

__all__ = ["provided_token"]

_TEN_YEARS: Final = 10 * 365 * 86_400
_WANTED: Final = "return (token, seconds since 1970), and optionally principal and extensions"


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
        raise OSError(f"oauthTokenProvider {path}: {str(error) or type(error).__name__}") from error
    except Exception as error:
        raise _failed(path, f"failed: {type(error).__name__}: {error}") from error
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
    if expires > now + _TEN_YEARS:
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
