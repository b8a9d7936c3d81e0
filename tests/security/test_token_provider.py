"""Tokens from a Python function: what it may return, and what its errors say."""

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.errors import AuthenticationError, OptionsError
from kshare.options import KafkaConfig, parse_options
from kshare.security.librdkafka import librdkafka_config
from kshare.security.oauth import oauth_token
from kshare.security.sasl import sasl_mechanism
from kshare.security.tokens import provided_token
from tests.support.options import SECRET, SERVERS

NOW = 1_700_000_000.0
LATER = NOW + 60
PATH = "a_provider:function"
Provide = Callable[[Callable[[], Any]], None]


@pytest.fixture
def provide(monkeypatch: pytest.MonkeyPatch) -> Provide:
    """Puts a function where PATH leads to."""

    def put(function: Callable[[], Any]) -> None:
        monkeypatch.setitem(sys.modules, "a_provider", SimpleNamespace(function=function))

    return put


def login_by(path: str) -> KafkaConfig:
    login = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"}
    given_ = {**SERVERS, "subscribe": "t", **login, "oauthTokenProvider": path}
    return parse_options(given_, streaming=True).options.kafka


class Counter:
    """Returns tokens that are good for 100 s, from a clock that the test sets."""

    def __init__(self) -> None:
        self.now = NOW
        self.calls = 0
        self.error: Exception | None = None

    def __call__(self) -> tuple[str, float]:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return f"{SECRET}-{self.calls}", self.now + 100

    def clock(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("returned", "principal", "extensions"),
    [
        ((SECRET, LATER), "", {}),
        ((SECRET, int(LATER), "me"), "me", {}),
        ((SECRET, LATER, "me", {"logicalCluster": "lkc-1"}), "me", {"logicalCluster": "lkc-1"}),
        ((SECRET, LATER, "", None), "", {}),
    ],
)
def test_a_token_with_what_belongs_to_it(
    provide: Provide, returned: Any, principal: str, extensions: dict[str, str]
) -> None:
    provide(lambda: returned)
    token = provided_token(PATH, NOW)
    assert (token.value.reveal(), token.expires) == (SECRET, LATER)
    assert (token.principal, dict(token.extensions)) == (principal, extensions)
    assert SECRET not in repr(token)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (None, "returned a NoneType; return (token, seconds since 1970), and optionally"),
        (SECRET, "returned a str; return (token, seconds since 1970)"),
        ((SECRET,), "returned a tuple of 1; return (token"),
        ((SECRET, LATER, "", {}, 1), "returned a tuple of 5; return (token"),
        ((SECRET.encode(), LATER), "returned a token that is not a text of ASCII without blanks"),
        (("", LATER), "returned a token that is not a text of ASCII without blanks"),
        ((f"{SECRET} {SECRET}", LATER), "returned a token that is not a text of ASCII without"),
        ((f"{SECRET}\n", LATER), "returned a token that is not a text of ASCII without blanks"),
        ((f"{SECRET}é", LATER), "returned a token that is not a text of ASCII without blanks"),
        ((SECRET, "soon"), "returned an expiry of type str"),
        ((SECRET, True), "returned an expiry of type bool"),
        ((SECRET, float("nan")), "returned an expiry of type float"),
        (
            (SECRET, LATER * 1000),
            "returned an expiry more than ten years ahead; give seconds since 1970, not millis",
        ),
        ((SECRET, NOW - 5), "returned a token that expired 5 s ago"),
        ((SECRET, NOW), "returned a token that expired 0 s ago"),
        ((SECRET, LATER, 7), "returned a principal of type int"),
        ((SECRET, LATER, "", ["a"]), "returned extensions of type list"),
        ((SECRET, LATER, "", {"a": 1}), "returned a SASL extension that is not a text: a"),
        ((SECRET, LATER, "", {1: "a"}), "returned a SASL extension that is not a text: 1"),
        ((SECRET, LATER, "", {"auth": "a"}), "returned a SASL extension whose name is not of l"),
        ((SECRET, LATER, "", {"a": "\1"}), "returned a SASL extension that cannot be sent: a"),
    ],
)
def test_what_is_no_token_is_refused(provide: Provide, returned: Any, says: str) -> None:
    provide(lambda: returned)
    with pytest.raises(AuthenticationError) as caught:
        provided_token(PATH, NOW)
    assert str(caught.value).startswith(f"cannot log in: oauthTokenProvider {PATH} {says}")
    assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r}"


