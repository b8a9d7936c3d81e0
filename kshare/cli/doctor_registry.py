"""The part of ``kshare doctor`` that looks at a schema registry.

Guarantees: nothing is registered or changed. What is refused is a finding, and ends no other check;
a registry that does not answer at all ends the look. No secret is shown.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kshare.cli.connection import properties_of
from kshare.cli.findings import Finding
from kshare.cli.output import counted
from kshare.errors import OptionsError
from kshare.formats.registry_probe import Answer, RegistryProbe
from kshare.options.raw import Faults, RawOptions
from kshare.options.registry_table import PREFIX
from kshare.options.row_formats import TypedRowsParser
from kshare.options.row_names import row_option
from kshare.options.typed_rows import RegistryConfig

__all__ = ["examine_registry", "registry_config"]

_NOT_FOUND: Final = 404
_LOOKED_AT_MAX: Final = 20
"""Subjects that are looked at for one of Avro and one of Protobuf."""
_LOGIN: Final = (
    "give basic.auth.user.info=user:password, or bearer.auth.*, in --registry-config, and grant it "
    "reading"
)


def registry_config(url: str | None, file: Path | None) -> RegistryConfig:
    """The connection to a registry, checked.

    Args:
        url: Its address; None: the file has it.
        file: Properties, with or without ``schema.registry.`` in front.

    Raises:
        OptionsError: Something is wrong; all of it is listed.
        KshareError: The file cannot be read.
    """
    given = {} if file is None else properties_of(file, "--registry-config")
    given = {_option(name): value for name, value in given.items()}
    if url is not None:
        given[f"{PREFIX}url"] = url
    faults = Faults()
    config = TypedRowsParser(RawOptions(given, faults)).registry()
    faults.raise_if_any()
    if config is None:
        raise OptionsError([f"{PREFIX}url: must be specified: give --registry"])
    return config


def _option(name: str) -> str:
    option = row_option(name)
    return option if option is not None else f"{PREFIX}{name}"


@dataclass(slots=True)
class _Seen:
    """Facts that the checks have learned, for the verdicts.

    Attributes:
        subject: A subject with a schema that can be looked at.
        latest: Its newest version.
        protobuf: The id of a schema of Protobuf.
        by_id: Whether schemas are found by their ids; None: that could not be tried.
        mode: Whether it takes new schemas; empty if it does not say.
        may_not: Why nothing can be registered; empty if nothing is known to be in the way.
    """

    subject: str = ""
    latest: Any = None
    protobuf: int | None = None
    by_id: bool | None = None
    mode: str = ""
    may_not: str = ""


def examine_registry(config: RegistryConfig, topic: str | None) -> Iterator[Finding]:
    """Reach a registry, and look at what it has and allows.

    Args:
        config: How to reach it.
        topic: A topic whose records have its schemas; None for none.
    """
    probe, seen = RegistryProbe(config), _Seen()
    try:
        subjects = probe.ask(lambda client: client.get_subjects())
        if subjects.fault or not _is_list(subjects.value):
            yield _unreached(probe, subjects)
            return
        yield Finding("registry", "green", f"{probe.url} answers: {_product(probe)}")
        yield Finding("subjects", "green", counted(len(subjects.value), "subject"))
        if topic is not None:
            yield from _of_topic(probe, topic, set(subjects.value))
        _choose(probe, subjects.value, topic, seen)
        yield _by_id(probe, seen)
        yield _serialized(probe, seen)
        yield _mode(probe, seen)
        yield _compatibility(probe, topic, set(subjects.value))
        yield _registering(probe, seen)
    except OptionsError as error:  # the client cannot be made
        yield Finding("registry", "red", "; ".join(error.problems))
        return
    yield from _verdicts(seen)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _unreached(probe: RegistryProbe, answer: Answer) -> Finding:
    """The finding of a look that ends at once: no server, no login, or no registry."""
    text = f"{probe.url}: {answer.fault or 'answers, but not with a list of subjects'}"
    if answer.is_refusal:
        return Finding("registry", "red", text, _LOGIN)
    if answer.status is None and ("SSL" in text or "certificate" in text.lower()):
        remedy = (
            "give ssl.ca.location, the authority that signed its certificate, in "
            "--registry-config, and use a host name that the certificate has"
        )
        return Finding("registry", "red", text, remedy)
    if answer.status is not None and answer.status >= 500:
        return Finding("registry", "red", text, "look at the registry's own log; ask again later")
    if answer.status is not None or "answers" in text:
        remedy = (
            "this is no schema registry's address: Confluent's and Karapace's have no path, "
            "Apicurio's ends with /apis/ccompat/v7"
        )
        return Finding("registry", "red", text, remedy)
    return Finding("registry", "red", text, "start it there, or give its address")


def _product(probe: RegistryProbe) -> str:
    """The product that answers, by what it says of itself."""
    said = probe.get("v1/metadata/version").value
    if isinstance(said, Mapping) and "version" in said and "commitId" in said:
        return f"Confluent Schema Registry {said['version']}"
    root = probe.at_root()
    for path in ("apis/registry/v3/system/info", "apis/registry/v2/system/info"):
        said = root.get(path).value
        if isinstance(said, Mapping) and "version" in said:
            return f"{said.get('name', 'Apicurio Registry')} {said['version']}"
    health = probe.get("_health").value
    if isinstance(health, Mapping) and "schema_registry_ready" in str(health):
        return "Karapace"
    return "a registry that does not say which"


def _of_topic(probe: RegistryProbe, topic: str, subjects: set[str]) -> Iterator[Finding]:
    for column in ("key", "value"):
        subject = f"{topic}-{column}"
        check = f"subject {subject}"
        if subject not in subjects:
            if column == "value":
                remedy = f"name another one with {column}Subject, or give {column}Schema"
                yield Finding(check, "yellow", "is not there", remedy)
            continue
        latest = probe.latest(subject)
        if latest.fault:
            yield Finding(
                check, "yellow", f"cannot be read: {latest.fault}", f"grant reading {subject}"
            )
            continue
        found = latest.value
        kind = (found.schema.schema_type or "AVRO").lower()
        text = f"version {found.version} is id {found.schema_id}: {column}Format={kind}"
        yield Finding(check, "green", text)


def _choose(probe: RegistryProbe, subjects: list[str], topic: str | None, seen: _Seen) -> None:
    """Find a schema to look at, and one of Protobuf."""
    first = [name for name in (f"{topic}-value", f"{topic}-key") if name in subjects]
    for subject in [*first, *(each for each in subjects if each not in first)][:_LOOKED_AT_MAX]:
        latest = probe.latest(subject).value
        if latest is None:
            continue
        if seen.latest is None:
            seen.subject, seen.latest = subject, latest
        if latest.schema.schema_type == "PROTOBUF":
            seen.protobuf = latest.schema_id
            return


def _by_id(probe: RegistryProbe, seen: _Seen) -> Finding:
    check = "schemas by id"
    if seen.latest is None:
        return Finding(check, "green", "not tried: no subject has a schema that can be read")
    number = seen.latest.schema_id
    found = probe.ask(lambda client: client.get_schema(number))
    seen.by_id = not found.fault
    if found.fault:
        text = f"id {number} of {seen.subject} is not given: {found.fault}"
        return Finding(check, "red", text, _LOGIN if found.is_refusal else "")
    return Finding(check, "green", f"id {number} of {seen.subject} is found")


def _serialized(probe: RegistryProbe, seen: _Seen) -> Finding:
    check = "format=serialized"
    if seen.protobuf is None:
        return Finding(check, "green", "not tried: no schema of Protobuf was found")
    number = seen.protobuf
    found = probe.ask(lambda client: client.get_schema(number, fmt="serialized"))
    if found.fault:
        text = f"id {number} is not given so: {found.fault}. Touches valueFormat=protobuf"
        return Finding(check, "yellow", text, _LOGIN if found.is_refusal else "")
    if _is_base64(found.value.schema_str):
        return Finding(check, "green", f"id {number} is given as a descriptor")
    text = (
        f"id {number} is given as a text, which valueFormat=protobuf reads, too, except editions "
        "and groups"
    )
    return Finding(check, "green", text)


def _is_base64(text: str | None) -> bool:
    try:
        return bool(base64.b64decode(text or "", validate=True))
    except (binascii.Error, ValueError):
        return False


def _mode(probe: RegistryProbe, seen: _Seen) -> Finding:
    answer = probe.ask(lambda client: client.get_global_mode())
    if answer.status == _NOT_FOUND:  # Apicurio's API of Confluent's, of 2.x
        return Finding("mode", "green", "not known: this registry has no such call")
    if answer.fault or not isinstance(answer.value, str):
        return Finding("mode", "yellow", f"is not said: {answer.fault or 'no text'}")
    seen.mode = answer.value
    if answer.value != "READWRITE":
        seen.may_not = f"its mode is {answer.value}"
        remedy = "register schemas elsewhere, and leave out autoRegister"
        return Finding("mode", "yellow", f"{answer.value}: takes no new schemas", remedy)
    return Finding("mode", "green", answer.value)


def _compatibility(probe: RegistryProbe, topic: str | None, subjects: set[str]) -> Finding:
    """The level of the topic's values, and whether it is the subject's own or that of all."""
    check, subject = "compatibility", f"{topic}-value"
    of_all = probe.ask(lambda client: client.get_compatibility())
    answer, whose = of_all, "of all subjects that have none of their own"
    if subject in subjects:
        own = probe.ask(lambda client: client.get_compatibility(subject))
        # Confluent's says 404 of a subject without a level; others give it that of all.
        if own.status != _NOT_FOUND and (own.fault or own.value != of_all.value):
            answer, whose = own, f"of {subject} itself"
        elif own.status == _NOT_FOUND:
            whose = f"of all subjects, also of {subject}, which has none of its own"
        else:
            whose = f"of {subject}, as of all subjects"
    if answer.fault or not isinstance(answer.value, str):
        return Finding(check, "yellow", f"is not said: {answer.fault or 'no text'}")
    if answer.value == "NONE":
        text = (
            f"NONE, {whose}: a writer may register a schema that readers of the older ones cannot "
            "read"
        )
        remedy = "set BACKWARD or FULL; records of such a schema are bad records"
        return Finding(check, "yellow", text, remedy)
    return Finding(check, "green", f"{answer.value}, {whose}")


def _registering(probe: RegistryProbe, seen: _Seen) -> Finding:
    """Ask what is in the way of a new schema, as far as asking shows it."""
    check = "registering"
    if seen.may_not:
        return Finding(check, "yellow", f"is not possible: {seen.may_not}")
    if seen.latest is None:
        return Finding(check, "green", "not tried: there is no schema to check")
    answer = probe.ask(
        lambda client: client.test_compatibility(seen.subject, seen.latest.schema, "latest")
    )
    if answer.is_refusal:
        seen.may_not = f"a check of {seen.subject} is refused ({answer.fault})"
        remedy = f"grant writing to {seen.subject}, where a sink is to register"
        return Finding(check, "yellow", f"is not allowed: {seen.may_not}", remedy)
    if answer.fault:
        return Finding(check, "yellow", f"a check of {seen.subject} fails: {answer.fault}")
    text = f"a check of {seen.subject} passes; whether the login may write shows when it does"
    return Finding(check, "green", text)


def _verdicts(seen: _Seen) -> Iterator[Finding]:
    """The features of kshare, by what was found."""
    check = "typed rows"
    if seen.by_id is False:
        text = "valueFormat=avro and protobuf do not work: their records name schemas by id"
        yield Finding(check, "red", text, "give the login reading of schemas by id")
    elif seen.by_id is None:
        yield Finding(check, "green", "nothing is known to be in the way")
    else:
        yield Finding(check, "green", "works (source, consume_batch, read_slice)")
    check = "autoRegister"
    if seen.may_not:
        text = f"does not work: {seen.may_not}. Sinks that look schemas up work"
        yield Finding(check, "yellow", text, "register schemas by other means")
    else:
        said = "" if seen.mode else ", and the registry does not say its mode"
        yield Finding(check, "green", f"nothing is known to be in the way{said}")
