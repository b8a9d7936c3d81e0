"""SASL: PLAIN and SCRAM, against the other side of their RFCs and a broker that only logs in."""

import base64
import hashlib
import hmac
import math
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from kshare.errors import AuthenticationError
from kshare.kafka.protocol import connection as connection_module
from kshare.kafka.protocol import frames
from kshare.kafka.protocol.broker_pool import BrokerPool, PoolMemory
from kshare.kafka.protocol.connection import Connection
from kshare.security.sasl import sasl_mechanism
from tests.support.clock import Clock
from tests.support.options import SECRET
from tests.support.security import config, listening, login


def test_no_mechanism_without_sasl() -> None:
    assert sasl_mechanism(config()) is None


@pytest.mark.parametrize("password", [SECRET, 'p=,\\" ü'])
def test_plain_is_that_of_rfc_4616(password: str) -> None:
    mechanism = sasl_mechanism(login("PLAIN", "ä,b=", password))
    _, user, sent = mechanism.auth_bytes().split(b"\0")
    assert (user.decode(), sent.decode()) == ("ä,b=", password)
    mechanism.receive(b"")
    assert mechanism.is_done()


class ScramServer:
    """The other side of RFC 5802."""

    def __init__(self, mechanism: str, user: str, password: str) -> None:
        self._hash = mechanism.removeprefix("SCRAM-").lower().replace("-", "")
        self._user = user
        self._salt = b"salt"
        self._salted = hashlib.pbkdf2_hmac(self._hash, password.encode(), self._salt, 4096)

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)

    def first(self, message: bytes) -> bytes:
        header, _, self._bare = message.partition(b"n,,")
        assert header == b""
        user, nonce = self._bare.decode().split(",")
        assert user == f"n={self._user}"
        self._nonce = f"{nonce[2:]}server"
        salt = base64.b64encode(self._salt).decode()
        self._answer = f"r={self._nonce},s={salt},i=4096".encode()
        return self._answer

    def final(self, message: bytes) -> bytes | None:
        """The proof of the server, if the client's is right."""
        without, _, proof = message.rpartition(b",p=")
        assert without.decode() == f"c=biws,r={self._nonce}"
        signed = b",".join((self._bare, self._answer, without))
        key = self._hmac(self._salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._hash, key).digest(), signed)
        if bytes(a ^ b for a, b in zip(key, signature, strict=True)) != base64.b64decode(proof):
            return None
        server = self._hmac(self._hmac(self._salted, b"Server Key"), signed)
        return b"v=" + base64.b64encode(server)