@given(st.one_of(st.none(), st.text(), st.tuples(st.text(), st.floats()), st.tuples(st.text())))
def test_anything_is_a_token_or_an_error(returned: Any) -> None:
    sys.modules["a_provider"] = SimpleNamespace(function=lambda: returned)  # type: ignore[assignment]
    try:
        token = provided_token(PATH, NOW)
    except AuthenticationError as error:
        assert PATH in str(error)  # noqa: PT017 - either is right
    else:
        assert (token.value.reveal(), token.expires) == returned
    finally:
        del sys.modules["a_provider"]


def test_an_error_names_the_function(provide: Provide) -> None:
    def failing() -> None:
        raise LookupError("no credentials found")

    provide(failing)
    with pytest.raises(AuthenticationError) as caught:
        provided_token(PATH, NOW)
    assert str(caught.value) == (
        f"cannot log in: oauthTokenProvider {PATH} failed: LookupError: no credentials found"
    )
    assert isinstance(caught.value.__cause__, LookupError)


def test_what_may_pass_stays_what_may_pass(provide: Provide) -> None:
    def unreachable() -> None:
        raise TimeoutError

    provide(unreachable)
    with pytest.raises(OSError, match=f"^oauthTokenProvider {PATH}: TimeoutError$"):
        provided_token(PATH, NOW)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("no_such_module:f", "module no_such_module cannot be imported: ModuleNotFoundError"),
        ("json:no_such", "module json has no no_such"),
        ("json:decoder", "decoder in module json cannot be called"),
    ],
)
def test_a_path_that_leads_nowhere_is_a_fault_of_the_options(path: str, says: str) -> None:
    kafka = login_by(path)
    for log_in in (oauth_token, sasl_mechanism, librdkafka_config):
        with pytest.raises(OptionsError) as caught:
            log_in(kafka)
        (found,) = caught.value.problems
        assert found.startswith(f"oauthTokenProvider: no token provider {path!r}: {says}")
        assert "built in" not in found


def test_both_clients_get_the_token_and_what_belongs_to_it(provide: Provide) -> None:
    expires = time.time() + 100
    provide(lambda: ("abc", expires, "me", {"a": "b"}))
    kafka = login_by(f"{PATH}.__call__")  # a path of its own: tokens are kept by path
    sent = sasl_mechanism(kafka).auth_bytes()
    assert sent == b"n,,\x01auth=Bearer abc\x01a=b\x01\x01"
    assert librdkafka_config(kafka)["oauth_cb"]("") == ("abc", expires, "me", {"a": "b"})


def test_a_token_is_refreshed_before_it_expires(
    provide: Provide, caplog: pytest.LogCaptureFixture
) -> None:
    counter = Counter()
    provide(counter)
    kafka = login_by(f"{PATH}.clock.__self__")
    first = oauth_token(kafka, clock=counter.clock)
    counter.now = NOW + 79
    assert oauth_token(kafka, clock=counter.clock) is first
    counter.now = NOW + 81
    second = oauth_token(kafka, clock=counter.clock)
    assert second.value.reveal() == f"{SECRET}-2"
    counter.error = LookupError("away")
    counter.now = second.expires - 1
    assert oauth_token(kafka, clock=counter.clock) is second
    assert "the old one lasts 1 s: cannot log in: oauthTokenProvider" in caplog.text
    counter.now = second.expires
    with pytest.raises(AuthenticationError, match="LookupError: away"):
        oauth_token(kafka, clock=counter.clock)
    assert counter.calls == 4
    assert SECRET not in caplog.text
