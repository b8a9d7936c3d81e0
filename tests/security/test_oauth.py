"""Tokens: unsecured ones, those in a file, and those of an endpoint in this process."""

import base64
import http.client
import json
import pickle
import socket
import ssl
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kshare.errors import AuthenticationError, OptionsError
from kshare.security.librdkafka import librdkafka_config
from kshare.security.oauth import oauth_token
from kshare.security.sasl import sasl_mechanism
from tests.support.certificates import Pair
from tests.support.options import SECRET
from tests.support.security import (
    Endpoint,
    bearer,
    claims_of,
    credentials,
    granted,
    jwt,
    listening,
    tls_server,
)


def test_an_unsecured_token_says_what_the_line_says() -> None:
    line = (
        'unsecuredLoginStringClaim_sub="me" unsecuredLoginNumberClaim_n="5" '
        'unsecuredLoginListClaim_scope="|a|b" unsecuredLoginLifetimeSeconds="60" '
        'unsecuredLoginExtension_traceId="7"'
    )
    before = time.time()
    token = oauth_token(bearer(line))
    claims = claims_of(token.value.reveal())
    assert token.value.reveal().endswith(".")
    assert {name: claims[name] for name in ("sub", "n", "scope")} == {
        "sub": "me",
        "n": 5,
        "scope": ["a", "b"],
    }
    assert before <= claims["iat"] <= time.time()
    assert claims["exp"] == claims["iat"] + 60 == token.expires
    assert token.principal == "me"
    assert dict(token.extensions) == {"traceId": "7"}


@pytest.mark.parametrize(
    ("line", "since"),
    [
        ('unsecuredLoginNumberClaim_exp="{past}"', 5),
        ('unsecuredLoginNumberClaim_exp="{past}" unsecuredLoginLifetimeSeconds="60"', 5),
        ('unsecuredLoginLifetimeSeconds="-5"', 5),
        ('unsecuredLoginLifetimeSeconds="0"', 0),
    ],
)
def test_an_unsecured_token_that_is_expired_is_refused(
    line: str, since: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_700_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)  # that of every caller
    kafka = bearer(f'unsecuredLoginStringClaim_sub="{SECRET}" {line.format(past=int(now) - 5)}')
    with pytest.raises(AuthenticationError, match=f"is expired since {since} s") as caught:
        oauth_token(kafka, clock=lambda: now)
    assert "kafka.sasl.jaas.config" in str(caught.value)
    assert SECRET not in str(caught.value)
    with pytest.raises(AuthenticationError, match="expired"):
        sasl_mechanism(kafka)
    with pytest.raises(AuthenticationError, match="expired"):
        librdkafka_config(kafka)


def test_a_token_is_sent_as_rfc_7628_has_it() -> None:
    line = 'unsecuredLoginStringClaim_sub="me" unsecuredLoginExtension_a="b"'
    mechanism = sasl_mechanism(bearer(line))
    sent = mechanism.auth_bytes()
    assert sent.startswith(b"n,,\x01auth=Bearer ey")
    assert sent.endswith(b".\x01a=b\x01\x01")
    mechanism.receive(b'{"status":"invalid_token"}')
    assert mechanism.auth_bytes() == b"\x01"
    assert not mechanism.is_done()


def test_a_token_in_a_file_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "a token"
    kafka = bearer(
        'extension_a="b"',
        sasl__oauthbearer__token__endpoint__url=path.as_uri(),
    )
    for name in ("first", "second"):
        path.write_text(f"{jwt(sub=name, exp=time.time() + 60)}\n")
        token = oauth_token(kafka)
        assert claims_of(token.value.reveal())["sub"] == token.principal == name
        assert dict(token.extensions) == {"a": "b"}
    path.write_text(jwt(sub="late", exp=time.time() - 5))
    with pytest.raises(AuthenticationError, match="is expired since 5 s"):
        oauth_token(kafka)
    for text in ("", "two words", "ü"):
        path.write_text(text)
        with pytest.raises(OptionsError, match=r"token\.endpoint\.url: the file"):
            oauth_token(kafka)
    path.unlink()
    with pytest.raises(OptionsError, match="No such file"):
        oauth_token(kafka)


def test_client_credentials_are_asked_with_once() -> None:
    with Endpoint(granted()) as endpoint:
        kafka = credentials(endpoint.url, 'extension_a="b"', sasl__oauthbearer__scope="r w")
        first = oauth_token(kafka)
        again = oauth_token(pickle.loads(pickle.dumps(kafka)))
        assert oauth_token(replace(kafka, client_id="other")) is first
    assert first is again
    assert (first.principal, dict(first.extensions)) == ("me", {"a": "b"})
    ((path, headers, body),) = endpoint.asked
    assert path == "/token?tenant=1"
    assert body == "grant_type=client_credentials&scope=r+w"
    pair = base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode()
    assert pair == f"the id:{SECRET}"
    assert headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert headers["Accept"] == "application/json"


