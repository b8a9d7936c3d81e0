"""The logins of docs/security.md: the options are read, and each function returns a token."""

import ast
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kshare.options import KafkaConfig, parse_options
from kshare.security.tokens import jaas_extensions, provided_token
from tests.support.documents import ROOT, Fence, documents

PAGE = (ROOT / "docs/security.md").read_text().splitlines()
HOUR = 3_600


def logins(language: str) -> dict[str, Fence]:
    """The blocks of a language, by the headings above them; options of no broker are left out."""
    (page,) = (document for document in documents() if document.path == "docs/security.md")
    found: dict[str, Fence] = {}
    for fence in page.fences:
        if fence.language != language:
            continue
        above = reversed(PAGE[: fence.line])
        heading = next(line for line in above if line.startswith(("## ", "### ")))
        if heading.startswith("### "):
            number = sum(name.startswith(heading[4:]) for name in found)
            found[f"{heading[4:]}, {number + 1}"] = fence
    return found


def config(chain: str) -> KafkaConfig:
    """The configuration by a chain of ``.option(...)`` says."""
    tree = ast.parse(f"(reader{chain})", mode="eval")
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    options = dict(tuple(map(ast.literal_eval, call.args)) for call in calls)
    return parse_options({**options, "subscribe": "t"}, streaming=False).options.kafka


@pytest.mark.parametrize(
    ("login", "mechanism", "user"),
    [
        ("Amazon MSK with IAM, 1", "OAUTHBEARER", None),
        ("Azure Event Hubs, 1", "PLAIN", "$ConnectionString"),
        ("Confluent Cloud, 1", "PLAIN", "API-KEY"),
        ("Confluent Cloud, 2", "OAUTHBEARER", None),
    ],
)
def test_the_options_are_read(login: str, mechanism: str, user: str | None) -> None:
    kafka = config(logins("python")[login].text)
    assert (kafka.security_protocol, kafka.sasl_mechanism) == ("SASL_SSL", mechanism)
    assert (None if kafka.login is None else kafka.login.options.get("username")) == user


def test_each_login_is_tested() -> None:
    assert set(logins("python")) == {
        "Amazon MSK with IAM, 1",
        "Azure Event Hubs, 1",
        "Confluent Cloud, 1",
        "Confluent Cloud, 2",
    }
    assert set(logins("py")) == set(FAKES)


def test_the_secrets_are_hidden() -> None:
    for fence in logins("python").values():
        kafka = config(fence.text)
        assert "SharedAccessKey=" not in repr(kafka)
        assert "..." not in repr(kafka)


def test_the_token_of_confluent_names_the_cluster_and_the_pool() -> None:
    kafka = config(logins("python")["Confluent Cloud, 2"].text)
    assert kafka.login is not None
    assert dict(jaas_extensions(kafka.login.options)) == {
        "logicalCluster": "lkc-abcde",
        "identityPoolId": "pool-abcde",
    }


# -- functions -------------------------------------------------------------------------------------


class Signer:
    """Of aws-msk-iam-sasl-signer-python: milliseconds."""

    @staticmethod
    def generate_auth_token(region: str) -> tuple[str, int]:
        """A token for an hour."""
        assert region == "eu-central-1"
        return "aws", int(1_000 * (time.time() + HOUR))


class EntraCredential:
    """Of azure-identity: seconds."""

    def get_token(self, scope: str) -> SimpleNamespace:
        """A token for an hour."""
        assert scope == "https://NAMESPACE.servicebus.windows.net/.default"
        return SimpleNamespace(token="azure", expires_on=int(time.time()) + HOUR)


class GoogleCredentials:
    """Of google-auth: a time without a zone, which is UTC; none before the first refresh."""

    service_account_email = "reader@project.iam.gserviceaccount.com"
    valid = False
    token: str | None = None
    expiry: datetime | None = None

    def refresh(self, _: object) -> None:
        """Get a token for an hour."""
        self.valid, self.token = True, "google"
        self.expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)


def google_default(scopes: list[str]) -> tuple[GoogleCredentials, str]:
    """Credentials, and the name of the project."""
    assert scopes == ["https://www.googleapis.com/auth/cloud-platform"]
    return GoogleCredentials(), "project"


FAKES: dict[str, dict[str, dict[str, Any]]] = {
    "Amazon MSK with IAM, 1": {"aws_msk_iam_sasl_signer": {"MSKAuthTokenProvider": Signer}},
    "Azure Event Hubs, 1": {
        "azure": {},
        "azure.identity": {"DefaultAzureCredential": EntraCredential},
    },
    "Google Cloud Managed Service for Apache Kafka, 1": {
        "google": {},
        "google.auth": {"default": google_default},
        "google.auth.transport": {},
        "google.auth.transport.requests": {"Request": object},
    },
}


@pytest.mark.parametrize("login", FAKES)
def test_the_function_returns_a_token(
    login: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As planner and tasks call it: by its dotted name, from a module that is on the path."""
    for name, contents in FAKES[login].items():
        module = ModuleType(name)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, own = name.rpartition(".")
        if parent:
            monkeypatch.setattr(sys.modules[parent], own, module, raising=False)
    (tmp_path / "kafka_login.py").write_text(logins("py")[login].text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "kafka_login", raising=False)
    token = provided_token("kafka_login:token", time.time())
    assert time.time() + HOUR - 60 < token.expires <= time.time() + HOUR
    if login.startswith("Google"):
        assert token.principal == GoogleCredentials.service_account_email
        assert token.value.reveal().count(".") == 2
    monkeypatch.delitem(sys.modules, "kafka_login", raising=False)
