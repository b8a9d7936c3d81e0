"""The command line: ``kshare demo``, ``park``, ``parked``, ``status``, ``assign``, ...

Cost: help and version need nothing but argparse; a command imports its module when it runs.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Final

from kshare._version import __version__
from kshare.cli import assign, keys, status
from kshare.errors import KshareError

__all__ = ["main"]

_ENTRY_POINTS: Final = "kshare.commands"
"""Commands that other packages bring, such as the demo, which needs Spark: ``add_to`` functions."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code.

    Args:
        argv: The arguments behind the program's name; ``None``: those of this process.

    Raises:
        SystemExit: Help or version was asked for, or the arguments are wrong (code 2).
    """
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kshare", description="Many key-ordered Spark tasks on one Kafka partition."
    )
    parser.add_argument("--version", action="version", version=f"kshare {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for plugin in entry_points(group=_ENTRY_POINTS):
        plugin.load()(commands)
    for module in (keys, status, assign):
        module.add_to(commands)
    return parser