def test_credentials_in_the_line_and_urlencoded() -> None:
    with Endpoint(granted()) as endpoint:
        kafka = bearer(
            'clientId="a:b" clientSecret="c d+" scope="s"',
            sasl__oauthbearer__token__endpoint__url=endpoint.url,
            sasl__oauthbearer__header__urlencode="true",
        )
        oauth_token(kafka)
    ((_, headers, body),) = endpoint.asked
    assert base64.b64decode(headers["Authorization"][6:]) == b"a%3Ab:c+d%2B"
    assert body == "grant_type=client_credentials&scope=s"


def test_a_token_is_fetched_again_before_it_expires() -> None:
    now = time.time()
    with Endpoint(granted(exp=now + 100), granted(exp=now + 200)) as endpoint:
        kafka = credentials(endpoint.url)
        first = oauth_token(kafka, clock=lambda: now)
        assert oauth_token(kafka, clock=lambda: now + 79) is first
        assert oauth_token(kafka, clock=lambda: now + 81) is not first
    assert len(endpoint.asked) == 2


def test_an_old_token_is_used_while_there_is_no_new_one(caplog: pytest.LogCaptureFixture) -> None:
    now = time.time()
    with Endpoint(granted(exp=now + 100), (401, SECRET), granted(exp=now + 300)) as endpoint:
        kafka = credentials(endpoint.url)
        first = oauth_token(kafka, clock=lambda: now)
        assert oauth_token(kafka, clock=lambda: now + 90) is first
        assert oauth_token(kafka, clock=lambda: now + 90.5) is first  # not asked each time
        assert len(endpoint.asked) == 2
        assert oauth_token(kafka, clock=lambda: now + 91.5) is not first
    (record,) = caplog.records
    assert "OAuth token not refreshed, the old one lasts 10 s: the token endpoint" in record.message
    assert SECRET not in record.message


def test_an_expired_token_is_not_used_again() -> None:
    now = time.time()
    with Endpoint(granted(exp=now + 100), (401, "")) as endpoint:
        kafka = credentials(endpoint.url)
        oauth_token(kafka, clock=lambda: now)
        with pytest.raises(AuthenticationError, match="HTTP status 401"):
            oauth_token(kafka, clock=lambda: now + 100)


def test_what_may_pass_is_tried_again() -> None:
    with Endpoint((503, "busy"), (500, ""), granted()) as endpoint:
        patient = credentials(endpoint.url, sasl__login__retry__backoff__max__ms="60000")
        assert oauth_token(patient).principal == "me"
    assert len(endpoint.asked) == 3


def test_what_does_not_pass_in_time_is_an_error_to_retry() -> None:
    with (
        Endpoint((503, SECRET)) as endpoint,
        pytest.raises(OSError, match=r"/token: HTTP status 503") as caught,
    ):
        oauth_token(credentials(endpoint.url, sasl__login__retry__backoff__max__ms="1500"))
    assert not isinstance(caught.value, AuthenticationError)
    assert SECRET not in str(caught.value)
    assert len(endpoint.asked) > 2
    with pytest.raises(OSError, match="refused"):
        oauth_token(credentials(endpoint.url))


