"""Requests to coordinators on connections of our own: found, asked again, and what refusals mean.

A step of a request raises ``OSError`` if asking again may help (:class:`NotNowError` if a broker
says so), and any other error if it cannot.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from kafka.protocol.metadata import FindCoordinatorRequest

from kshare.errors import AuthenticationError, AuthorizationError, KafkaError
from kshare.options import KafkaConfig
from kshare.wire.protocol import error_codes
from kshare.wire.protocol.connection import Connection
from kshare.wire.protocol.error_codes import Kind
from kshare.wire.protocol.messages import Address
from kshare.wire.protocol.retry import RetryDeadline

__all__ = ["GROUP", "TRANSACTION", "NotNowError", "check", "find_on", "retried"]

GROUP: Final = 0
TRANSACTION: Final = 1
"""Kinds of coordinators."""

_Answer = TypeVar("_Answer")


class NotNowError(OSError):
    """A broker cannot answer now; another answer may come soon."""


def check(code: int, action: str, *, grant: str = "") -> None:
    """Raise what an error code means.

    Args:
        code: The error code of an answer.
        action: What was asked for, as in "cannot ACTION".
        grant: What to do if the principal lacks a right.

    Raises:
        NotNowError: Asking again may help.
        KafkaError: It cannot; or one of its kinds.
    """
    if not code:
        return
    name = error_codes.name(code)
    kind = error_codes.kind(code)
    if error_codes.is_retriable(code):
        raise NotNowError(name)
    if kind is Kind.AUTHORIZATION:
        why = f"{grant} ({name})" if grant else name
        raise AuthorizationError(f"not authorized to {action}: {why}")
    raise (AuthenticationError if kind is Kind.AUTHENTICATION else KafkaError)(
        f"cannot {action}: {name}"
    )


def find_on(
    connection: Connection, key: str, kind: int, action: str, *, grant: str = ""
) -> Address:
    """Ask one broker for the coordinator of a group or a transactional id.

    Args:
        connection: A connection to any broker.
        key: The group or the transactional id.
        kind: :data:`GROUP` or :data:`TRANSACTION`.
        action: As for :func:`check`, and so is ``grant``.
        grant: What to do if the principal lacks a right.
    """
    version = connection.version(FindCoordinatorRequest, 1, 3)
    answer = connection.call(FindCoordinatorRequest(version=version, key=key, key_type=kind))
    check(answer.error_code, action, grant=grant)
    return str(answer.host), int(answer.port)


def retried(
    kafka: KafkaConfig,
    action: str,
    step: Callable[[], _Answer],
    on_fault: Callable[[OSError], None] = lambda _: None,
) -> _Answer:
    """Take a step again and again while it raises ``OSError``.

    Args:
        kafka: How long, and with which pauses (``default.api.timeout.ms``, ``retry.backoff.ms``).
        action: What is done, for the error.
        step: What to do.
        on_fault: Called with each ``OSError`` before the pause.

    Raises:
        KafkaError: The time is over.
    """
    deadline = RetryDeadline.for_requests(kafka)
    deadline.start()
    while True:
        try:
            return step()
        except OSError as error:
            if deadline.expired:
                raise KafkaError(
                    f"cannot {action} within {deadline.seconds:g} s: "
                    f"{str(error) or type(error).__name__}"
                ) from error
            on_fault(error)
        deadline.sleep()
