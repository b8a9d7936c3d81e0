"""A member's connections to its group's coordinator.

::

    joining    JoinGroup, SyncGroup: brokers hold them until the others have come
    speaking   Heartbeat, OffsetCommit, DescribeGroups, LeaveGroup: answered at once

Two, because a broker reads nothing more from a connection while it holds a request of it. Nothing
here waits: threads of their own find the coordinator and connect, and wake the one that uses this.
"""

import select
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeAlias

from kshare.group.config.table import ConsumerConfig
from kshare.group.protocol.commit_log.consumer_protocol import PROTOCOL_TYPE
from kshare.group.protocol.membership.requests import Heartbeat, Join, Sync
from kshare.kafka.committed import CommittedOffsets
from kshare.kafka.coordinator import commit_request, find_coordinator
from kshare.kafka.protocol.background import abandon, begin
from kshare.kafka.protocol.connection import Connection
from kshare.kafka.protocol.messages import Address
from kshare.kafka_python import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kshare.options import KafkaConfig

__all__ = ["Answered", "Line", "Make", "MemberLink"]

Make: TypeAlias = Callable[[Connection], Any]
"""Makes a request, in a version that the broker speaks."""
Answered: TypeAlias = Callable[[Any], None]
"""Takes the answer."""

_STATIC_JOIN: Final = 5
_STATIC: Final = 3
"""The versions from which JoinGroup, and SyncGroup and Heartbeat, carry a ``group.instance.id``."""
_SKIPPING_JOIN: Final = 9
"""JoinGroup that lets a static leader know that its group stays assigned (KIP-814)."""


