"""A member's connections to its group's coordinator.

::

    joining    JoinGroup, SyncGroup: brokers hold them until the others have come
    speaking   Heartbeat, OffsetCommit, DescribeGroups, LeaveGroup: answered at once

Two, because a broker reads nothing more from a connection while it holds a request of it.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from kafka.protocol.admin.groups import DescribeGroupsRequest
from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

from kshare.cluster.committed_offset import CommittedOffsets
from kshare.cluster.coordinator import find_coordinator
from kshare.cluster.offset_writer import commit_on
from kshare.core.progress import TopicPartition
from kshare.group.config.table import ConsumerConfig
from kshare.group.protocol.consumer_protocol import PROTOCOL_TYPE
from kshare.group.protocol.membership import Join, Sync
from kshare.wire.protocol.connection import Connection
from kshare.wire.protocol.messages import Address

__all__ = ["MemberLink"]

# Versions whose layout this module was written and tested for.
_JOIN_VERSIONS: Final = (2, 5)
_SYNC_VERSIONS: Final = (1, 3)
_HEARTBEAT_VERSIONS: Final = (1, 3)
_LEAVE_VERSIONS: Final = (1, 1)
_DESCRIBE_VERSIONS: Final = (1, 4)
_STATIC_JOIN, _STATIC_SYNC, _STATIC_HEARTBEAT = 5, 3, 3
"""Versions from which requests carry a ``group.instance.id``."""
_SKIPPING_JOIN: Final = 9
"""JoinGroup that lets a static leader know that its group stays assigned (KIP-814)."""


class MemberLink:
    """The connections of one member. For use by one thread.

    Every method raises OSError after which :meth:`close` and another attempt may help, and
    KafkaError if no attempt helps.

    Args:
        config: The consumer's configuration.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        # A broker that does not answer has to be left before the session is over.
        patient = max(config.session_timeout_ms // 3, 1_000)
        kafka = config.kafka.hasty(patient)
        self._kafka = replace(kafka, api_timeout_ms=min(kafka.api_timeout_ms, patient))
        self._coordinator: Address | None = None
        self._joining: Connection | None = None
        self._speaking: Connection | None = None
        self._asked: tuple[type[Any], int] | None = None  # on the joining connection

    # -- requests that wait ------------------------------------------------------------------

    @property
    def fileno(self) -> int | None:
        """What becomes readable when JoinGroup or SyncGroup is answered; None if not asked."""
        return self._joining.fileno() if self._joining is not None and self._asked else None

    def join(self, request: Join) -> None:
        """Send JoinGroup; what was asked before is not waited for any more."""
        if self._asked is not None:
            self.hang_up()
        connection = self._join_connection()
        version = connection.version(JoinGroupRequest, _JOIN_VERSIONS[0], _SKIPPING_JOIN)
        if version < _SKIPPING_JOIN:
            version = self._version(connection, JoinGroupRequest, _JOIN_VERSIONS, _STATIC_JOIN)
        protocol_class = JoinGroupRequest.JoinGroupRequestProtocol
        self._ask(
            JoinGroupRequest(
                version=version,
                group_id=self._config.group,
                session_timeout_ms=self._config.session_timeout_ms,
                rebalance_timeout_ms=self._config.max_poll_interval_ms,
                member_id=request.member_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=[
                    protocol_class(name=name, metadata=request.subscription)
                    for name in request.protocols
                ],
                **self._instance(version, _STATIC_JOIN),
            )
        )

    def sync(self, request: Sync) -> None:
        """Send SyncGroup."""
        connection = self._join_connection()
        version = self._version(connection, SyncGroupRequest, _SYNC_VERSIONS, _STATIC_SYNC)
        assignment_class = SyncGroupRequest.SyncGroupRequestAssignment
        self._ask(
            SyncGroupRequest(
                version=version,
                group_id=self._config.group,
                generation_id=request.generation,
                member_id=request.member_id,
                assignments=[
                    assignment_class(member_id=member_id, assignment=assignment)
                    for member_id, assignment in request.assignments.items()
                ],
                **self._instance(version, _STATIC_SYNC),
            )
        )

    def receive(self) -> Any:
        """The answer to JoinGroup or SyncGroup."""
        assert self._joining is not None
        assert self._asked is not None
        (kind, version), self._asked = self._asked, None
        body = self._joining.receive()
        return self._joining.decoded(kind, version, body)

    def hang_up(self) -> None:
        """Wait for no answer to JoinGroup or SyncGroup any more."""
        self._asked = None
        if self._joining is not None:
            self._joining.close()
            self._joining = None

    # -- requests that are answered at once --------------------------------------------------

    def heartbeat(self, member_id: str, generation: int) -> int:
        """Say that the member is alive; the error code that is answered."""
        connection = self._speak_connection()
        version = self._version(
            connection, HeartbeatRequest, _HEARTBEAT_VERSIONS, _STATIC_HEARTBEAT
        )
        answer = connection.call(
            HeartbeatRequest(
                version=version,
                group_id=self._config.group,
                generation_id=generation,
                member_id=member_id,
                **self._instance(version, _STATIC_HEARTBEAT),
            )
        )
        return int(answer.error_code)

    def leave(self, member_id: str) -> None:
        """Leave the group."""
        connection = self._speak_connection()
        version = connection.version(LeaveGroupRequest, *_LEAVE_VERSIONS)
        request = LeaveGroupRequest(
            version=version, group_id=self._config.group, member_id=member_id
        )
        connection.call(request)

    def commit(
        self, offsets: CommittedOffsets, member_id: str, generation: int
    ) -> dict[TopicPartition, int]:
        """Commit primary offsets as a member; the error code of each partition."""
        return commit_on(
            self._speak_connection(),
            self._config.group,
            offsets,
            member_id=member_id,
            generation=generation,
            instance_id=self._config.instance_id,
        )

    def assignments(self) -> list[bytes]:
        """What each member of the group was sent by its leader; none if the broker does not say."""
        connection = self._speak_connection()
        version = connection.version(DescribeGroupsRequest, *_DESCRIBE_VERSIONS)
        answer = connection.call(
            DescribeGroupsRequest(version=version, groups=[self._config.group])
        )
        (group,) = answer.groups
        return [bytes(member.member_assignment) for member in group.members]

    def forget(self) -> None:
        """The coordinator may be another broker: find it again."""
        self._coordinator = None
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.hang_up()
        if self._speaking is not None:
            with suppress(OSError):
                self._speaking.close()
            self._speaking = None

    # -- connections -------------------------------------------------------------------------

    def _join_connection(self) -> Connection:
        if self._joining is None:
            self._joining = self._connect()
        return self._joining

    def _speak_connection(self) -> Connection:
        if self._speaking is None:
            self._speaking = self._connect()
        return self._speaking

    def _connect(self) -> Connection:
        if self._coordinator is None:
            self._coordinator = find_coordinator(self._kafka, self._config.group)
        return Connection(*self._coordinator, self._kafka)

    def _ask(self, request: Any) -> None:
        assert self._joining is not None
        self._joining.send(request)
        self._asked = type(request), request.API_VERSION

    def _version(
        self, connection: Connection, request: type[Any], versions: tuple[int, int], static: int
    ) -> int:
        lowest, highest = versions
        if self._config.instance_id is not None:
            lowest = static
        return connection.version(request, lowest, highest)

    def _instance(self, version: int, static: int) -> dict[str, str | None]:
        return {"group_instance_id": self._config.instance_id} if version >= static else {}
