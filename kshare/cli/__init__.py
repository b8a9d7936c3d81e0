"""The command line: ``kshare demo``, ``park``, ``status``, ``checkpoint``, ``assign``, ...

Cost: help and version need nothing but argparse; a command imports its module when it runs.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from typing import Final

from kshare.cli.arguments import add_commands
from kshare.cli.client_arguments import add_client_commands
from kshare.cli.help import GroupedHelp, ShowVersions, add_examples
from kshare.errors import KshareError

__all__ = ["main"]

_ENTRY_POINTS: Final = "kshare.commands"
"""Commands that other packages bring, such as the demo, which needs Spark: ``add_to`` functions."""

_OUTPUT_CLOSED: Final = 141
"""The exit code that a shell reports for a program that SIGPIPE has ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code.

    Args:
        argv: The arguments after the program's name; ``None``: those of this process.

    Raises:
        SystemExit: Help or version was asked for, or the arguments are wrong (code 2).
    """
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output has seen enough, as in `kshare ... | head`.
        _discard_output()
        return _OUTPUT_CLOSED


def _run(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    except KshareError as error:
        sys.stderr.write(f"kshare {arguments.command}: {error}\n")
        return 1


def _discard_output() -> None:
    """Let the interpreter flush what is left when it exits, and nothing complain of the pipe."""
    with suppress(OSError, ValueError):  # ValueError: a stand-in without a file descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kshare",
        description="Many key-ordered Spark tasks on one Kafka partition.",
        epilog="kshare COMMAND --help has examples.",
        formatter_class=GroupedHelp,
    )
    parser.add_argument(
        "--version",
        action=ShowVersions,
        nargs=0,
        help="show kshare's version and those of what it stands on, and exit",
    )
    commands = parser.add_subparsers(
        required=True, metavar="COMMAND", dest="command", title="commands"
    )
    for plugin in entry_points(group=_ENTRY_POINTS):
        plugin.load()(commands)
    add_commands(commands)
    add_client_commands(commands)
    add_examples(commands.choices)
    return parser
