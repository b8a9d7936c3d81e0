"""Schemas by Apicurio's own ids, which its API that is Confluent's does not know.

Apicurio's serializers of 2.x write *global ids*: each version of a subject has one. The id that its
API of Confluent's gives is of a content: two subjects with the same schema have one of these, and
two global ids. So the numbers part, and one may be another schema's here than there.
"""

from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from kshare.core.bounded_json import list_of
from kshare.formats.registry_client import SCHEMA_NOT_FOUND
from kshare.options.typed_rows import RegistryConfig

__all__ = ["by_global_id", "root_of"]

_PATH: Final = "apis/registry/v2/ids/globalIds"  # 3.x serves it, too
_OK: Final = 200
_NOT_FOUND: Final = 404
_TEXT_MAX: Final = 200


def root_of(config: RegistryConfig) -> str:
    """The address of the first server without its path."""
    parts = urlsplit(config.url.split(",", 1)[0].strip())
    return urlunsplit((parts.scheme, parts.netloc, "", "", ""))


def by_global_id(client: Any, config: RegistryConfig, number: int, kind: str) -> Any:
    """The schema with a global id, as confluent-kafka's ``Schema``.

    Args:
        client: confluent-kafka's client, by whose connection, login and errors it is asked.
        config: How the client reaches the registry.
        number: The global id.
        kind: The kind that is wanted: the answer does not say its own.

    Raises:
        SchemaRegistryError: The client's: the registry has none, or refuses.
    """
    from confluent_kafka.schema_registry import (  # noqa: PLC0415 - an extra
        Schema,
        SchemaReference,
    )

    root = root_of(config)
    text = _asked(client, root, f"{_PATH}/{number}").text
    references = [
        SchemaReference(each["name"], each["artifactId"], int(each["version"]))
        for each in list_of(_asked(client, root, f"{_PATH}/{number}/references").json())
    ]
    return Schema(text, kind, references)


def _asked(client: Any, root: str, path: str) -> Any:
    """The answer at a path of the server's address."""
    from confluent_kafka.schema_registry import SchemaRegistryError  # noqa: PLC0415 - an extra

    # The client has no public method for what is not of Confluent's API.
    rest = client._rest_client  # noqa: SLF001
    headers: dict[str, str] = {}
    if rest.bearer_auth_credentials_source:
        rest.handle_bearer_auth(headers)
    answer = rest.send_http_request(root, path, "GET", headers)
    if answer.status_code != _OK:
        code = SCHEMA_NOT_FOUND if _lacks_it(answer) else -1
        raise SchemaRegistryError(answer.status_code, code, answer.text[:_TEXT_MAX])
    return answer


def _lacks_it(answer: Any) -> bool:
    """True if the registry says that it has no such id, in contrast to a proxy's 404."""
    if answer.status_code != _NOT_FOUND:
        return False
    try:
        found = answer.json()
    except ValueError:
        return False
    # The name is that of its exception; this one is of a path that the server does not know.
    is_own = isinstance(found, dict) and "error_code" in found and "name" in found
    return is_own and found["name"] != "NotFoundException"
