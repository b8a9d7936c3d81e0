"""One connection to one broker: socket, TLS, SASL, API versions, requests and their answers.

A response is handed out only for the request that was sent for it. After any error the connection
is closed and of no further use. A broker that throttles its client answers, and then reads nothing
of the connection for a while: the time for the next response counts from then on.

A broker may limit a login in time (``connections.max.reauth.ms``, or the life of a token): it
closes the connection at the first request after that. Whoever asks :attr:`Connection.idle`, or
:attr:`Connection.is_expiring`, before a request makes another connection in time.

Cost: the bytes of a response are received into one buffer that is used again for the next response,
with no copy.

The message classes and the SASL mechanisms are kafka-python's, generated from Kafka's own schemas.
The socket loop is ours, because that library's transport reads 4 KiB at a time.
"""

import contextlib
import logging
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Protocol

from kshare._version import __version__
from kshare.core.waits import PATIENCE_SECONDS
from kshare.errors import AuthenticationError, KafkaError
from kshare.kafka.protocol import error_codes
from kshare.kafka.protocol.api_versions import parse_api_versions
from kshare.kafka.protocol.apis import api_of
from kshare.kafka.protocol.error_codes import ErrorCode
from kshare.kafka.protocol.frames import FrameReceiver, ProtocolError
from kshare.kafka_python import (
    ApiVersionsRequest,
    ResponseClassRegistry,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from kshare.options import KafkaConfig
from kshare.security.sasl import sasl_mechanism
from kshare.security.tls import ssl_context

__all__ = ["BrokerConnection", "Connection"]

_log = logging.getLogger(__name__)

_API_VERSIONS: Final = api_of(ApiVersionsRequest.API_KEY)
_asked_by_0: Final = set[str]()
"""Brokers that close the connection if they are asked for their versions in another one."""
_LOGIN_PART: Final = 0.9  # Java's client: 0.85 to 0.95. A token is refreshed before that
_LOGIN_SECONDS_MIN: Final = 1.0  # one that is shorter is about to expire whenever it is looked at


class BrokerConnection(Protocol):
    """The part of :class:`Connection` that the read path uses."""

    @property
    def broker(self) -> str:
        """Host and port, for texts."""

    @property
    def throttled_until(self) -> float:
        """Until when, by :func:`time.monotonic`, the broker reads no request."""

    def version(
        self, request: type[Any], lowest: int | None = None, highest: int | None = None
    ) -> int:
        """The version of a request to speak."""

    def send(self, request: Any) -> None:
        """Send a request."""

    def receive(self) -> memoryview:
        """The body of the next response."""

    def receive_ready(self) -> memoryview | None:
        """The body of the next response; None as long as some of it is to come."""

    def call(self, request: Any) -> Any:
        """Send a request and decode its response."""

    @property
    def idle(self) -> bool:
        """True if the connection can serve another reader."""

    @property
    def is_expiring(self) -> bool:
        """True if the login is about to expire: another connection is to be made."""

    def free_buffer(self) -> None:
        """Keep no large buffer until the next response comes."""

    def fileno(self) -> int:
        """The socket's descriptor, to wait for a response beside other events."""

    def close(self) -> None:
        """Close the connection."""


class Connection:
    """A connection to ``host:port``, authenticated and with its API versions known.

    Not for use by several threads. Every blocking step ends within ``request.timeout.ms``, counted
    from the end of a throttle.

    Attributes:
        broker: Host and port, for texts.
        throttled_until: Until when, by :func:`time.monotonic`, the broker reads no request.

    Raises:
        AuthenticationError: Either side did not accept the other's certificate or login.
        KafkaError: The broker is too old, or refuses the connection for good.
        OSError: The connection failed in a way that a retry may fix.
    """

    def __init__(self, host: str, port: int, kafka: KafkaConfig) -> None:
        self.broker = f"{host}:{port}"
        self._kafka = kafka
        self._correlation_id = 0
        self._in_flight: deque[int] = deque()
        self._frames = FrameReceiver(self.broker)
        self._versions: dict[int, tuple[int, int]] = {}
        self.throttled_until = 0.0
        self._good_until = float("inf")
        self._socket = self._connect(host, port)
        try:
            self._negotiate(host, port)
            self._authenticate()
        except BaseException:
            self.close()
            raise

    @property
    def api_versions(self) -> Mapping[int, tuple[int, int]]:
        """The lowest and the highest version of each request that the broker speaks, by number."""
        return self._versions

    @property
    def _timeout(self) -> float:
        return self._kafka.request_timeout_ms / 1000

    # -- messages ---------------------------------------------------------------------------

    def version(
        self, request: type[Any], lowest: int | None = None, highest: int | None = None
    ) -> int:
        """The version of ``request`` to speak: the highest that both sides know.

        Args:
            request: The request, one of :mod:`kshare.kafka.protocol.apis`.
            lowest: The lowest that will do, if that is more than there.
            highest: The highest that may be spoken, if that is less than there.

        Raises:
            KafkaError: The broker knows none of them.
        """
        api = api_of(request.API_KEY)
        lowest = api.lowest if lowest is None else max(api.lowest, lowest)
        highest = api.highest if highest is None else min(api.highest, highest)
        offered = self._versions.get(api.key)
        broker_lowest, broker_highest = offered or (0, -1)
        version = min(highest, broker_highest)
        if version < max(lowest, broker_lowest):
            speaks = (
                f"speaks {request.name} versions {broker_lowest} to {broker_highest}"
                if offered
                else f"does not know {request.name}"
            )
            raise KafkaError(
                f"broker {self.broker} {speaks}, kshare needs one of {lowest} to {highest}: "
                "brokers from Kafka 2.1 on are supported",
                broker=self.broker,
            )
        return version

    def send(self, request: Any) -> None:
        """Send a request whose version is set; its response is the next that is not taken yet."""
        frame = self.frame(request)
        self._socket.settimeout(self._timeout)
        try:
            self._socket.sendall(frame)
        except BaseException:
            self.close()
            raise

    def frame(self, request: Any) -> memoryview:
        """The bytes of a request, for :meth:`send_ready`; nothing else may be sent before."""
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        request.with_header(correlation_id=self._correlation_id, client_id=self._kafka.client_id)
        frame = memoryview(request.encode(header=True, framed=True))
        self._in_flight.append(self._correlation_id)
        return frame

    def send_ready(self, frame: memoryview) -> memoryview:
        """Send as much of a frame as there is room for, without waiting; returns the rest."""
        self._socket.settimeout(0)
        try:
            while len(frame):
                frame = frame[self._socket.send(frame) :]
        except (BlockingIOError, ssl.SSLWantWriteError):
            pass  # TLS wants the same bytes again, and gets them
        except BaseException:
            self.close()
            raise
        return frame

    def receive(self) -> memoryview:
        """The body of the next response, from behind its correlation id.

        The view is valid until the next call of :meth:`receive` or :meth:`call`.
        """
        # Counted from here, not from the sending: the reader may have been busy for minutes with
        # the response before, while this one lay ready.
        body = self._receive(max(time.monotonic(), self.throttled_until) + self._timeout)
        assert body is not None
        return body

    def receive_ready(self) -> memoryview | None:
        """As :meth:`receive`, but without waiting: None as long as some of it is to come."""
        return self._receive(None)

    def _receive(self, deadline: float | None) -> memoryview | None:
        correlation_id = self._in_flight[0]
        try:
            frame = self._frames.receive(self._socket, deadline)
            if frame is None:
                return None
            (answered,) = struct.unpack_from(">i", frame)
            if answered != correlation_id:
                raise ProtocolError(
                    f"broker {self.broker} answered request {answered}, not {correlation_id}"
                )
        except BaseException:
            self.close()
            raise
        self._in_flight.popleft()
        return frame[4:]

    def call(self, request: Any) -> Any:
        """Send a request and decode its response (never with another request in flight)."""
        if self._in_flight:
            raise RuntimeError("call() with a request in flight")
        self.send(request)
        return self.decoded(type(request), request.API_VERSION, self.receive())

    def decoded(self, request: type[Any], version: int, body: memoryview) -> Any:
        """Decode the body of a response to ``request``, as :meth:`receive` returns it."""
        response_class = self._response_class(request)
        try:
            if response_class.flexible_version_q(version):
                # Response header v1: tagged fields, of which none is defined.
                body = _skip_tagged_fields(body)
            response = response_class.decode(bytes(body), version=version)
        except Exception as error:
            self.close()
            raise self._unreadable(response_class.name, version, error) from error
        throttle_ms = getattr(response, "throttle_time_ms", 0) or 0
        if throttle_ms > 0:
            self.throttled_until = time.monotonic() + throttle_ms / 1000
            if throttle_ms >= PATIENCE_SECONDS * 1000:
                _log.warning(
                    "broker %s wants no request for %.0f s after a %s (a quota of the client, or "
                    "a broker that is not what it should be)",
                    self.broker,
                    throttle_ms / 1000,
                    response_class.name,
                )
        return response

    def _unreadable(self, response: str, version: int, why: Exception) -> ProtocolError:
        return ProtocolError(
            f"broker {self.broker} sent a {response} v{version} that cannot be read: {why}"
        )

    @property
    def idle(self) -> bool:
        """True if the connection can serve another reader: open, in step, nothing unread.

        False if its login is about to expire, too.
        """
        if self._in_flight or self._socket.fileno() < 0 or self.is_expiring:
            return False
        poll = select.poll()  # select() takes no descriptor above 1,023
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)  # readable while nothing was asked: closed by the broker

    @property
    def is_expiring(self) -> bool:
        """True if the login is about to expire: another connection is to be made."""
        return time.monotonic() >= self._good_until

    def free_buffer(self) -> None:
        """Keep no large buffer until the next response comes; the last one stays valid."""
        self._frames.free()

    def fileno(self) -> int:
        """The socket's descriptor, to wait for a response beside other events."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket. May be called again."""
        self._in_flight.clear()
        self._frames.clear()
        with contextlib.suppress(OSError):
            self._socket.close()

    # -- set-up -----------------------------------------------------------------------------

    def _connect(self, host: str, port: int) -> socket.socket:
        timeout = self._kafka.connection_setup_seconds
        try:
            plain = socket.create_connection((host, port), timeout=timeout)
        except UnicodeError:  # of the name's encoding; brokers name each other, too
            raise OSError(
                f"broker {self.broker}: its host is no name that can be looked up (a part of it is "
                "empty or longer than 63 letters)"
            ) from None
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            # Room for the next response while this one is decoded: left to itself, the kernel
            # shrinks the window whenever the reader is busy (2.5 M records/s become 6 M with it).
            for option, room in (
                (socket.SO_RCVBUF, self._kafka.receive_buffer_bytes),
                (socket.SO_SNDBUF, self._kafka.send_buffer_bytes),
            ):
                if room >= 0:
                    plain.setsockopt(socket.SOL_SOCKET, option, room)
            context = ssl_context(self._kafka)
            if context is None:
                return plain
            return context.wrap_socket(plain, server_hostname=host)
        except ssl.SSLError as error:
            plain.close()
            raise self._tls_fault(error) from error
        except ConnectionError as error:
            plain.close()
            raise self._handshake_ended() from error
        except BaseException:
            plain.close()
            raise

    def _handshake_ended(self) -> ConnectionResetError:
        """A broker that stops looks the same, so this is retried."""
        return ConnectionResetError(
            f"broker {self.broker} closed the connection in the TLS handshake (if this listener "
            "expects no TLS, set kafka.security.protocol to PLAINTEXT or SASL_PLAINTEXT)"
        )

    def _tls_fault(self, error: ssl.SSLError) -> Exception:
        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"its certificate was not accepted: {error.verify_message}"
        elif error.reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"}:
            why = "it does not speak TLS on this port (is kafka.security.protocol right?)"
        elif error.reason and "ALERT" in error.reason:
            why = f"it refused our side of the TLS handshake: {error.reason}"
        elif isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return self._handshake_ended()
        else:
            return error
        return AuthenticationError(f"broker {self.broker}: {why}", broker=self.broker)

    def _negotiate(self, host: str, port: int) -> None:
        try:
            error_code = self._ask_versions(host, port)
        except ssl.SSLError as error:
            # TLS 1.3: a refused client certificate shows only at the first read.
            raise self._tls_fault(error) from error
        except (ConnectionError, ProtocolError) as error:
            if self._kafka.security_protocol.endswith("PLAINTEXT"):
                hint = (
                    "if this listener expects TLS, set kafka.security.protocol to SSL or SASL_SSL"
                )
                raise type(error)(f"{error} ({hint})") from error
            raise
        if error_code:
            raise KafkaError(
                f"broker {self.broker} does not tell its API versions: "
                f"{error_codes.name(error_code)}",
                broker=self.broker,
            )

    def _ask_versions(self, host: str, port: int) -> int:
        """Ask what the broker speaks; returns an error code."""
        if self.broker in _asked_by_0:
            return self._ask_version_0()
        try:
            self.send(
                ApiVersionsRequest(
                    version=_API_VERSIONS.highest,
                    client_software_name="kshare",
                    client_software_version=__version__,
                )
            )
            body = self.receive()
        except (ConnectionError, ProtocolError) as closed:
            # Some services hang up on a version that they do not know (and so does a listener that
            # expects TLS, or a broker that stops).
            try:
                self._socket = self._connect(host, port)
                error_code = self._ask_version_0()
            except OSError:
                self.close()
                raise closed from None
            _asked_by_0.add(self.broker)
            return error_code
        if len(body) >= 2 and struct.unpack_from(">h", body)[0] == ErrorCode.UNSUPPORTED_VERSION:
            # An older broker: what else is in that answer, brokers do not agree on.
            return self._ask_version_0()
        error_code, self._versions = self._api_versions(body)
        return error_code

    def _ask_version_0(self) -> int:
        response = self.call(ApiVersionsRequest(version=0))
        self._versions = {
            api.api_key: (api.min_version, api.max_version) for api in response.api_keys
        }
        return int(response.error_code)

    def _api_versions(self, body: memoryview) -> tuple[int, dict[int, tuple[int, int]]]:
        try:
            return parse_api_versions(body)
        except ValueError as error:
            self.close()
            raise self._unreadable("ApiVersionsResponse", _API_VERSIONS.highest, error) from error

    def _authenticate(self) -> None:
        mechanism = sasl_mechanism(self._kafka)
        if mechanism is None:
            return
        name = self._kafka.sasl_mechanism
        # A broker without SaslAuthenticate understands version 0 of the handshake, even if it does
        # not list it: Java's client goes by the same rule.
        framed = SaslAuthenticateRequest.API_KEY in self._versions
        handshake = self.version(SaslHandshakeRequest) if framed else 0
        response = self.call(SaslHandshakeRequest(version=handshake, mechanism=name))
        if response.error_code:
            offered = ", ".join(response.mechanisms) or "none"
            raise AuthenticationError(
                f"broker {self.broker} does not offer SASL mechanism {name}; it offers: {offered}",
                broker=self.broker,
            )
        exchange = self._exchange if handshake else self._exchange_unframed
        while not mechanism.is_done():
            answer = exchange(mechanism.auth_bytes())
            try:
                mechanism.receive(answer)
            except (KeyError, ValueError) as error:
                raise AuthenticationError(
                    f"SASL {name} with broker {self.broker} failed: the broker's answer does not "
                    "prove that it knows the credentials",
                    broker=self.broker,
                ) from error

    def _exchange(self, token: bytes) -> bytes:
        """Send a token of SASL in a request, and return the broker's."""
        version = self.version(SaslAuthenticateRequest)
        response = self.call(SaslAuthenticateRequest(version=version, auth_bytes=token))
        if response.error_code:
            reason = response.error_message or error_codes.name(response.error_code)
            raise AuthenticationError(
                f"broker {self.broker} refused SASL {self._kafka.sasl_mechanism}: {reason}",
                broker=self.broker,
            )
        lifetime = (response.session_lifetime_ms or 0) / 1000  # 0: without a limit, or version 0
        if lifetime >= _LOGIN_SECONDS_MIN:
            self._good_until = time.monotonic() + _LOGIN_PART * lifetime
        return bytes(response.auth_bytes or b"")

    def _exchange_unframed(self, token: bytes) -> bytes:
        """The same after SaslHandshake 0: a token is its length and its bytes, without a header."""
        self._socket.settimeout(self._timeout)
        try:
            self._socket.sendall(struct.pack(">i", len(token)) + token)
            deadline = time.monotonic() + self._timeout
            answer = self._frames.receive(self._socket, deadline, least=0)
        except ConnectionError as error:
            raise ConnectionResetError(
                f"broker {self.broker} closed the connection amid SASL "
                f"{self._kafka.sasl_mechanism}; it gives no reason (SaslHandshake 0): are the "
                "credentials right?"
            ) from error
        assert answer is not None
        return bytes(answer)

    @staticmethod
    def _response_class(request: type[Any]) -> type[Any]:
        response: type[Any] = ResponseClassRegistry._response_class_registry[request.API_KEY]  # noqa: SLF001
        return response


def _skip_tagged_fields(body: memoryview) -> memoryview:
    if not len(body) or body[0] != 0:
        raise ValueError("unknown tagged fields in a response header")
    return body[1:]
