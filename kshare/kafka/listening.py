"""A look at the bootstrap servers as something starts: does any of them listen?

librdkafka waits for brokers that refuse connections as for any that are away, until
``default.api.timeout.ms``, three times. What runs waits so. What starts has more likely a wrong
address, or no broker yet.

Guarantees: a server that listens, does not answer, or cannot be asked, ends the look without an
error. A broker that is down for less than the given time keeps nothing from starting.

Cost: a TCP connection to the first server that listens.
"""

import logging
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, TypeAlias

from kshare.core.backoff import Backoff
from kshare.errors import KafkaError
from kshare.kafka.protocol.retry import CHANCE, Clock, RetryDeadline
from kshare.options import KafkaConfig

__all__ = ["COMMAND_SECONDS", "START_SECONDS", "check_listening"]

_log = logging.getLogger(__name__)

START_SECONDS: Final = 10.0
"""Time for which servers of a query or a write are looked at that refuse connections."""
COMMAND_SECONDS: Final = 2.0
"""The same for a command: somebody sits and waits."""
_SILENT_SECONDS: Final = 2.0
_CONNECT_SECONDS: Final = 1.0
_PAUSES_MS: Final = 200, 1_000

Connect: TypeAlias = Callable[[tuple[str, int], float], AbstractContextManager[Any]]


def check_listening(
    kafka: KafkaConfig,
    seconds: float,
    *,
    clock: Clock = time,
    connect: Connect = socket.create_connection,
) -> None:
    """Return when a bootstrap server may be listening.

    Args:
        kafka: How to reach the cluster.
        seconds: How long to look, if ``default.api.timeout.ms`` is not less.
        clock: Source of time.
        connect: Connects to an address within some seconds.

    Raises:
        KafkaError: At each look, every server refused the connection, or its name had no address.
    """
    seconds = min(seconds, kafka.api_timeout_ms / 1000)
    deadline = RetryDeadline(seconds, Backoff(*_PAUSES_MS, CHANCE.uniform), clock)
    deadline.start()
    has_said = False
    while True:
        expired = deadline.expired  # before the last look
        faults = _faults(kafka, connect)
        if not faults:
            deadline.over()
            return
        what = "; ".join(faults)
        if expired:
            raise KafkaError(
                f"{what} (kafka.bootstrap.servers; at each look within {seconds:g} s)",
                broker=", ".join(f"{host}:{port}" for host, port in kafka.bootstrap_servers),
            )
        if not has_said and seconds - deadline.seconds_left >= _SILENT_SECONDS:
            has_said = True
            _log.warning("%s; looking again for %.0f s", what, deadline.seconds_left)
        deadline.sleep(_log, "connect", what)


def _faults(kafka: KafkaConfig, connect: Connect) -> list[str]:
    """Why no server listens, one text for each; none if one may be listening."""
    faults = []
    timeout = min(_CONNECT_SECONDS, kafka.connection_setup_seconds)
    for host, port in kafka.bootstrap_servers:
        try:
            with connect((host, port), timeout):
                return []
        except (ConnectionRefusedError, socket.gaierror) as error:
            faults.append(f"{host}:{port}: {error.strerror or error}")
        except OSError:  # say, no answer: the client may have more patience
            return []
    return faults
