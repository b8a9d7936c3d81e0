"""The schema registry: schemas by id and by subject.

confluent-kafka's client speaks to it; what that needs is an extra, and is imported when a registry
is first asked.

Guarantees: an id that was asked for once is known in the process from then on, and on the host
(:mod:`kshare.formats.schema_files`); a registry that is down does not matter to it. What an earlier
query of the host was answered is taken, with a warning, if the registry does not answer now. An
answer that does not come, or is none of a registry's, is waited for as brokers are, with a warning
once that lasts; then an error names id or subject, and address. What the registry does not have is
an error at once. No text holds a secret.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

from kshare.core.bounded_json import count_of, text_of
from kshare.core.waits import Wait
from kshare.errors import SchemaRegistryError, UnknownSchemaError
from kshare.formats.apicurio import by_global_id
from kshare.formats.protobuf.files import Part
from kshare.formats.registry_client import (
    NO_JSON,
    NOT_FOUND_CODES,
    confluent,
    is_of_transport,
    is_unreadable,
    opened,
)
from kshare.formats.schema_files import (
    GlobalId,
    LastAnswers,
    RegisteredSchema,
    SchemaFiles,
    SchemaNumber,
)
from kshare.kafka.protocol.retry import Clock, RetryDeadline
from kshare.options import KafkaConfig
from kshare.options.typed_rows import RegistryConfig

__all__ = ["SchemaRegistry", "named_id", "registry_of"]

_log = logging.getLogger("kshare.formats")

_PASSING: Final = frozenset({404, 408, 425, 429, 500, 502, 503, 504})
"""Among them a 404 that is no registry's: a proxy's, whose registry is not there yet."""
_TEXT_MAX: Final = 200
_UNKNOWN_SECONDS: Final = 30.0
"""An id that was not there may be there later: registries have followers, which lag."""
_REFERENCES_MAX: Final = 100
_NEWEST_SECONDS: Final = 5.0
"""The newest version is asked for so long before the newest one of before is taken."""
_WENT_ON: Final = "%s: %s. What it said before is taken, which this host has kept: %s%s"
_NEWER: Final = ". It may have a newer one now, which is seen after a restart when it answers"
_FORMS: Final = {"PROTOBUF": "serialized"}
"""The form of schemas, where it is not the usual one: a file's descriptor in base64."""