def opaque(expires_in: str) -> str:
    """The answer with a token that says nothing of itself."""
    return f'{{"access_token": "a", "expires_in": {expires_in}}}'


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((401, json.dumps({"error": "invalid_client"})), "HTTP status 401 (invalid_client: the c"),
        ((401, "<html>"), "HTTP status 401 (the client's id or secret is wrong)"),
        ((400, json.dumps({"error": "invalid_scope"})), "(invalid_scope: kafka.sasl.oauthbearer.s"),
        ((400, json.dumps({"error": "unauthorized_client"})), "(unauthorized_client: the client m"),
        ((400, json.dumps({"error": SECRET})), "HTTP status 400"),
        ((400, json.dumps([SECRET])), "HTTP status 400"),
        ((404, ""), "HTTP status 404"),
        ((200, SECRET), "its answer is no JSON"),
        ((200, "[]"), "its answer holds no access_token"),
        ((200, json.dumps({"access_token": 5})), "its answer holds no access_token"),
        ((200, json.dumps({"access_token": "a\nb"})), "its answer holds no access_token"),
        ((200, json.dumps({"access_token": "x" * (1 << 20)})), "is longer than 1 MiB"),
        ((200, "[" * 100_000), "its answer is no JSON"),
        ((401, '{"error":' + "[" * 100_000), "HTTP status 401 (the client's id or"),
        ((200, opaque("1" + "0" * 400)), "its token would be good for more than ten years"),
        ((200, opaque("1" + "0" * 5000)), "its answer is no JSON"),
        ((200, opaque("-1" + "0" * 400)), "is expired already"),
        ((200, opaque("NaN")), "its answer is no JSON"),
        ((200, opaque("1e999")), "its answer is no JSON"),
        ((200, json.dumps({"access_token": jwt(exp=5)})), "is expired already"),
    ],
)
def test_what_an_endpoint_refuses_is_not_asked_again(answer: tuple[int, str], says: str) -> None:
    with (
        Endpoint(answer) as endpoint,
        pytest.raises(AuthenticationError) as caught,
    ):
        oauth_token(credentials(endpoint.url))
    assert says in str(caught.value)
    assert "tenant" not in str(caught.value)
    assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r}"
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize("status", [302, 307])
def test_credentials_do_not_follow_a_redirect(status: int) -> None:
    with (
        Endpoint(granted()) as other,
        Endpoint((status, other.url)) as endpoint,
        pytest.raises(AuthenticationError, match=f"HTTP status {status}"),
    ):
        oauth_token(credentials(endpoint.url))
    assert other.asked == []


@pytest.mark.parametrize(
    "claims",
    [
        "[" * 100_000,
        '{"exp": 1%s}' % ("0" * 400),
        '{"exp": NaN}',
        '{"exp": 1e999}',
        '{"exp": true}',
    ],
)
def test_claims_that_cannot_be_read_say_nothing(claims: str) -> None:
    """The token is the broker's matter; how long it is used is what the answer says."""
    part = base64.urlsafe_b64encode(claims.encode()).decode().rstrip("=")
    answer = json.dumps({"access_token": f"a.{part}.c", "expires_in": 50})
    before = time.time()
    with Endpoint((200, answer)) as endpoint:
        token = oauth_token(credentials(endpoint.url))
    assert before + 50 <= token.expires <= time.time() + 50


def test_a_token_that_is_no_jwt_lives_as_long_as_the_answer_says() -> None:
    answer = json.dumps({"access_token": "opaque", "expires_in": 50})
    with Endpoint((200, answer)) as endpoint:
        token = oauth_token(credentials(endpoint.url))
    assert token.value.reveal() == "opaque"
    assert time.time() + 40 < token.expires <= time.time() + 50
    assert repr(token).startswith("Token(value=<hidden>, ")


def test_connecting_and_reading_have_limits_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    send, seen = http.client.HTTPConnection.request, []

    def sent(self: http.client.HTTPConnection, *args: Any) -> None:
        seen.append((self.timeout, self.sock.gettimeout()))
        send(self, *args)

    monkeypatch.setattr(http.client.HTTPConnection, "request", sent)
    given = {"sasl__login__connect__timeout__ms": "7000", "sasl__login__read__timeout__ms": "9000"}
    with Endpoint(granted()) as endpoint:
        for more in (given, {"default__api__timeout__ms": "5000"}, {}):
            oauth_token(credentials(endpoint.url, **more))
    assert seen == [(7, 9), (5, 5), (10, 10)]


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"])
def test_an_answer_that_comes_in_drops_has_a_limit_as_a_whole(first: bytes) -> None:
    def drip(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(first)
        for _ in range(200):
            connection.sendall(b" ")
            time.sleep(0.03)

    hasty = {"sasl__login__read__timeout__ms": "200", "sasl__login__retry__backoff__max__ms": "0"}
    with (
        listening(drip) as port,
        pytest.raises(OSError, match=r"within sasl\.login\.read\.timeout"),
    ):
        oauth_token(credentials(f"http://127.0.0.1:{port}/", **hasty))


def test_an_endpoint_is_believed_by_its_certificate(
    server_pair: Pair, authority: Pair, tmp_path: Path
) -> None:
    path = tmp_path / "ca.pem"
    path.write_text(authority.pem)
    _, text = granted()

    def answer(secured: ssl.SSLSocket) -> None:
        while not secured.recv(65536).endswith(b"client_credentials"):
            pass
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        secured.sendall(head.encode() + text.encode())

    trusted = f'ssl.truststore.location="{path}" ssl.truststore.type="PEM"'
    with listening(tls_server(server_pair, tmp_path, then=answer)) as port:
        url = f"https://localhost:{port}/token"
        assert oauth_token(credentials(url, trusted)).principal == "me"
        with pytest.raises(AuthenticationError, match="its certificate was not accepted"):
            oauth_token(credentials(url))