@pytest.mark.parametrize("name", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize(("user", "sent"), [("u", "u"), ("a=b,c", "a=3Db=2Cc"), ("ü", "ü")])
def test_scram_is_that_of_rfc_5802(name: str, user: str, sent: str) -> None:
    server = ScramServer(name, sent, SECRET)
    mechanism = sasl_mechanism(login(name, user))
    mechanism.receive(server.first(mechanism.auth_bytes()))
    proof = server.final(mechanism.auth_bytes())
    assert proof is not None
    mechanism.receive(proof)
    assert mechanism.is_done()
    other = ScramServer(name, sent, "other")
    mechanism = sasl_mechanism(login(name, user))
    mechanism.receive(other.first(mechanism.auth_bytes()))
    assert other.final(mechanism.auth_bytes()) is None
    with pytest.raises(ValueError, match="signature"):
        mechanism.receive(b"v=" + base64.b64encode(b"wrong"))


def sasl_broker(
    mechanisms: list[str],
    answer: Callable[[bytes], tuple[int, str | None, bytes]],
    *,
    lifetime_ms: int = 0,
) -> Callable[[socket.socket], None]:
    """A broker that knows nothing but a login, which it may limit in time."""
    from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

    def read(connection: socket.socket, count: int) -> bytes:
        got = b""
        while len(got) < count:
            part = connection.recv(count - len(got))
            if not part:
                raise OSError("closed")
            got += part
        return got

    def serve(connection: socket.socket) -> None:
        while True:
            (size,) = struct.unpack(">i", read(connection, 4))
            frame = read(connection, size)
            key, version, correlation, client_id = struct.unpack_from(">hhih", frame)
            body = frame[10 + client_id :]
            response: Any
            if key == ApiVersionsRequest.API_KEY:
                kinds = (ApiVersionsRequest, SaslHandshakeRequest, SaslAuthenticateRequest)
                keys = [
                    ApiVersionsResponse.ApiVersion(api_key=k.API_KEY, min_version=0, max_version=1)
                    for k in kinds
                ]
                response = ApiVersionsResponse(version=version, error_code=0, api_keys=keys)
            elif key == SaslHandshakeRequest.API_KEY:
                (length,) = struct.unpack_from(">h", body)
                known = body[2 : 2 + length].decode() in mechanisms
                response = SaslHandshakeResponse(
                    version=version, error_code=0 if known else 33, mechanisms=mechanisms
                )
            else:
                code, message, reply = answer(body[4:])
                response = SaslAuthenticateResponse(
                    version=version,
                    error_code=code,
                    error_message=message,
                    auth_bytes=reply,
                    session_lifetime_ms=lifetime_ms,
                )
            encoded = response.encode()
            connection.sendall(struct.pack(">ii", len(encoded) + 4, correlation) + encoded)

    return serve


def test_a_login_that_succeeds_and_one_that_does_not() -> None:
    def answer(sent: bytes) -> tuple[int, str | None, bytes]:
        good = sent.split(b"\0")[1:] == [b"u", SECRET.encode()]
        return (0, None, b"") if good else (58, "Authentication failed: Invalid username", b"")

    with listening(sasl_broker(["PLAIN"], answer)) as port:
        Connection("127.0.0.1", port, login("PLAIN")).close()
        with pytest.raises(AuthenticationError) as caught:
            Connection("127.0.0.1", port, login("PLAIN", password=SECRET + "x"))
        assert f"127.0.0.1:{port} refused SASL PLAIN: Authentication failed" in str(caught.value)
        assert SECRET not in str(caught.value)
        with pytest.raises(AuthenticationError, match="it offers: PLAIN"):
            Connection("127.0.0.1", port, login("SCRAM-SHA-256"))


@pytest.mark.parametrize(
    ("lifetime_ms", "good_seconds"),
    [(0, math.inf), (1_000, 0.9), (60_000, 54), (999, math.inf), (2**63 - 1, 1e14)],
)
def test_a_connection_is_replaced_before_its_login_expires(
    monkeypatch: pytest.MonkeyPatch, lifetime_ms: int, good_seconds: float
) -> None:
    """A broker closes it at the first request after that (KIP-368)."""
    clock = Clock()
    monkeypatch.setattr(connection_module, "time", clock)
    monkeypatch.setattr(frames, "time", clock)
    broker = sasl_broker(["PLAIN"], lambda _: (0, None, b""), lifetime_ms=lifetime_ms)
    pool_clock, memory = Clock(), PoolMemory()
    with listening(broker) as port:
        pool = BrokerPool(login("PLAIN"), memory=lambda: memory, clock=pool_clock)
        address = ("127.0.0.1", port)
        connection = pool.lease(address)
        for seconds in (0.0, min(good_seconds, 1e9) - 0.01):
            clock.now += seconds
            assert (connection.idle, connection.is_expiring) == (True, False)
            pool.release(address, connection)
            assert pool.lease(address) is connection
        clock.now += 0.02
        is_over = good_seconds < 1e9
        assert (connection.idle, connection.is_expiring) == (not is_over, is_over)
        pool.release(address, connection)
        assert (connection.fileno() < 0) == is_over
        memory.close_idle()


def test_a_broker_that_does_not_know_the_password_either() -> None:
    server = ScramServer("SCRAM-SHA-256", "u", "other")

    def answer(sent: bytes) -> tuple[int, str | None, bytes]:
        if sent.startswith(b"n,,"):
            return 0, None, server.first(sent)
        return 0, None, b"v=" + base64.b64encode(b"pretended")

    with (
        listening(sasl_broker(["SCRAM-SHA-256"], answer)) as port,
        pytest.raises(AuthenticationError, match="does not prove that it knows"),
    ):
        Connection("127.0.0.1", port, login("SCRAM-SHA-256"))