class SchemaRegistry:
    """A schema registry, for one thread at a time.

    Args:
        config: How to reach it.
        kafka: Its ``default.api.timeout.ms`` and ``retry.backoff.*`` say how long an answer is
            waited for.
        files: Where schemas are kept for other processes; None: nowhere.
        clock: Source of time.
        last: What the registry has answered before; None: nobody knows.
    """

    def __init__(
        self,
        config: RegistryConfig,
        kafka: KafkaConfig,
        files: SchemaFiles | None = None,
        clock: Clock = time,
        last: LastAnswers | None = None,
    ) -> None:
        self._config = config
        self._last = last
        self._kafka = kafka
        self._files = files
        self._clock = clock
        self._known: dict[SchemaNumber, RegisteredSchema] = {}
        self._texts: dict[tuple[str, str, str], RegisteredSchema] = {}
        self._versions: dict[tuple[str, int | None, str], tuple[float, RegisteredSchema]] = {}
        self._unknown: dict[SchemaNumber, tuple[float, str, int | None]] = {}  # until when

    @property
    def url(self) -> str:
        """The address."""
        return self._config.url

    def by_id(
        self, number: SchemaNumber, kind: str = "AVRO", *, waits: bool = True
    ) -> RegisteredSchema:
        """The schema with an id.

        Args:
            number: The id, or the schema's GUID as 36 characters, or Apicurio's own id.
            kind: What is wanted: ``AVRO``, ``JSON`` or ``PROTOBUF``; it may be another.
            waits: Whether to ask again while the registry does not answer.

        Raises:
            UnknownSchemaError: The registry has none.
            SchemaRegistryError: It does not answer, or refuses.
        """
        known = self._known.get(number)
        if known is not None:
            return known
        self._raise_if_unknown(number)
        found = self._shared(number, kind, waits=waits)
        self._known[number] = found
        return found

    def of_subject(
        self,
        subject: str,
        version: int | None = None,
        kind: str = "AVRO",
        *,
        max_age: float = 0.0,
    ) -> RegisteredSchema:
        """A version of a subject.

        Args:
            subject: The subject.
            version: The version; None for the newest.
            kind: What is wanted: ``AVRO``, ``JSON`` or ``PROTOBUF``; it may be another.
            max_age: An answer that is no older, in seconds, is given again; 0: the registry is
                asked. So is it always for what it did not have.

        Raises:
            UnknownSchemaError: The registry has none.
            SchemaRegistryError: It does not answer, or refuses.
        """
        asked_at, before = self._versions.get((subject, version, kind), (0.0, None))
        if before is not None and self._clock.monotonic() - asked_at < max_age:
            return before
        form = _FORMS.get(kind)

        def ask(client: Any) -> RegisteredSchema:
            if version is None:
                answer = client.get_latest_version(subject, fmt=form)
            else:
                answer = client.get_version(subject, version, fmt=form)
            return RegisteredSchema(
                count_of(answer.schema_id),
                text_of(answer.schema.schema_type or "AVRO"),
                text_of(answer.schema.schema_str),
                subject,
                count_of(answer.version),
                self._references(client, answer.schema, form),
                answer.guid,
            )

        which = "the newest version" if version is None else f"version {version}"
        patience = _NEWEST_SECONDS if version is None else 0.0
        what = f"{which} of subject {subject}"
        found = self._ask(what, ask, f"{kind} {what}", subject=subject, patience=patience)
        self._versions[subject, version, kind] = (self._clock.monotonic(), found)
        self._known[found.id] = found
        if self._files is not None:
            self._files.put(found)
        return found

    def of_text(
        self,
        subject: str,
        kind: str,
        text: str,
        parts: Sequence[Part] = (),
        *,
        register: bool = False,
    ) -> RegisteredSchema:
        """A schema of a subject by its text; the registry is asked once.

        Args:
            subject: The subject.
            kind: ``AVRO``, ``JSON`` or ``PROTOBUF``.
            text: The schema.
            parts: Of a file of Protobuf, itself, behind the files that it imports. The subject of
                each of these is its name, as with Confluent's serializers.
            register: Whether subjects get schemas as new versions, if they do not have them.

        Raises:
            UnknownSchemaError: The subject does not have it.
            SchemaRegistryError: The registry does not answer, or refuses.
        """
        known = self._texts.get((subject, kind, text))
        if known is not None:
            return known

        def ask(client: Any) -> RegisteredSchema:
            from confluent_kafka.schema_registry import (  # noqa: PLC0415 - an extra
                Schema,
                SchemaReference,
            )

            known: dict[str, Any] = {}
            for part in parts[:-1]:
                needed = Schema(part.text, kind, [known[name] for name in part.imports])
                if register:
                    client.register_schema(part.name, needed)
                version = client.lookup_schema(part.name, needed).version
                known[part.name] = SchemaReference(part.name, part.name, version)
            needs = parts[-1].imports if parts else ()
            schema = Schema(text, kind, [known[name] for name in needs])
            if register:
                answer = client.register_schema_full_response(subject, schema)
            else:
                answer = client.lookup_schema(subject, schema)
            number = count_of(answer.schema_id)
            return RegisteredSchema(number, kind, text, subject, guid=answer.guid)

        texts = [kind, text, *(part.text for part in parts)]
        found = self._ask(
            f"such a schema of subject {subject}", ask, f"{subject} {texts}", subject=subject
        )
        self._texts[subject, kind, text] = found
        return found

    def _shared(self, number: SchemaNumber, kind: str, *, waits: bool) -> RegisteredSchema:
        """A schema that a process of this host has asked for, or else the registry's answer."""
        files = self._files
        if files is None:
            return self._of_registry(number, kind, waits=waits)
        found = files.get(number)
        if found is not None:
            return found
        with files.asking(number):
            found = files.get(number)
            if found is None:
                found = self._of_registry(number, kind, waits=waits)
                files.put(found)
        return found

    def _of_registry(self, number: SchemaNumber, kind: str, *, waits: bool) -> RegisteredSchema:
        form = _FORMS.get(kind)

        def ask(client: Any) -> RegisteredSchema:
            if isinstance(number, GlobalId):
                schema = by_global_id(client, self._config, number.number, kind)
            elif isinstance(number, int):
                schema = client.get_schema(number, fmt=form)
            else:
                schema = client.get_schema_by_guid(number, fmt=form)
            return RegisteredSchema(
                number,
                text_of(schema.schema_type or "AVRO"),
                text_of(schema.schema_str),
                references=self._references(client, schema, form),
            )

        schema_id = number if isinstance(number, int) else None
        try:
            what = f"schema {named_id(number)}"
            return self._ask(what, ask, f"{kind} {what}", schema_id=schema_id, waits=waits)
        except UnknownSchemaError as error:
            until = self._clock.monotonic() + _UNKNOWN_SECONDS
            self._unknown[number] = (until, str(error), schema_id)
            raise

    def _raise_if_unknown(self, number: SchemaNumber) -> None:
        """Raise an error, if the registry said not long ago that it has no such schema.

        A new one each time: with each raise an error's traceback gets more frames, which hold
        their batches.
        """
        now = self._clock.monotonic()
        if any(until <= now for until, _, _ in self._unknown.values()):
            self._unknown = {each: one for each, one in self._unknown.items() if now < one[0]}
        if number in self._unknown:
            _, text, schema_id = self._unknown[number]
            raise UnknownSchemaError(text, url=self.url, schema_id=schema_id)

    def _references(
        self, client: Any, schema: Any, form: str | None
    ) -> tuple[tuple[str, str], ...]:
        """The schemas that a schema refers to, each behind those that it needs itself."""
        found: dict[str, str] = {}

        def add(references: Iterable[Any], depth: int) -> None:
            for each in references or ():
                if each.name in found:
                    continue
                if depth > _REFERENCES_MAX or len(found) > _REFERENCES_MAX:
                    raise SchemaRegistryError(
                        f"schema registry {self.url}: more than {_REFERENCES_MAX} references",
                        url=self.url,
                    )
                referred = client.get_version(each.subject, each.version, fmt=form).schema
                add(referred.references, depth + 1)
                found[each.name] = text_of(referred.schema_str)

        add(schema.references, 0)
        return tuple(found.items())

    # -- asking -----------------------------------------------------------------------------

    def _ask(
        self,
        what: str,
        ask: Callable[[Any], RegisteredSchema],
        question: str,
        *,
        subject: str | None = None,
        schema_id: int | None = None,
        waits: bool = True,
        patience: float = 0.0,
    ) -> RegisteredSchema:
        """Ask until there is an answer, or the time is over; once, if nobody waits.

        Args:
            what: The question, as messages name it.
            ask: Asks it.
            question: The question, with all that it depends on.
            subject: The subject, for an error.
            schema_id: The id, for an error.
            waits: Whether to ask again.
            patience: How long to ask before the answer of before is taken, in seconds.
        """
        deadline = RetryDeadline.for_requests(self._kafka, self._clock)
        until = f"the registry answers, for {deadline.seconds:g} s at most"
        with opened(self._config) as client:
            while True:
                try:
                    answer = ask(client)
                except Exception as error:
                    cause, is_passing = self._judged(error, what, subject, schema_id)
                else:
                    deadline.reset()
                    if self._last is not None:
                        self._last.put(question, answer)
                    return answer
                deadline.start()
                state = f"schema registry {self.url} does not say {what}"
                waited = deadline.seconds - deadline.seconds_left
                if is_passing and (waited >= patience or deadline.expired):
                    before = None if self._last is None else self._last.get(question)
                    if before is not None:
                        deadline.over()
                        _log.warning(_WENT_ON, state, cause, before, _NEWER if patience else "")
                        return before
                if not is_passing or not waits or deadline.expired:
                    deadline.over()
                    after = f", after {deadline.seconds:g} s" if is_passing and waits else ""
                    raise SchemaRegistryError(
                        f"{state}{after}: {cause}",
                        url=self.url,
                        subject=subject,
                        schema_id=schema_id,
                    ) from None
                client.clear_caches()  # it keeps answers of which nothing can be made
                deadline.waits(_log, Wait(state, until, detail=cause))
                self._clock.sleep(deadline.next_pause())

    def _judged(
        self, error: Exception, what: str, subject: str | None, schema_id: int | None
    ) -> tuple[str, bool]:
        """The text of an error, and whether it may pass; what is no answer is raised again."""
        if isinstance(error, confluent().SchemaRegistryError):
            if error.error_code in NOT_FOUND_CODES:
                raise UnknownSchemaError(
                    f"schema registry {self.url} has no {what.removeprefix('the ')}: "
                    f"{error.error_message}",
                    url=self.url,
                    subject=subject,
                    schema_id=schema_id,
                ) from None
            status, text = error.http_status_code, str(error.error_message)[:_TEXT_MAX]
            return f"{text} (HTTP {status}, error code {error.error_code})", status in _PASSING
        if is_unreadable(error):
            return f"it {NO_JSON} of a registry", True  # but a login, or a proxy's page
        if not is_of_transport(error):
            raise error
        return str(error) or type(error).__name__, True


def named_id(number: SchemaNumber) -> str:
    """An id or GUID as messages name it."""
    if isinstance(number, GlobalId):
        return str(number)
    return f"id {number}" if isinstance(number, int) else f"GUID {number}"


@lru_cache(maxsize=8)
def registry_of(config: RegistryConfig, kafka: KafkaConfig, token: str | None) -> SchemaRegistry:
    """The registry of a query, in this process: what it has learned stays.

    Args:
        config: How to reach it.
        kafka: How long to wait for it.
        token: Of the ``load()``, by which its processes on this host share what they learn; None:
            no other process asks.
    """
    files = None if token is None else SchemaFiles(token)
    return SchemaRegistry(config, kafka, files, last=LastAnswers(config))
