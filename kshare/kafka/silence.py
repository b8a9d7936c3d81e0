"""A cluster that does not answer: when it is looked at, and what then is known.

Cost: :mod:`kshare.kafka.diagnosis` and the protocol are imported when they are first asked.
"""

from typing import Final, Protocol

from kshare.errors import AuthenticationError, KafkaError
from kshare.kafka.protocol.retry import Clock
from kshare.options import KafkaConfig

__all__ = ["Diagnosis", "Silence", "wire_diagnosis"]

# Both together are < 30 s.
_DIAGNOSIS_AFTER_SECONDS: Final = 10.0
_DIAGNOSIS_SECONDS: Final = 15.0


class Diagnosis(Protocol):
    """Looks at servers: :mod:`kshare.kafka.diagnosis`."""

    def connection_fault(self, kafka: KafkaConfig, seconds: float) -> KafkaError | None:
        """The reason why a cluster does not answer, if waiting does not repair it."""

    def login_fault(self, kafka: KafkaConfig) -> AuthenticationError | None:
        """The reason why a login or a certificate is refused."""


def wire_diagnosis() -> Diagnosis:
    """The module that asks servers by our own protocol."""
    from kshare.kafka import diagnosis  # noqa: PLC0415 - kafka-python's classes: 0.2 s

    return diagnosis


class Silence:
    """The time for which a cluster has not answered a client.

    Args:
        kafka: How to reach the cluster.
        clock: Source of time.
        diagnosis: Looks at servers; None: our own protocol. It is asked once for each client.

    Attributes:
        ended: The cluster has answered.
        unreachable: Whether the cluster is known to be out of reach, no matter how long one waits.
    """

    def __init__(self, kafka: KafkaConfig, clock: Clock, diagnosis: Diagnosis | None) -> None:
        self._kafka = kafka
        self._clock = clock
        self._diagnosis = diagnosis
        self.ended = False
        # When the client was opened; None once it is known that waiting makes sense.
        self._since: float | None = None
        self.unreachable = False

    def begin(self) -> None:
        """Note that a client was opened; one in another's place does not start the time again."""
        if self._since is None and not self.ended:
            self._since = self._clock.monotonic()

    def stop(self) -> None:
        """Note that nobody asks any more."""
        self._since = None

    def end(self) -> None:
        """Note that the cluster has answered: from now on, silence counts as temporary."""
        self.ended = True
        self._since = None

    def fault(self) -> KafkaError | None:
        """The reason why the cluster never answered, if waiting does not repair it."""
        now = self._clock.monotonic()
        if self._since is None or now - self._since < _DIAGNOSIS_AFTER_SECONDS:
            return None
        self._since = None
        fault = self._looks().connection_fault(self._kafka, _DIAGNOSIS_SECONDS)
        self.unreachable |= fault is not None
        return fault

    def login_fault(self) -> AuthenticationError | None:
        """The reason why a login or a certificate is refused."""
        return self._looks().login_fault(self._kafka)

    def _looks(self) -> Diagnosis:
        return self._diagnosis or wire_diagnosis()
