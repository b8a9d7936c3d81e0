"""The socket of a connection: its buffers."""

import os
import resource
import socket
import ssl
import struct
import weakref
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import pytest
from kafka.protocol.consumer import HeartbeatRequest, HeartbeatResponse

from kshare.kafka.protocol import connection as connection_module
from kshare.kafka.protocol import frames
from kshare.kafka.protocol.connection import Connection
from kshare.options import parse_options
from kshare.testing import FakeCluster
from tests.support.clock import Clock

BODIES = ((7, b"one answer"), (8, b"another one"))


def buffers_set(monkeypatch: pytest.MonkeyPatch, **given: str) -> dict[int, int]:
    """What a connection sets of the sizes of its buffers, by the socket's option."""
    found: dict[int, int] = {}
    true = socket.socket.setsockopt

    def setsockopt(self: socket.socket, level: int, option: int, value: Any) -> None:
        if level == socket.SOL_SOCKET and option in {socket.SO_SNDBUF, socket.SO_RCVBUF}:
            assert option not in found
            found[option] = value
        true(self, level, option, value)

    with FakeCluster() as cluster:
        named = {f"kafka.{name.replace('__', '.')}": text for name, text in given.items()}
        named |= {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "t"}
        kafka = parse_options(named, streaming=True).options.kafka
        host, port = cluster.bootstrap_servers.split(",")[0].split(":")
        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "setsockopt", setsockopt)
            Connection(host, int(port), kafka).close()
    return found


def test_buffers_are_as_large_as_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = buffers_set(monkeypatch, send__buffer__bytes="70000", receive__buffer__bytes="80000")
    assert found == {socket.SO_SNDBUF: 70_000, socket.SO_RCVBUF: 80_000}


def test_any_time_for_connecting_may_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = {"socket__connection__setup__timeout__ms": str(2**63 - 1)}
    assert buffers_set(monkeypatch, **longest) == buffers_set(monkeypatch)


def test_by_default_the_one_to_send_is_as_in_javas_client(monkeypatch: pytest.MonkeyPatch) -> None:
    assert buffers_set(monkeypatch) == {socket.SO_SNDBUF: 128 << 10, socket.SO_RCVBUF: 4 << 20}


def test_minus_one_leaves_them_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    assert buffers_set(monkeypatch, send__buffer__bytes="-1", receive__buffer__bytes="-1") == {}


