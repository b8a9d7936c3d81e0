"""A group as its coordinator describes it: its state, and the members that it knows."""

import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka.admin import AdminClient

from kshare.core.progress import TopicPartition
from kshare.errors import AuthenticationError, KafkaError
from kshare.group.protocol.membership.subscription import PROTOCOL
from kshare.kafka.admin_requests import Request, failure_of, send
from kshare.kafka.client import Client, code_of, kafka_error, kind_of
from kshare.kafka.protocol.error_codes import PASSING
from kshare.kafka.protocol.retry import RetryDeadline
from kshare.options import KafkaConfig

__all__ = [
    "GroupDescriber",
    "GroupDescription",
    "JoinedMember",
    "describe_group",
    "describe_groups",
]

_log = logging.getLogger("kshare.group")

_UNSUPPORTED: Final = RdKafkaError._UNSUPPORTED_FEATURE  # noqa: SLF001 - the mock cluster
_NO_GROUP: Final = RdKafkaError.GROUP_ID_NOT_FOUND


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as the coordinator knows it.

    Attributes:
        member_id: Its id at the coordinator.
        client_id: Its ``client.id``.
        host: The address that it connects from.
        instance_id: Its ``group.instance.id``; None if it has none.
        partitions: The partitions of which it has something.
    """

    member_id: str
    client_id: str
    host: str
    instance_id: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """The coordinator's description of a group.

    Attributes:
        state: Its state, such as ``stable`` or ``empty``, as ``kafka-consumer-groups`` names it;
            ``unknown`` if brokers do not say.
        members: Its members, by their ids; None if the brokers do not say.
        protocol: The protocol for which the members have voted; empty if the brokers do not say.
    """

    state: str
    members: Mapping[str, JoinedMember] | None
    protocol: str = ""

    @property
    def exists(self) -> bool:
        """True if the brokers say that they know members or offsets of the group."""
        return self.state not in {"dead", "unknown"}

    @property
    def is_plain(self) -> bool:
        """True if it assigns whole partitions, as a member is not a kshare consumer."""
        return bool(self.protocol) and self.protocol != PROTOCOL


_UNKNOWN: Final = GroupDescription("unknown", None)
_NOT_DESCRIBED: Final = "%s; its state is shown as unknown, and its members as its log has them"


class GroupDescriber:
    """Asks the coordinators of groups, over a connection that stays open.

    Args:
        kafka: How to reach the cluster.
    """

    def __init__(self, kafka: KafkaConfig) -> None:
        self._kafka = kafka
        self._client = Client(AdminClient, kafka)

    def describe(
        self,
        groups: Collection[str],
        failed: Callable[[KafkaError], None] | None = None,
    ) -> dict[str, GroupDescription]:
        """Describe some groups.

        Args:
            groups: Their ids; each once.
            failed: Called with the error of each group that is not described, which counts as
                ``unknown``. None: it is raised.

        Raises:
            KafkaError: A coordinator did not answer, or refused; no broker can be reached, or the
                login is refused, in any case.
        """
        deadline = RetryDeadline.for_requests(self._kafka)
        deadline.start()
        described: dict[str, GroupDescription] = {}
        while wanted := [group for group in groups if group not in described]:
            for group, future in send(self._client, _request(wanted), deadline).items():
                try:
                    answer = _described(future, group, deadline)
                except KafkaError as error:
                    if failed is None or isinstance(error, AuthenticationError):
                        raise
                    failed(error)
                    answer = _UNKNOWN
                if answer is not None:
                    described[group] = answer
            if len(described) < len(groups):
                self._client.close()  # a new one asks again who coordinates the group
                late = ", ".join(group for group in wanted if group not in described)
                deadline.sleep(_log, f"describe group {late}", "its coordinator is not ready")
        deadline.over()
        return described

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def describe_group(kafka: KafkaConfig, group: str) -> GroupDescription:
    """Describe one group. One that no coordinator knows is ``dead``, and has no members.

    Raises:
        KafkaError: The coordinator did not answer, or refused.
    """
    with closing(GroupDescriber(kafka)) as describer:
        return describer.describe([group])[group]


def describe_groups(kafka: KafkaConfig, groups: Collection[str]) -> dict[str, GroupDescription]:
    """Describe some groups, as far as their coordinators do.

    A group that is not described, for want of a right or of an answer, is ``unknown``, and a
    warning names it. Who has to know that no member is alive asks by :func:`describe_group`.

    Args:
        kafka: How to reach the cluster.
        groups: Ids of the groups; each once.

    Raises:
        KafkaError: No broker can be reached, or the login is refused.
    """
    with closing(GroupDescriber(kafka)) as describer:
        return describer.describe(groups, lambda error: _log.warning(_NOT_DESCRIBED, error))


def _request(groups: list[str]) -> Request:
    return lambda client, seconds: client.describe_consumer_groups(groups, request_timeout=seconds)


def _described(
    future: "Future[Any]", group: str, deadline: RetryDeadline
) -> GroupDescription | None:
    """The coordinator's answer; None if it has to be asked again."""
    error = failure_of(future)
    if error is not None:
        code = code_of(error)
        if code == _UNSUPPORTED:
            return _UNKNOWN
        if code == _NO_GROUP:
            return GroupDescription("dead", {})
        if kind_of(error) in PASSING and not deadline.expired:
            return None
        raise kafka_error(error, f"describe group {group}") from error
    answer = future.result()
    members = {
        each.member_id: JoinedMember(
            each.member_id,
            each.client_id,
            each.host.lstrip("/"),
            each.group_instance_id,
            _partitions(each.assignment),
        )
        for each in answer.members
    }
    state = answer.state.name.lower().replace("_", " ")
    return GroupDescription(state, members, answer.partition_assignor or "")


def _partitions(assignment: Any) -> tuple[TopicPartition, ...]:
    listed = () if assignment is None else assignment.topic_partitions or ()
    return tuple(sorted(TopicPartition(each.topic, each.partition) for each in listed))
