"""Arguments that several commands have, and how a command finds the module that it runs."""

import argparse
from importlib import import_module
from pathlib import Path

from kshare.cli.output import Answer, show

__all__ = [
    "add_connection",
    "add_drop_damaged",
    "add_hex",
    "add_log_topic",
    "add_plot",
    "add_what_to_look_at",
    "interval_seconds",
    "nonempty_name",
    "set_connected",
    "set_module",
]


def set_module(parser: argparse.ArgumentParser, module: str) -> None:
    """Have a command run by the function ``run`` of a module, which is imported only then.

    It returns an :class:`~kshare.cli.output.Answer`, or the exit code if it prints as it goes.
    """

    def run(arguments: argparse.Namespace) -> int:
        answer: Answer | int = import_module(f"kshare.cli.{module}").run(parser, arguments)
        if isinstance(answer, int):
            return answer
        show(answer, is_json=arguments.json)
        return answer.code

    parser.set_defaults(run=run)


def set_connected(parser: argparse.ArgumentParser, module: str) -> None:
    """As :func:`set_module`, of a command that reaches Kafka."""
    add_connection(parser)
    set_module(parser, module)


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Add the options by which a command reaches Kafka."""
    group = parser.add_argument_group(
        "connection", "If an option is given in several of these ways, the first one counts."
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


def add_what_to_look_at(parser: argparse.ArgumentParser) -> None:
    """Add what `top` and `ui` look at, and how often."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--checkpoint", metavar="DIR", help="a query, by its checkpointLocation")
    what.add_argument(
        "--group", type=nonempty_name, metavar="G", help="a consumer group, by its id"
    )
    parser.add_argument(
        "--interval",
        type=interval_seconds,
        default=2.0,
        metavar="SECONDS",
        help="from one look to the next (default: 2)",
    )
    add_log_topic(parser)
    add_connection(parser)


def nonempty_name(text: str) -> str:
    """A name that is not empty."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; wanted a name (is a shell variable unset?)")
    return text


def interval_seconds(text: str) -> float:
    """A time from 0.1 s to an hour."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.1 <= number <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r}: wanted seconds, from 0.1 to 3600")
    return number


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.lower().startswith("kafka."):
        shown = name.split("=", 1)[0]  # never the value: it may be a password
        raise argparse.ArgumentTypeError(f"{shown!r}: wanted kafka.NAME=VALUE")
    return name, value


def add_hex(parser: argparse.ArgumentParser) -> None:
    """Add ``--hex``."""
    parser.add_argument(
        "--hex", action="store_true", help="keys are bytes in hexadecimal, such as 00ff"
    )


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Add ``--plot``."""
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw offsets x hash space into a .png or .svg (needs the extra: kshare[plot])",
    )


def add_drop_damaged(parser: argparse.ArgumentParser) -> None:
    """Add ``--drop-damaged``."""
    parser.add_argument(
        "--drop-damaged",
        action="store_true",
        help="before, delete the records of the topic that cannot be read, and no others",
    )


def add_log_topic(parser: argparse.ArgumentParser) -> None:
    """Add ``--log-topic``."""
    parser.add_argument(
        "--log-topic", help="the log of individual commits (individual.commit.topic)"
    )
