"""Requests of an ``AdminClient``: by one client after another, while there is no answer.

A refused login, or a server that is no broker, looks like silence to a request. The client's
callbacks know better, so they are served while it is waited for, and what does not pass is raised.
"""

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from typing import Any, Final, TypeAlias

from confluent_kafka import OFFSET_INVALID, KafkaException
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka.admin import AdminClient

from kshare.kafka.client import Client, code_of, has_timed_out
from kshare.kafka.protocol.retry import Clock, RetryDeadline

__all__ = ["Request", "failure_of", "send", "wait_for"]

_POLL_SECONDS: Final = 0.1
_TRANSPORT: Final = RdKafkaError._TRANSPORT  # noqa: SLF001

Request: TypeAlias = Callable[[AdminClient, float], Mapping[Any, Future[Any]]]
"""Sends a request by a client, with the seconds for an answer; returns a future for each part."""


def send(
    client: Client[AdminClient], request: Request, deadline: RetryDeadline, clock: Clock = time
) -> Mapping[Any, Future[Any]]:
    """Send a request, and wait until each part has an answer, or the time is over.

    Args:
        client: Makes the clients.
        request: The request.
        deadline: Limits the time; it has started.
        clock: Source of time.

    Returns:
        The futures of the last attempt: some may have no answer.

    Raises:
        KafkaError: No broker can be reached, or the login is refused: waiting does not help.
    """
    futures: Mapping[Any, Future[Any]] = {}
    for seconds in client.attempts(deadline):
        futures = request(client.handle, seconds)
        wait_for(client, futures.values(), seconds, clock)
        failures = [failure_of(future) for future in futures.values()]
        # An error of a broker, which is not librdkafka's, is an answer, too.
        if any(failure is None or (code_of(failure) or 0) > 0 for failure in failures):
            client.answered()
        if not any(map(has_timed_out, failures)):
            break
    return futures


def wait_for(
    client: Client[AdminClient],
    futures: Collection[Future[Any]],
    seconds: float,
    clock: Clock = time,
) -> None:
    """Wait for answers, a moment longer than librdkafka does; arguments as of :func:`send`."""
    pending: Collection[Future[Any]] = list(futures)
    until = clock.monotonic() + seconds + 1.0
    while pending and clock.monotonic() < until:
        client.serve()
        pending = wait(pending, timeout=_POLL_SECONDS).not_done


def failure_of(future: Future[Any]) -> BaseException | None:
    """The reason for a missing answer; None if there is an answer."""
    if not future.done():
        return TimeoutError()
    error = future.exception(timeout=0)
    if error is None and getattr(future.result(), "offset", 0) == OFFSET_INVALID:
        # librdkafka's answer, without an error, if the broker goes away during the request.
        return KafkaException(RdKafkaError(_TRANSPORT, "the broker went away"))
    return error
