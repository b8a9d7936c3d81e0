"""``kshare park``, ``unpark`` and ``parked``: keys that wait while all others go on.

Guarantees: what is said to be parked is what the cluster holds when the command ends.

Cost: argparse; the rest is imported when a command runs.
"""

import argparse
import getpass
import json
import re
import sys
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kshare.cli.connection import add_connection, is_given, kafka_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from kshare.options import KafkaConfig

__all__ = ["add_to"]

_HEX: Final = re.compile("(?:[0-9a-fA-F]{2})*")


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the commands to the parser of the program."""
    park = commands.add_parser(
        "park",
        help="let all queries pass over keys; their records wait",
        description="Park keys of a topic: queries leave their records where they are, and go on "
        "with all others. Running queries know within 2 s, and a batch that runs is not changed. "
        "Records of a parked key are as mortal as others: retention deletes them.",
    )
    _add_keys(park)
    park.add_argument("--why", default="", metavar="TEXT", help="for those who find it parked")
    unpark = commands.add_parser(
        "unpark",
        help="let queries read parked keys again, from where they stand",
        description="Unpark keys of a topic: queries read them again, from their first record "
        "that was not processed.",
    )
    _add_keys(unpark)
    parked = commands.add_parser(
        "parked",
        help="the keys that are parked",
        description="List the keys that are parked, since when, by whom and why.",
    )
    parked.add_argument("--topic", help="only keys of this topic")
    parked.add_argument("--json", action="store_true", help="for programs")
    runs: dict[argparse.ArgumentParser, Callable[[KafkaConfig, argparse.Namespace], int]]
    runs = {park: _park, unpark: _unpark, parked: _parked}
    for parser, run in runs.items():
        add_connection(parser)
        parser.set_defaults(run=partial(_run, parser, run))


def _add_keys(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", required=True, help="the topic that the keys are of")
    parser.add_argument(
        "--hex", action="store_true", help="keys are bytes in hexadecimal, such as 00ff"
    )
    parser.add_argument("keys", nargs="+", metavar="KEY", help="a key; text is taken as UTF-8")


def _run(
    parser: argparse.ArgumentParser,
    run: "Callable[[KafkaConfig, argparse.Namespace], int]",
    arguments: argparse.Namespace,
) -> int:
    if not is_given(arguments):
        parser.error("which cluster? Give --bootstrap-servers, or --kafka-config")
    if getattr(arguments, "hex", False):
        wrong = [key for key in arguments.keys if not _HEX.fullmatch(key)]
        if wrong:
            parser.error(f"--hex: {wrong[0]!r} is not bytes in hexadecimal; wanted such as 00ff")
        arguments.keys = [bytes.fromhex(key) for key in arguments.keys]
    elif hasattr(arguments, "keys"):
        # What is not UTF-8 on the command line comes as it was typed.
        arguments.keys = [key.encode("utf-8", "surrogateescape") for key in arguments.keys]
    return run(kafka_config(arguments), arguments)


def _park(kafka: "KafkaConfig", arguments: argparse.Namespace) -> int:
    from kshare.cluster.cluster import Cluster  # noqa: PLC0415
    from kshare.cluster.parked_keys import ParkedKeys  # noqa: PLC0415
    from kshare.options import Subscribe  # noqa: PLC0415

    with closing(Cluster(kafka)) as cluster:
        cluster.partitions(Subscribe((arguments.topic,)))  # a misspelt one is an error
    with closing(ParkedKeys(kafka)) as parked:
        before = parked.parked()
        parked.park(arguments.topic, arguments.keys, by=_user(), why=arguments.why)
    known = {key for topic, key in before if topic == arguments.topic}
    _say(arguments, lambda key: "was parked already" if key in known else "parked")
    return 0


def _unpark(kafka: "KafkaConfig", arguments: argparse.Namespace) -> int:
    from kshare.cluster.parked_keys import ParkedKeys  # noqa: PLC0415

    with closing(ParkedKeys(kafka)) as parked:
        before = {key for topic, key in parked.parked() if topic == arguments.topic}
        parked.unpark(arguments.topic, arguments.keys)
    _say(arguments, lambda key: "unparked" if key in before else "was not parked")
    return 0


def _parked(kafka: "KafkaConfig", arguments: argparse.Namespace) -> int:
    from kshare.cli.show import parked_json, parked_text  # noqa: PLC0415
    from kshare.cluster.parked_keys import ParkedKeys  # noqa: PLC0415

    with closing(ParkedKeys(kafka)) as parked:
        found = {
            place: info
            for place, info in parked.parked().items()
            if arguments.topic in {None, place[0]}
        }
    if arguments.json:
        sys.stdout.write(json.dumps(parked_json(found), indent=2) + "\n")
    else:
        sys.stdout.write(parked_text(found))
    return 0


def _say(arguments: argparse.Namespace, became: "Callable[[bytes], str]") -> None:
    """Tell what became of each key."""
    from kshare.cli.show import show_key  # noqa: PLC0415

    for key in dict.fromkeys(arguments.keys):
        sys.stdout.write(f"{arguments.topic} {show_key(key)}: {became(key)}\n")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return ""
