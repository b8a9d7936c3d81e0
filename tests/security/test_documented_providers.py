"""The examples of docs/security.md return what kshare takes; the clouds are stand-ins."""

import datetime as dt
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kshare.security.tokens import provided_token
from tests.support.security import claims_of

DOCS = Path(__file__).parents[2] / "docs" / "security.md"
EXPIRES = int(time.time()) + 900


def amazon() -> dict[str, Any]:
    def generate_auth_token(region: str) -> tuple[str, int]:
        return f"signed-for-{region}", EXPIRES * 1000

    signer = SimpleNamespace(generate_auth_token=generate_auth_token)
    return {"aws_msk_iam_sasl_signer": SimpleNamespace(MSKAuthTokenProvider=signer)}


def azure() -> dict[str, Any]:
    def get_token(scope: str) -> Any:
        assert scope.endswith(".servicebus.windows.net/.default")
        return SimpleNamespace(token="abc", expires_on=EXPIRES)

    credential = SimpleNamespace(get_token=get_token)
    identity = SimpleNamespace(DefaultAzureCredential=lambda: credential)
    return {"azure": SimpleNamespace(identity=identity), "azure.identity": identity}


def google() -> dict[str, Any]:
    credentials = SimpleNamespace(valid=False, service_account_email="me@example.org")

    def refresh(request: object) -> None:
        credentials.valid, credentials.token = True, "access"
        utc = dt.datetime.fromtimestamp(EXPIRES, dt.UTC)
        credentials.expiry = utc.replace(tzinfo=None)  # as google-auth has it

    credentials.refresh = refresh
    auth = ModuleType("google.auth")
    auth.default = lambda scopes: (credentials, "project")  # type: ignore[attr-defined]
    requests = SimpleNamespace(Request=object)
    package = SimpleNamespace(auth=auth)
    return {"google": package, "google.auth": auth, "google.auth.transport.requests": requests}


@pytest.mark.parametrize(
    ("heading", "stand_ins"),
    [("Amazon MSK", amazon), ("Azure Event Hubs", azure), ("Google Cloud", google)],
)
def test_an_example_returns_a_token(
    heading: str, stand_ins: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    section = DOCS.read_text().partition(f"### {heading}")[2]
    code = re.search(r"```py\n# kafka_login\.py\n(.*?)```", section, re.DOTALL)
    assert code
    for name, module in stand_ins().items():
        monkeypatch.setitem(sys.modules, name, module)
    written = ModuleType("kafka_login")
    exec(code[1], written.__dict__)
    monkeypatch.setitem(sys.modules, "kafka_login", written)
    token = provided_token("kafka_login:token", time.time())
    assert token.expires == EXPIRES
    if heading.startswith("Google"):
        assert claims_of(token.value.reveal())["sub"] == token.principal == "me@example.org"
