"""How a command reaches Kafka: the options that all commands share.

Law: what is given is checked by :func:`kshare.options.parse_options`, all faults at once, before
anything is contacted. Cost: argparse and re; the rest is imported when a command runs.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kshare.errors import KshareError

if TYPE_CHECKING:
    from kshare.options import KafkaConfig

__all__ = ["add_connection", "is_given", "kafka_config", "parse_properties"]

# As java.util.Properties reads them: white space is space, tab and form feed.
_CONTINUED: Final = re.compile(r"(?:^|[^\\])(?:\\\\)*\\$")
_ENTRY: Final = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

# Somebody sits and waits: not as long, nor as often, as a query that runs for months.
_PATIENCE = {"kafka.default.api.timeout.ms": "15000", "kafka.request.timeout.ms": "10000"}
_ONCE = {"fetchoffset.numretries": "1"}


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser of a command."""
    group = parser.add_argument_group(
        "connection", "What is given further up wins over what is given further down."
    )
    group.add_argument(
        "--bootstrap-servers", metavar="HOST:PORT,...", help="one broker of the cluster, or more"
    )
    group.add_argument(
        "--option",
        action="append",
        type=_option,
        default=[],
        metavar="kafka.NAME=VALUE",
        help="an option of the source, such as kafka.security.protocol=SSL; may be repeated",
    )
    group.add_argument(
        "--kafka-config",
        type=Path,
        metavar="FILE",
        help="properties of Kafka's Java client, as Kafka's own tools take them "
        "(--command-config): the place for passwords",
    )


def is_given(arguments: argparse.Namespace) -> bool:
    """Whether any of the options was given."""
    return bool(arguments.bootstrap_servers or arguments.option or arguments.kafka_config)


def kafka_config(arguments: argparse.Namespace) -> "KafkaConfig":
    """The options of the command, checked. Warnings go to standard error.

    Raises:
        KshareError: the file cannot be read.
        OptionsError: all faults of the options.
    """
    from kshare.options import parse_options  # noqa: PLC0415 - help needs none of it

    given = {}
    if arguments.kafka_config is not None:
        found = parse_properties(_text(arguments.kafka_config))
        given.update({f"kafka.{name.lower()}": value for name, value in found.items()})
    given.update({name.lower(): value for name, value in arguments.option})
    if arguments.bootstrap_servers:
        given["kafka.bootstrap.servers"] = arguments.bootstrap_servers
    if not {"kafka.default.api.timeout.ms", "kafka.request.timeout.ms"} & given.keys():
        given.update(_PATIENCE)
    # A source must name topics; a command asks for those it needs.
    parsed = parse_options({**given, **_ONCE, "subscribe": "none"}, streaming=False)
    for warning in parsed.warnings:
        sys.stderr.write(f"warning: {warning}\n")
    return parsed.options.kafka


def parse_properties(text: str) -> dict[str, str]:
    r"""Java's ``.properties`` format, as ``java.util.Properties.load`` reads it.

    Args:
        text: the file; bytes read as ISO 8859-1, which is Java's rule too.

    Returns:
        Values by name; of a name that occurs twice, the last.

    Raises:
        KshareError: an escape ``\u`` is not followed by four hexadecimal digits.
    """
    found = {}
    lines = iter(re.split(r"\r\n|\r|\n", text))
    for raw in lines:
        line = raw.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        while _CONTINUED.search(line):
            line = line[:-1] + next(lines, "").lstrip(" \t\f")
        entry = _ENTRY.match(line)
        assert entry is not None, "every text begins with an entry, if an empty one"
        name, value = map(_unescaped, entry.groups())
        found[name] = value
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="latin-1")
    except OSError as error:
        raise KshareError(f"--kafka-config {file}: {error.strerror}") from error


def _unescaped(text: str) -> str:
    plain = _ESCAPE.sub(_character, text)
    # Java's characters are halves of UTF-16: two escapes may be one character.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _character(found: re.Match[str]) -> str:
    escape = found[1]
    if escape == "u":
        raise KshareError(r"a property has \u without four hexadecimal digits behind it")
    if len(escape) > 1:
        return chr(int(escape[1:], 16))
    return _ESCAPED.get(escape, escape)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.lower().startswith("kafka."):
        shown = name.split("=", 1)[0]  # never the value: it may be a password
        raise argparse.ArgumentTypeError(f"{shown!r}: wanted kafka.NAME=VALUE")
    return name, value
