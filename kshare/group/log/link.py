"""The ways to a group's log as it was found, and which of their faults last."""

from dataclasses import dataclass
from typing import Final

from kshare.core.progress import TopicPartition
from kshare.errors import AuthenticationError, AuthorizationError, KafkaError
from kshare.group.log.group_reader import GroupReader
from kshare.group.log.tail import LogTail
from kshare.group.log.topic import LogWriter
from kshare.wire.protocol.error_codes import Kind

__all__ = ["LASTING", "LogLink"]

LASTING: Final = (AuthenticationError, AuthorizationError)
"""Errors that no other attempt changes."""


@dataclass(slots=True)
class LogLink:
    """The log as it was found, and the ways to it.

    Attributes:
        partition: The partition of the group's log.
        topic_id: Id of its topic; empty if brokers give none.
        tail: Reads it.
        writer: Appends to it.
        reader: Takes the group's records.
        is_sure: Whether there was no fault since the topic was found.
        denied: Why nothing may be written to it; None if it may, as far as it is known.
        truncated: Why it is lost, if its topic is the same; empty as long as it is not.
    """

    partition: TopicPartition
    topic_id: str
    tail: LogTail
    writer: LogWriter
    reader: GroupReader
    is_sure: bool = True
    denied: AuthorizationError | None = None
    truncated: str = ""

    def not_taken(self, error: KafkaError, kind: Kind) -> None:
        """Brokers have not taken a record: the topic may be another one, unless that passes.

        Raises:
            AuthenticationError: No other attempt helps.
        """
        if isinstance(error, AuthenticationError):
            raise error
        if isinstance(error, AuthorizationError):
            self.denied = error
        else:
            self.is_sure &= kind is Kind.TRANSIENT

    def close(self) -> None:
        """Close the connections."""
        self.tail.close()
        self.writer.close()
