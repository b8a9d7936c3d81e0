"""Connections to a coordinator that answers when the test says so."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from kshare.group.membership import member_link as link_module
from kshare.kafka.protocol.apis import api_of

__all__ = ["SilentConnection", "silent_connections"]


@dataclass
class SilentConnection:
    """A connection of which the other side takes requests, and answers when the test says so."""

    broker: str = "one:1"
    throttled_until: float = 0.0
    room: int = 100  # for the bytes of a request, which are 100
    framed: list[Any] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)
    is_closed: bool = False
    answers: list[Any] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """Of the requests that were sent."""
        return [type(request).__name__ for request in self.sent]

    def version(
        self, request: type[Any], lowest: int | None = None, highest: int | None = None
    ) -> int:
        return api_of(request.API_KEY).highest if highest is None else highest

    def frame(self, request: Any) -> memoryview:
        self.framed.append(request)
        return memoryview(bytes(100))

    def send_ready(self, frame: memoryview) -> memoryview:
        if len(frame) > self.room:
            return frame[self.room :]
        self.sent.append(self.framed[-1])
        return frame[:0]

    def receive_ready(self) -> Any:
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def decoded(self, request: type[Any], version: int, body: Any) -> Any:
        return body

    @property
    def idle(self) -> bool:
        return not self.is_closed

    def fileno(self) -> int:
        return id(self)

    def close(self) -> None:
        self.is_closed = True


def silent_connections(monkeypatch: pytest.MonkeyPatch) -> list[SilentConnection]:
    """The connections of members, in the order in which they will be made."""
    connections: list[SilentConnection] = []

    def connect(*_: Any) -> Any:
        connections.append(SilentConnection())
        return ("one", 1), connections[-1]

    monkeypatch.setattr(link_module, "_connect", connect)
    return connections
