"""Token providers, as users write them: functions that kshare calls in each of its processes.

Each call is noted in the file that ``KSHARE_TEST_TOKENS`` names.
"""

import base64
import json
import os
import time
from pathlib import Path

# A broker refuses to log in again within a second. A token is used until a fifth of its life is
# left, which a busy machine must not spend between that look and the broker's.
LIFETIME_S = 12.0
CALLS = "KSHARE_TEST_TOKENS"


def reader() -> tuple[str, float]:
    """A token for an hour, of a user that the broker knows."""
    return _token("reader", 3600)


def short_lived() -> tuple[str, float, str, dict[str, str]]:
    """The same for a few seconds, with a principal and an extension."""
    return *_token("reader", LIFETIME_S), "reader", {"traceId": "seven"}


def nobody() -> tuple[str, float]:
    """A token that the broker refuses: it has no subject."""
    return _token(None, 3600)


def failing() -> tuple[str, float]:
    """Find no credentials."""
    raise LookupError("found no credentials on this machine")


def _token(subject: str | None, lifetime: float) -> tuple[str, float]:
    if CALLS in os.environ:
        with Path(os.environ[CALLS]).open("a") as file:
            file.write(f"{os.getpid()}\n")
    now = time.time()
    claims = {"iat": now, "exp": now + lifetime, **({"sub": subject} if subject else {})}
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
    encoded = [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts]
    return f"{encoded[0]}.{encoded[1]}.", now + lifetime