class MemberLink:
    """The connections of one member. For use by one thread.

    Each request is sent by :meth:`send` as soon as it can be; :meth:`take` calls what takes its
    answer. What was asked is forgotten once the connection is closed.

    Args:
        config: The consumer's configuration.
        wake: Called, by another thread, when :meth:`send` has something to do.
    """

    def __init__(self, config: ConsumerConfig, wake: Callable[[], None]) -> None:
        self._config = config
        self._wake = wake
        # A broker that does not answer has to be left before the session is over.
        patient = max(config.session_timeout_ms // 3, 1_000)
        self._kafka = config.kafka.within(min(config.kafka.api_timeout_ms, patient))
        self._coordinator: Address | None = None
        seconds = self._kafka.request_timeout_ms / 1000
        self._joining = Line(seconds, is_held=True)
        self._speaking = Line(seconds)
        self._made: Future[tuple[Address, Connection]] | None = None
        self._made_for = self._joining

    # -- what the thread does ----------------------------------------------------------------

    @property
    def sockets(self) -> dict[int, int]:
        """What each socket is to be ready for, by its descriptor; see :class:`.Waker`."""
        found = [(line.fileno, line.events) for line in (self._joining, self._speaking)]
        return {fileno: events for fileno, events in found if fileno is not None}

    @property
    def seconds_until_due(self) -> float:
        """Seconds until an answer is overdue."""
        return min(self._joining.seconds_until_due, self._speaking.seconds_until_due)

    @property
    def is_quiet(self) -> bool:
        """True if no request that is answered at once is under way, or waits for its turn."""
        return self._speaking.is_free

    def take(self, ready: Collection[int]) -> None:
        """Take answers.

        Args:
            ready: Which of :attr:`sockets` are ready.

        Raises:
            OSError: After :meth:`forget`, another attempt may help.
            KafkaError: No attempt helps.
            KshareError: What takes an answer has raised it.
        """
        for line in (self._speaking, self._joining):
            line.take(ready)

    def send(self) -> None:
        """Send what was asked for and can be sent; connect if need be.

        Raises:
            OSError, KafkaError: As for :meth:`take`.
        """
        if self._made is not None and self._made.done():
            made, self._made = self._made, None
            self._coordinator, self._made_for.connection = made.result()
        for line in (self._speaking, self._joining):
            line.send()
            if line.connection is None and not line.is_free and self._made is None:
                self._made_for = line
                connect = partial(_connect, self._kafka, self._config.group, self._coordinator)
                self._made = begin(connect, f"kshare {self._config.group} connects", self._wake)

    def forget(self) -> None:
        """The coordinator may be another broker: find it again."""
        self._coordinator = None
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._give_up_connecting()
        self._joining.close()
        self._speaking.close()

    def stop_joining(self) -> None:
        """Wait for no answer to JoinGroup or SyncGroup any more."""
        if self._made_for is self._joining:
            self._give_up_connecting()
        self._joining.close()

    def _give_up_connecting(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            abandon(made, lambda found: found[1].close())

    # -- requests that brokers hold ----------------------------------------------------------

    def join(self, request: Join, answered: Answered) -> None:
        """Ask JoinGroup; what was asked before is not waited for any more."""
        if not self._joining.is_free:
            self.stop_joining()
        self._joining.ask(partial(self._join, request), answered)

    def _join(self, request: Join, connection: Connection) -> JoinGroupRequest:
        latest = connection.version(JoinGroupRequest)
        static = _SKIPPING_JOIN if latest == _SKIPPING_JOIN else _STATIC_JOIN
        protocol_class = JoinGroupRequest.JoinGroupRequestProtocol
        return JoinGroupRequest(
            **self._head(connection, JoinGroupRequest, static),
            session_timeout_ms=self._config.session_timeout_ms,
            rebalance_timeout_ms=self._config.max_poll_interval_ms,
            member_id=request.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                protocol_class(name=name, metadata=request.subscription)
                for name in request.protocols
            ],
        )

    def sync(self, request: Sync, answered: Answered) -> None:
        """Ask SyncGroup."""
        self._joining.ask(partial(self._sync, request), answered)

    def _sync(self, request: Sync, connection: Connection) -> SyncGroupRequest:
        assignment_class = SyncGroupRequest.SyncGroupRequestAssignment
        return SyncGroupRequest(
            **self._head(connection, SyncGroupRequest, _STATIC),
            generation_id=request.generation,
            member_id=request.member_id,
            assignments=[
                assignment_class(member_id=member_id, assignment=assignment)
                for member_id, assignment in request.assignments.items()
            ],
        )

    # -- requests that are answered at once --------------------------------------------------

    def heartbeat(self, request: Heartbeat, answered: Answered) -> None:
        """Say that the member is alive."""
        self._speaking.ask(partial(self._heartbeat, request), answered)

    def _heartbeat(self, request: Heartbeat, connection: Connection) -> HeartbeatRequest:
        return HeartbeatRequest(
            **self._head(connection, HeartbeatRequest, _STATIC),
            generation_id=request.generation,
            member_id=request.member_id,
        )

    def leave(self, member_id: str, answered: Answered) -> None:
        """Leave the group."""
        self._speaking.ask(
            lambda connection: LeaveGroupRequest(
                version=connection.version(LeaveGroupRequest),
                group_id=self._config.group,
                member_id=member_id,
            ),
            answered,
        )

    def commit(
        self, offsets: CommittedOffsets, member_id: str, generation: int, answered: Answered
    ) -> None:
        """Commit primary offsets as a member."""
        self._speaking.ask(
            lambda connection: commit_request(
                connection,
                self._config.group,
                offsets,
                member_id=member_id,
                generation=generation,
                instance_id=self._config.instance_id,
            ),
            answered,
        )

    def describe(self, answered: Callable[[list[bytes]], None]) -> None:
        """Ask what each member was sent by its leader; nothing if the broker does not say."""
        group = self._config.group
        self._speaking.ask(
            lambda connection: DescribeGroupsRequest(
                version=connection.version(DescribeGroupsRequest),
                groups=[group],
            ),
            lambda answer: answered(_assignments(answer.groups)),
        )

    def _head(self, connection: Connection, request: type[Any], static: int) -> dict[str, Any]:
        """The fields that all requests of a member begin with.

        Args:
            connection: Whom they are for.
            request: The request.
            static: The version that has a ``group.instance.id``; no higher one is spoken.
        """
        instance = self._config.instance_id
        version = connection.version(request, None if instance is None else static, static)
        head = {"version": version, "group_id": self._config.group}
        return head if version < static else {**head, "group_instance_id": instance}


def _connect(
    kafka: KafkaConfig, group: str, coordinator: Address | None
) -> tuple[Address, Connection]:
    found = find_coordinator(kafka, group) if coordinator is None else coordinator
    return found, Connection(*found, kafka)


def _assignments(groups: Iterable[Any]) -> list[bytes]:
    (group,) = groups
    return [bytes(member.member_assignment) for member in group.members]


class Line:
    """A connection, and what is asked on it: a request at a time. Another object connects it.

    ::

        asked --> waits for the connection, those before, and room --> sent --> answered | overdue

    One at a time: what TLS has decrypted does not make a socket readable.

    Args:
        seconds: Time limit of a request and its answer.
        is_held: Whether brokers hold requests: the limit is one of sending a request, and of the
            rest of an answer that has begun.

    Attributes:
        connection: The connection; None until it is made.
    """

    def __init__(self, seconds: float, *, is_held: bool = False) -> None:
        self.connection: Connection | None = None
        self._seconds = seconds
        self._is_held = is_held
        self._waiting: deque[tuple[Make, Answered]] = deque()
        self._sent: tuple[Any, Answered] | None = None
        self._rest = memoryview(b"")  # of it, for which there was no room
        self._due = float("inf")  # when it, or its answer, is overdue
        self._has_answered = False

    @property
    def is_free(self) -> bool:
        """True if nothing was asked that is not answered."""
        return self._sent is None and not self._waiting

    @property
    def fileno(self) -> int | None:
        """What becomes ready; None if nothing was sent."""
        return None if self._sent is None or self.connection is None else self.connection.fileno()

    @property
    def events(self) -> int:
        """What it is to be ready for: to take the rest of a request, or to give an answer."""
        return select.POLLOUT if self._rest else select.POLLIN

    @property
    def seconds_until_due(self) -> float:
        """Seconds until an answer is overdue."""
        return float("inf") if self._sent is None else max(self._due - time.monotonic(), 0.0)

    def ask(self, make: Make, answered: Answered) -> None:
        """Send a request as soon as it can be sent."""
        self._waiting.append((make, answered))

    def send(self) -> None:
        """Send what can be sent, as far as there is room for it.

        Raises:
            OSError, KafkaError: As :class:`.Connection`.
        """
        if self.connection is None:
            return
        if self._sent is None and self._waiting:
            if self._has_answered and not self.connection.idle:
                # Closed while nothing was asked, as services do after some minutes: not a failure
                # of the coordinator. What waits is sent on the next connection. A new one that is
                # closed has failed, and is paused for: sending says so.
                self._hang_up()
                return
            make, answered = self._waiting.popleft()
            request = make(self.connection)
            self._rest = self.connection.frame(request)
            self._sent = request, answered
            self._due = max(time.monotonic(), self.connection.throttled_until) + self._seconds
        if self._rest:
            self._rest = self.connection.send_ready(self._rest)
            if self._is_held and not self._rest:
                self._due = float("inf")

    def take(self, ready: Collection[int]) -> None:
        """Take an answer if it is there.

        Args:
            ready: Descriptors of the sockets that are ready.

        Raises:
            TimeoutError: It is overdue.
            OSError, KshareError: As :class:`.Connection`, or as what takes the answer.
        """
        if self._sent is None or self.connection is None:
            return
        request, answered = self._sent
        if self.fileno in ready and not self._rest:
            body = self.connection.receive_ready()
            if body is not None:
                self._sent, self._has_answered = None, True
                answered(self.connection.decoded(type(request), request.API_VERSION, body))
                return
            self._due = min(self._due, time.monotonic() + self._seconds)  # some of it has come
        if time.monotonic() > self._due:
            broker = self.connection.broker
            raise TimeoutError(f"broker {broker} did not answer within {self._seconds:g} s")

    def close(self) -> None:
        """Close the connection, and forget what was asked."""
        self._waiting.clear()
        self._sent, self._rest = None, memoryview(b"")
        self._hang_up()

    def _hang_up(self) -> None:
        connection, self.connection = self.connection, None
        self._has_answered = False
        if connection is not None:
            connection.close()