def test_a_process_may_have_more_than_a_thousand_descriptors() -> None:
    """``select()`` refuses those above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_048), hard))
    with FakeCluster() as cluster, ExitStack() as stack:
        named = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "t"}
        kafka = parse_options(named, streaming=True).options.kafka
        host, port = cluster.bootstrap_servers.split(",")[0].split(":")
        for _ in range(1_024):
            stack.enter_context(Path(os.devnull).open())
        connection = stack.enter_context(closing(Connection(host, int(port), kafka)))
        assert connection.fileno() > 1_023
        assert connection.idle


def connected(stack: ExitStack) -> tuple[Connection, socket.socket]:
    """A connection, and the socket of its broker, which says nothing."""
    with FakeCluster() as cluster:
        named = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "t"}
        kafka = parse_options(named, streaming=True).options.kafka
        host, port = cluster.bootstrap_servers.split(",")[0].split(":")
        connection = stack.enter_context(closing(Connection(host, int(port), kafka)))
        connection._socket.close()
    connection._socket, broker = map(stack.enter_context, socket.socketpair())
    return connection, broker


def test_half_a_response_is_not_waited_for() -> None:
    with ExitStack() as stack:
        connection, broker = connected(stack)
        frames = [struct.pack(">ii", 4 + len(body), number) + body for number, body in BODIES]
        connection._in_flight.extend(number for number, _ in BODIES)
        for frame, (_, body) in zip(frames, BODIES, strict=True):
            for part in (frame[:2], frame[2:9], frame[9:]):
                assert connection.receive_ready() is None
                broker.sendall(part)
            assert bytes(connection.receive_ready() or b"") == body
        broker.close()
        connection._in_flight.append(9)
        with pytest.raises(ConnectionResetError):
            connection.receive_ready()


@pytest.mark.parametrize(("size", "is_kept"), [(60_000, True), (90_000, False)])
def test_a_large_buffer_is_given_up_between_two_responses(size: int, is_kept: bool) -> None:
    with ExitStack() as stack:
        connection, broker = connected(stack)
        connection._in_flight.extend([7, 8])
        for number in (7, 8):
            frame = struct.pack(">ii", 4 + size, number) + bytes([number]) * size
            broker.sendall(frame[:-1])
            while connection.receive_ready() is None and connection._frames._room.nbytes > 1:
                connection.free_buffer()  # amid a response: nothing of it is lost
            broker.sendall(frame[-1:])
            body = connection.receive()
            buffer = weakref.ref(connection._frames._buffer)
            connection.free_buffer()
            assert bytes(body) == bytes([number]) * size
            del body
            assert (buffer() is not None) == is_kept


@pytest.mark.parametrize("wants", [ssl.SSLWantReadError, ssl.SSLWantWriteError])
def test_what_tls_has_to_say_by_itself_ends_no_connection(wants: type[Exception]) -> None:
    class Socket:
        def settimeout(self, _: float) -> None: ...

        def recv_into(self, _: object) -> int:
            raise wants

    with ExitStack() as stack:
        connection, _ = connected(stack)
        connection._in_flight.append(7)
        plain, connection._socket = connection._socket, cast("socket.socket", Socket())
        assert connection.receive_ready() is None
        connection._socket = plain
        assert connection.fileno() >= 0


def test_a_request_for_which_there_is_no_room_is_sent_in_parts_and_not_waited_for() -> None:
    with ExitStack() as stack:
        connection, broker = connected(stack)
        broker.setblocking(False)
        frame = connection.frame(HeartbeatRequest(version=0, group_id="g" * 30_000))
        large, got = memoryview(bytes(frame) * 100), b""
        rest = connection.send_ready(large)
        assert 0 < len(rest) < len(large)
        assert connection.send_ready(rest) == rest
        while len(got) < len(large):
            got += broker.recv(1 << 20)
            rest = connection.send_ready(rest)
        assert not rest
        assert got == large
        broker.close()
        with pytest.raises(ConnectionError):
            connection.send_ready(large)
        assert connection.fileno() < 0


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_host_that_is_no_name_is_an_error_of_the_connection(host: str) -> None:
    """A broker's answer may hold any."""
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t"}
    kafka = parse_options(given, streaming=True).options.kafka
    with pytest.raises(OSError, match="9092: its host is no name that can be looked"):
        Connection(host, 9092, kafka)


def test_a_long_throttle_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        connection, _ = connected(stack)
        answer = HeartbeatResponse(version=3, throttle_time_ms=2**31 - 1, error_code=0)
        connection.decoded(HeartbeatRequest, 3, memoryview(bytes(answer.encode())))
        assert f"broker {connection.broker} wants no request for 2147484 s" in caplog.text


def test_the_time_for_an_answer_counts_from_the_end_of_a_throttle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker reads nothing of a connection that it throttles (KIP-219)."""
    clock = Clock()
    monkeypatch.setattr(connection_module, "time", clock)
    monkeypatch.setattr(frames, "time", clock)
    with ExitStack() as stack:
        connection, _ = connected(stack)
        answer = HeartbeatResponse(version=3, throttle_time_ms=40_000, error_code=0)
        body = memoryview(bytes(answer.encode()))
        connection.decoded(HeartbeatRequest, 3, body)
        assert connection.throttled_until == clock.now + 40
        waited = list[float]()

        class Silent:
            def settimeout(self, seconds: float) -> None:
                waited.append(seconds)
                clock.now += seconds

            def recv_into(self, _: object) -> int:
                raise TimeoutError

            def close(self) -> None: ...

        connection._socket.close()
        connection._socket = cast("socket.socket", Silent())
        connection._in_flight.append(7)
        with pytest.raises(TimeoutError):
            connection.receive()
        assert waited == [70.0]
