"""Makes a topic of kshare's own, with less than it should have where brokers refuse more.

What was left out is one warning. A topic that cannot be made is an error with the command that
makes it by hand. What passes, such as a controller that is elected, is asked again until
``default.api.timeout.ms`` is over.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from kshare.errors import InternalTopicError, KafkaError
from kshare.kafka.client import Client, admin_seconds, code_of, kafka_error, kind_of, servers
from kshare.kafka.client_texts import text_of
from kshare.kafka.protocol.error_codes import PASSING, ErrorCode, Kind
from kshare.kafka.protocol.retry import RetryDeadline
from kshare.kafka.topic_request import (
    Placing,
    TopicRequest,
    by_hand,
    left_out,
    next_request,
    without_text,
)
from kshare.kafka.topics import TopicSpec
from kshare.options import KafkaConfig

__all__ = ["answer_to", "is_refusal", "make_topic", "refusal_text"]

_log = logging.getLogger(__name__)

_REPLICAS_MAX: Final = 3
_UNSUPPORTED: Final = RdKafkaError._UNSUPPORTED_FEATURE  # noqa: SLF001


def make_topic(
    kafka: KafkaConfig, spec: TopicSpec, admin: Callable[..., AdminClient] = AdminClient
) -> frozenset[str]:
    """Make a topic, unless it exists.

    Args:
        kafka: How to reach the cluster.
        spec: How it should be.
        admin: Makes the client that asks.

    Returns:
        The names of the settings that brokers refused.

    Raises:
        InternalTopicError: The brokers refuse it.
        AuthorizationError: The principal may not.
        KafkaError: The cluster did not answer.
    """
    client = Client(admin, kafka)
    request: TopicRequest | None = TopicRequest.first(spec)
    refusals: dict[str, None] = {}
    while request is not None:
        fault = _ask(client, kafka, request)
        if fault is None:
            lacking = frozenset(left_out(request))
            if lacking:
                _log.warning("%s", without_text(request, refusals))
            return lacking
        if code_of(fault) == ErrorCode.TOPIC_ALREADY_EXISTS:
            return frozenset()
        if code_of(fault) == _UNSUPPORTED:  # librdkafka's mock makes a topic when asked for it
            client.handle.list_topics(spec.name, kafka.api_timeout_ms / 1000)
            return frozenset()
        refusals[refusal_text(fault)] = None
        request = next_request(request, code_of(fault))
    raise _not_made(fault, kafka, spec, refusals) from fault


def refusal_text(fault: object) -> str:
    """Name and words of a broker's refusal."""
    error = fault.args[0] if isinstance(fault, KafkaException) else fault
    if not isinstance(error, RdKafkaError):
        return f"{error}"
    return f"{error.name()}: {text_of(error)}".rstrip(".")


def is_refusal(fault: object) -> bool:
    """True if a broker has said no for good; false of what passes, logins and rights."""
    code = code_of(fault)
    if code == ErrorCode.INVALID_REPLICATION_FACTOR:  # brokers have just started, or are down
        return False
    return code is not None and code > 0 and kind_of(fault) is Kind.PERMANENT


def _ask(
    client: Client[AdminClient], kafka: KafkaConfig, request: TopicRequest
) -> Exception | None:
    """Ask until there is an answer; None if the topic was made."""
    deadline = RetryDeadline.for_requests(kafka)
    deadline.start()
    fault: Exception | None = None
    for _ in client.attempts(deadline):
        fault = answer_to(client.handle, kafka, request)
        code = code_of(fault)
        # Brokers that have just started, or are away, are too few for the replicas for a while.
        may_pass = code == ErrorCode.INVALID_REPLICATION_FACTOR and not deadline.expired
        if fault is None or not (may_pass or kind_of(fault) in PASSING):
            break
    return fault


def answer_to(
    admin: AdminClient, kafka: KafkaConfig, request: TopicRequest, **checking: bool
) -> Exception | None:
    """Ask once.

    Args:
        admin: The client that asks.
        kafka: How to reach the cluster.
        request: The request.
        checking: ``validate_only=True`` to have it checked, and nothing made.

    Returns:
        The refusal, or that there was no answer; None if the topic was, or can be, made.
    """
    spec, config = request.spec, dict(request.config)
    if request.placing is Placing.NAMED:
        placed: dict[str, Any] = {"replica_assignment": [*map(list, spec.replicas)]}
    else:
        placed = {"replication_factor": request.replication}
    new = NewTopic(spec.name, spec.partitions, config=config, **placed)
    fault = _create(admin, kafka, new, **checking)
    if request.placing is Placing.DEFAULT and code_of(fault) == _UNSUPPORTED:
        # Before Kafka 2.4, brokers had no default to choose (KIP-464).
        try:
            brokers = admin.list_topics(timeout=kafka.api_timeout_ms / 1000).brokers
        except KafkaException as error:
            return error
        count = min(_REPLICAS_MAX, len(brokers))
        new = NewTopic(spec.name, spec.partitions, count, config=config)
        fault = _create(admin, kafka, new, **checking)
    return fault


def _create(
    admin: AdminClient, kafka: KafkaConfig, new: NewTopic, **checking: bool
) -> Exception | None:
    seconds = kafka.api_timeout_ms / 1000
    answers = admin.create_topics([new], operation_timeout=admin_seconds(seconds), **checking)
    try:
        answers[new.topic].result(seconds)
    except (KafkaException, TimeoutError) as error:
        return error
    return None


def _not_made(
    fault: object, kafka: KafkaConfig, spec: TopicSpec, refusals: Mapping[str, None]
) -> KafkaError:
    action = f"create topic {spec.name}"
    needs_login = kafka.uses_tls or kafka.uses_sasl
    command = by_hand(spec, servers(kafka).replace(" ", ""), needs_login=needs_login)
    if is_refusal(fault):
        return InternalTopicError(
            f"cannot {action}, which kshare keeps for itself: {'; '.join(refusals)}; let who may "
            f"make topics run: {command}",
            topic=spec.name,
        )
    may_not = kind_of(fault) is Kind.AUTHORIZATION
    more = f"; grant Create on it, or let who may make topics run: {command}" if may_not else ""
    return kafka_error(fault, action, more=more, topic=spec.name)
