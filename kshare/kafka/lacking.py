"""Requests that a service lacks: refused by name before anything is read, or done without."""

import logging
from typing import Any, Final

from confluent_kafka import KafkaError as RdKafkaError

from kshare.errors import AuthenticationError, OptionsError
from kshare.kafka.client import code_of
from kshare.kafka.protocol.apis import Feature, lacks
from kshare.kafka.protocol.broker_pool import search_brokers
from kshare.kafka.protocol.connection import Connection
from kshare.options import KafkaConfig

__all__ = ["Idempotence", "check_transactions", "missing_apis", "offers"]

_log = logging.getLogger(__name__)

_UNSUPPORTED: Final = RdKafkaError._UNSUPPORTED_FEATURE  # noqa: SLF001


def check_transactions(kafka: KafkaConfig, option: str, *, feature: Feature, of: str) -> None:
    """Refuse an option that needs transactions where brokers have none.

    Nothing is refused if no broker answers: whoever goes on asks again, and says so.

    Args:
        kafka: How to reach the cluster.
        option: The option, and what is to be done without it: ``exactlyOnce=true: leave it out``.
        feature: What it is for.
        of: Which options these are, for the error.

    Raises:
        AuthenticationError: A broker refused the login.
        OptionsError: Brokers lack what it needs.
        KafkaError: A broker refused the connection for good.
    """
    broker, missing = missing_apis(kafka, feature)
    if missing:
        lack = f"It needs transactions, and broker {broker} does not know {', '.join(missing)}"
        raise OptionsError([f"{option}. {lack}"], of=of)


def missing_apis(kafka: KafkaConfig, feature: Feature) -> tuple[str, tuple[str, ...]]:
    """The requests that a feature needs and brokers do not speak.

    Returns:
        A broker that was asked, and the names; none if no broker answers.

    Raises:
        AuthenticationError: A broker refused the login.
        KafkaError: A broker refused the connection for good.
    """
    broker, offered = offers(kafka)
    found = lacks(offered) if broker else []
    return broker, tuple(each.api.name for each in found if feature in each.api.needed_by)


def offers(kafka: KafkaConfig) -> tuple[str, dict[int, tuple[int, int]]]:
    """The versions of each request that a broker speaks, by the requests' numbers.

    Returns:
        Host and port of the broker, empty if none answers, and the versions.

    Raises:
        AuthenticationError: A broker refused the login.
        KafkaError: A broker refused the connection for good.
    """
    search = search_brokers(kafka)
    for address in search:
        try:
            connection = Connection(*address, kafka)
        except (AuthenticationError, OSError) as error:
            search.failed(address, error)
        else:
            try:
                return connection.broker, dict(connection.api_versions)
            finally:
                connection.close()
    return "", {}


class Idempotence:
    """The settings of a producer of our own: idempotent, unless brokers do not know InitProducerId.

    Without, one request is under way at a time, so a record that is sent again comes behind none
    that was appended later. It may be there twice. What that does to a group's log is said in
    ``docs/design/groups.md``: facts and claims stay right, and a record may be delivered again.

    Args:
        what: What is written, for the log.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_on = True

    def settings(self) -> dict[str, Any]:
        """The settings of librdkafka."""
        if self._is_on:
            return {"acks": "all", "enable.idempotence": True}
        return {
            "acks": "all",
            "enable.idempotence": False,
            "max.in.flight.requests.per.connection": 1,
        }

    def ended(self, error: object) -> None:
        """A producer has ended by a fatal error: the next one may do without idempotence.

        Args:
            error: That of librdkafka.
        """
        if self._is_on and code_of(error) == _UNSUPPORTED:
            self._is_on = False
            _log.warning(
                "%s are written without idempotence, as the brokers do not know InitProducerId: "
                "after a fault of the network a record may be written twice",
                self._what,
            )
