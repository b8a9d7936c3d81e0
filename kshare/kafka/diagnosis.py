"""Diagnosis of a cluster that cannot be reached, by our own protocol: librdkafka reports little.

Guarantees: nothing is changed, and no call takes much longer than it may. What waiting may repair
(a broker that is down, a network that is slow) is no fault.

Cost: a few connections to each bootstrap server, one after another.
"""

import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace

from kshare.errors import AuthenticationError, KafkaError
from kshare.kafka.protocol.connection import Connection
from kshare.kafka.protocol.error_codes import ErrorCode
from kshare.kafka_python import SaslHandshakeRequest
from kshare.options import KafkaConfig

__all__ = ["connection_fault", "login_fault"]

_LOGIN_SECONDS = 10.0
_STEPS = 3  # of a look at one server, each of which may take its whole time
_SASL_SPOKEN = {ErrorCode.NONE, ErrorCode.UNSUPPORTED_SASL_MECHANISM}  # it expects a login


def login_fault(kafka: KafkaConfig) -> AuthenticationError | None:
    """The reason why a login or a certificate is refused, as a task's connection would report it.

    Returns:
        The fault of the first bootstrap server that has one; None if a login succeeds, or if no
        server can be asked.
    """
    for host, port, patient in _turns(kafka, _LOGIN_SECONDS):
        try:
            _connect(host, port, patient).close()
        except AuthenticationError as error:
            return error
        except (KafkaError, OSError):
            continue
        return None
    return None


def connection_fault(kafka: KafkaConfig, seconds: float) -> KafkaError | None:
    """The reason why a cluster does not answer, if waiting does not repair it.

    Such are certificates and logins that are not accepted, a ``kafka.security.protocol`` that is
    not the listener's, and names without an address if no bootstrap server has one.

    Args:
        kafka: how it is to be reached.
        seconds: how long looking may take, about.

    Returns:
        The fault of the first bootstrap server that has one; None if none has.
    """
    nameless: list[str] = []
    for host, port, patient in _turns(kafka, seconds):
        try:
            fault = _fault_of(host, port, patient)
        except socket.gaierror as error:
            nameless.append(f"{host} ({error.strerror})")
        except OSError:
            continue
        else:
            if fault is not None:
                return fault
    if len(nameless) < len(kafka.bootstrap_servers):
        return None
    return KafkaError(
        f"kafka.bootstrap.servers: no server has an address: {', '.join(nameless)}",
        broker=", ".join(f"{host}:{port}" for host, port in kafka.bootstrap_servers),
    )


def _fault_of(host: str, port: int, kafka: KafkaConfig) -> KafkaError | None:
    """The fault between one server and the options. OSError: waiting may repair it."""
    try:
        connection = _connect(host, port, kafka)
    except KafkaError as error:
        return error
    except socket.gaierror:
        raise
    except OSError as error:
        if isinstance(error, TimeoutError | ConnectionRefusedError):
            raise
        if kafka.uses_tls and _speaks_plain(host, port, kafka):
            return _wrong_protocol(host, port, "no TLS", "PLAINTEXT or SASL_PLAINTEXT")
        if not kafka.uses_tls and _speaks_tls(host, port, kafka):
            return _wrong_protocol(host, port, "TLS", "SSL or SASL_SSL")
        raise
    try:
        if not kafka.uses_sasl and _wants_login(connection):
            right = "SASL_SSL" if kafka.uses_tls else "SASL_PLAINTEXT"
            return _wrong_protocol(host, port, "a SASL login", right)
    finally:
        connection.close()
    return None


def _wrong_protocol(host: str, port: int, expected: str, right: str) -> AuthenticationError:
    return AuthenticationError(
        f"broker {host}:{port} expects {expected} on this port: set kafka.security.protocol to "
        f"{right}",
        broker=f"{host}:{port}",
    )


def _speaks_plain(host: str, port: int, kafka: KafkaConfig) -> bool:
    try:
        _connect(host, port, replace(kafka, security_protocol="PLAINTEXT")).close()
    except (KafkaError, OSError):
        return False
    return True


def _speaks_tls(host: str, port: int, kafka: KafkaConfig) -> bool:
    """True if a TLS handshake is answered; nothing is sent over it, so no one need be trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), kafka.connection_setup_seconds) as raw,
            context.wrap_socket(raw, server_hostname=host),
        ):
            return True
    except ssl.SSLError as error:
        return bool(error.reason and "ALERT" in error.reason)
    except (OSError, UnicodeError):
        return False


def _wants_login(connection: Connection) -> bool:
    """True if a listener takes logins: one that does answers nothing else to a stranger."""
    try:
        version = connection.version(SaslHandshakeRequest)
        request = SaslHandshakeRequest(version=version, mechanism="PLAIN")
        return connection.call(request).error_code in _SASL_SPOKEN
    except (KafkaError, OSError):
        return False


def _turns(kafka: KafkaConfig, seconds: float) -> Iterator[tuple[str, int, KafkaConfig]]:
    """Each bootstrap server, and options that leave it its share of the time."""
    deadline = time.monotonic() + seconds
    servers = kafka.bootstrap_servers
    for number, (host, port) in enumerate(servers):
        share = (deadline - time.monotonic()) / (len(servers) - number)
        yield host, port, kafka.hasty(max(int(share * 1000 / _STEPS), 1))


def _connect(host: str, port: int, kafka: KafkaConfig) -> Connection:
    return Connection(host, port, kafka)
