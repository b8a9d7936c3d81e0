"""A look at a schema registry: each question is asked once, and a refusal is an answer.

Guarantee: nothing is registered or changed. No text holds a secret.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kshare.errors import OptionsError
from kshare.formats.apicurio import root_of
from kshare.formats.registry_client import (
    NO_JSON,
    UNREADABLE,
    confluent,
    is_of_transport,
    is_unreadable,
    opened,
)
from kshare.options.frozen import Properties
from kshare.options.typed_rows import RegistryConfig

__all__ = ["Answer", "RegistryProbe"]

_TEXT_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of a registry.

    Attributes:
        value: The answer; None if there is none.
        fault: Why there is none; empty if there is one.
        status: The HTTP status of a refusal; None if nothing was refused.
    """

    value: Any = None
    fault: str = ""
    status: int | None = None

    @property
    def is_refusal(self) -> bool:
        """True if the login is wrong, or lacks a right."""
        return self.status in {401, 403}


class RegistryProbe:
    """Asks a registry, each question once.

    Args:
        config: How to reach it.
    """

    def __init__(self, config: RegistryConfig) -> None:
        self._config = config

    @property
    def url(self) -> str:
        """The address."""
        return self._config.url

    def ask(self, question: Callable[[Any], Any]) -> Answer:
        """The answer to a question.

        Args:
            question: Takes confluent-kafka's client, and asks it.

        Raises:
            OptionsError: The client cannot be made: certificates, functions, or it is not there.
        """
        with opened(self._config) as client:
            try:
                return Answer(question(client))
            except confluent().SchemaRegistryError as error:
                text = str(error.error_message)[:_TEXT_MAX]
                return Answer(
                    fault=f"HTTP {error.http_status_code}: {text}", status=error.http_status_code
                )
            except OptionsError:
                raise
            except Exception as error:
                if is_of_transport(error):
                    return Answer(fault=str(error) or type(error).__name__)
                if isinstance(error, UNREADABLE) or is_unreadable(error):
                    return Answer(fault=NO_JSON)
                raise

    def latest(self, subject: str) -> Answer:
        """The newest version of a subject."""
        return self.ask(lambda client: client.get_latest_version(subject))

    def get(self, path: str) -> Answer:
        """The JSON at a path of the registry's address."""
        # The client has no public method for what is not of Confluent's API.
        return self.ask(lambda client: client._rest_client.get(path))  # noqa: SLF001

    def at_root(self) -> "RegistryProbe":
        """The same server without the path of the address."""
        properties = {**self._config.properties, "url": root_of(self._config)}
        return RegistryProbe(RegistryConfig(Properties(properties)))
