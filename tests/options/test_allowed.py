"""Lists of what options may have kshare call and ask: whoever gives options cannot change them."""

import sys
from pathlib import Path

import pytest

from kshare.options.allowed import ALLOWED_FUNCTIONS, ALLOWED_TOKEN_URLS
from tests.options.test_security import HANDLER, OAUTH, URL, oauth
from tests.support.options import options, problems

TOKENS = {"kafka.sasl.oauthbearer.client.credentials.client.id": "me"}
TOKENS["kafka.sasl.oauthbearer.client.credentials.client.secret"] = "s"
ENDPOINT, FILE = "https://login.example.org/token", "file:///run/token"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that has been imported only if ``sys.modules`` has it."""
    name = "named_by_options"
    (tmp_path / f"{name}.py").write_text("def function(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


@pytest.mark.parametrize("option", ["rangeAssignor", "taskAssignor", "oauthTokenProvider", HANDLER])
@pytest.mark.parametrize("allowed", ["", "json.dumps", "named_by_option.*", "named_by_options"])
def test_no_function_is_imported_that_the_list_lacks(
    option: str, allowed: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOWED_FUNCTIONS, allowed)
    given = {option: f"{module}:function", "keyRanges": "2"}
    if option in {"oauthTokenProvider", HANDLER}:
        given |= oauth(None)
    (found,) = (each for each in problems(given) if each.startswith(f"{option}: "))
    assert found.startswith(f"{option}: is not allowed here: ")
    assert f" {ALLOWED_FUNCTIONS} " in found
    assert module not in sys.modules


@pytest.mark.parametrize("allowed", ["a.b, named_by_options:function", "named_by_options.*"])
@pytest.mark.parametrize("path", ["named_by_options:function", "named_by_options.function"])
def test_a_function_of_the_list_is_taken(
    allowed: str, path: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert module in path
    monkeypatch.setenv(ALLOWED_FUNCTIONS, allowed)
    assert options({"rangeAssignor": path, "keyRanges": "2"}).range_assignor == path


def test_what_is_built_in_needs_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED_FUNCTIONS, "")
    kafka = "org.apache.kafka.streams.processor.assignment.assignors.StickyTaskAssignor"
    found = options({"rangeAssignor": "lag-weighted", "taskAssignor": kafka, "keyRanges": "2"})
    assert found.range_assignor == "lag-weighted"
    (fault,) = problems({"taskAssignor": "org.apache.kafka.Other"})
    assert "is not allowed here" in fault


@pytest.mark.parametrize("url", [ENDPOINT, FILE])
def test_tokens_come_only_from_a_url_of_the_list(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = oauth(f"{OAUTH} required;", **{URL: url}, **TOKENS)
    options(given)
    monkeypatch.setenv(ALLOWED_TOKEN_URLS, f"{ENDPOINT}, {FILE}")
    options(given)
    for other in ("", f"{url}/more", url[:-1]):
        monkeypatch.setenv(ALLOWED_TOKEN_URLS, other)
        (found,) = problems(given)
        assert found.startswith(f"{URL}: is not allowed here: ")
        assert f" {ALLOWED_TOKEN_URLS} " in found
