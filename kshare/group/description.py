"""What a group's coordinator says of it: its state, and the members that it knows."""

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kshare.cluster.client import Client, code_of, kafka_error
from kshare.options import KafkaConfig

__all__ = ["GroupDescription", "JoinedMember", "describe_group", "describe_groups"]

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
    """

    member_id: str
    client_id: str
    host: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """What the coordinator says of a group.

    Attributes:
        state: Its state, such as ``stable`` or ``empty``, as ``kafka-consumer-groups`` names it;
            ``unknown`` if the brokers do not say.
        members: Its members, by their ids; None if the brokers do not say.
    """

    state: str
    members: Mapping[str, JoinedMember] | None


def describe_group(kafka: KafkaConfig, group: str) -> GroupDescription:
    """What the coordinator says of one group; see :func:`describe_groups`."""
    return describe_groups(kafka, [group])[group]


def describe_groups(kafka: KafkaConfig, groups: Collection[str]) -> dict[str, GroupDescription]:
    """What the coordinators say of some groups.

    A group that no coordinator knows is ``dead``, and has no members.

    Raises:
        KafkaError: A coordinator did not answer, or refused.
    """
    if not groups:
        return {}
    client = Client(AdminClient, kafka)
    seconds = kafka.api_timeout_ms / 1000
    described = {}
    with closing(client):
        futures = client.handle.describe_consumer_groups([*groups], request_timeout=seconds)
        for group, future in futures.items():
            try:
                answer = future.result(seconds + 1)
            except (KafkaException, TimeoutError) as error:
                if code_of(error) == _UNSUPPORTED:
                    described[group] = GroupDescription("unknown", None)
                elif code_of(error) == _NO_GROUP:
                    described[group] = GroupDescription("dead", {})
                else:
                    raise kafka_error(error, f"describe group {group}") from error
                continue
            members = {
                each.member_id: JoinedMember(
                    each.member_id, each.client_id, each.host.lstrip("/"), each.group_instance_id
                )
                for each in answer.members
            }
            state = answer.state.name.lower().replace("_", " ")
            described[group] = GroupDescription(state, members)
    return described
