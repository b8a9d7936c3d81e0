"""Connections of commands to Kafka: the options that all commands share.

Guarantees: what is given is checked by :func:`kshare.options.parse_options`, all faults at once,
before anything is contacted.
"""

import argparse
import getpass
from contextlib import closing
from pathlib import Path

from kshare.cli.output import complain
from kshare.errors import KshareError, UnknownTopicError
from kshare.kafka.cluster import Cluster
from kshare.kafka.listening import COMMAND_SECONDS, check_listening
from kshare.kafka.topics import INDIVIDUAL_COMMITS_TOPIC
from kshare.options import KafkaConfig, SourceOptions, Subscribe, parse_options

__all__ = [
    "is_given",
    "kafka_config",
    "log_topic",
    "needed_kafka_config",
    "parse_properties",
    "properties_of",
    "source_options",
    "user_name",
]

# Somebody sits and waits: not as long, nor as often, as a query that runs for months.
_PATIENCE = {"kafka.default.api.timeout.ms": "15000", "kafka.request.timeout.ms": "10000"}
_ONCE = {"fetchoffset.numretries": "1"}


def is_given(arguments: argparse.Namespace) -> bool:
    """True if any of the options was given."""
    return bool(arguments.bootstrap_servers or arguments.option or arguments.kafka_config)


def kafka_config(arguments: argparse.Namespace) -> KafkaConfig:
    """The connection options of a command, checked; as :func:`source_options` says.

    Raises:
        KafkaError: No bootstrap server listens.
    """
    kafka = source_options(arguments).kafka
    check_listening(kafka, COMMAND_SECONDS)
    return kafka


def needed_kafka_config(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace
) -> KafkaConfig:
    """As :func:`kafka_config`, of a command that does nothing without a cluster.

    Raises:
        SystemExit: None of the options was given (code 2).
    """
    if not is_given(arguments):
        parser.error("which cluster? Give --bootstrap-servers, or --kafka-config")
    return kafka_config(arguments)


def log_topic(arguments: argparse.Namespace, kafka: KafkaConfig) -> str:
    """The log of individual commits that a command is about.

    Raises:
        UnknownTopicError: It was named, and does not exist.
        KafkaError: The cluster did not answer, or refused.
    """
    if not arguments.log_topic:
        return INDIVIDUAL_COMMITS_TOPIC
    with closing(Cluster(kafka)) as cluster:
        try:
            cluster.partitions(Subscribe((arguments.log_topic,)))
        except UnknownTopicError as error:
            raise UnknownTopicError(
                f"argument --log-topic: {error}; wanted the individual.commit.topic of the group's "
                "members, who make it"
            ) from error
    return str(arguments.log_topic)


def source_options(arguments: argparse.Namespace, **more: str) -> SourceOptions:
    """The options of the command, checked. Warnings go to standard error.

    Args:
        arguments: Those of the command.
        more: Options of a reader, in lower case.

    Raises:
        KshareError: The file cannot be read.
        OptionsError: All faults of the options.
    """
    given = {}
    if arguments.kafka_config is not None:
        properties = properties_of(arguments.kafka_config)
        given.update({f"kafka.{name.lower()}": value for name, value in properties.items()})
    given.update({name.lower(): value for name, value in arguments.option})
    if arguments.bootstrap_servers:
        given["kafka.bootstrap.servers"] = arguments.bootstrap_servers
    if not {"kafka.default.api.timeout.ms", "kafka.request.timeout.ms"} & given.keys():
        given.update(_PATIENCE)
    # A source must name topics; a command asks for those it needs.
    parsed = parse_options({**given, **_ONCE, **more, "subscribe": "none"}, streaming=False)
    for warning in parsed.warnings:
        complain(f"warning: {warning}")
    return parsed.options


def user_name() -> str:
    """The user who runs the command, recorded with its effects; empty if unknown."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return ""


def parse_properties(text: str) -> dict[str, str]:
    r"""Java's ``.properties`` format, as ``java.util.Properties.load`` reads it.

    Args:
        text: The file; bytes read as ISO 8859-1, which is Java's rule too.

    Returns:
        Values by name; of a name that occurs twice, the last.

    Raises:
        KshareError: An escape ``\u`` is not followed by four hexadecimal digits.
    """
    from javaproperties import InvalidUEscapeError, loads  # noqa: PLC0415 - 60 ms

    try:
        properties = loads(text)
    except InvalidUEscapeError:  # its text may hold a piece of a password
        raise KshareError(r"a property has \u without four hexadecimal digits behind it") from None
    return {_text_of_java(name): _text_of_java(value) for name, value in properties.items()}


def _text_of_java(text: str) -> str:
    """Replace halves of surrogate pairs, which Java allows and UTF-8 does not."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def properties_of(file: Path, option: str = "--kafka-config") -> dict[str, str]:
    """The properties in a file.

    Args:
        file: The file.
        option: The option that names it.

    Raises:
        KshareError: It cannot be read.
    """
    try:
        text = file.read_text(encoding="latin-1")
    except OSError as error:
        raise KshareError(f"{option} {file}: {error.strerror}") from error
    return parse_properties(text)
