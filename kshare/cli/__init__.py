"""The command line: ``kshare demo``, ``park``, ``status``, ``checkpoint``, ``assign``, ...

Cost: help and version need argparse and the metadata of packages; a command imports its module when
it runs.
"""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from typing import Any, Final

from kshare._version import __version__
from kshare.cli.arguments import add_commands
from kshare.cli.output import complain, say
from kshare.errors import KshareError
from kshare.log_format import PrintableFormatter

__all__ = ["EXAMPLES", "GroupedHelp", "ShowVersions", "add_examples", "main"]

_ENTRY_POINTS: Final = "kshare.commands"
"""Commands that other packages bring, such as the demo, which needs Spark: ``add_to`` functions."""
_OUTPUT_CLOSED: Final = 141
"""The exit code that a shell reports for a program that SIGPIPE has ended."""
_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "to begin with": ("demo", "broker", "doctor"),
    "as it runs": ("top", "ui"),
    "of a query": ("status", "park", "unpark", "parked", "checkpoint", "ledger"),
    "of a consumer group": ("groups", "owners", "offsets", "replay", "policy"),
    "of a task assignor": ("assign",),
}
_AT: Final = "--bootstrap-servers localhost:9092"
EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "demo": ("kshare demo", "kshare demo --group", "kshare demo --handlers"),
    "broker": ("kshare broker", "kshare broker --port 9093"),
    "doctor": (
        "kshare doctor",
        f"kshare doctor --topic orders {_AT}",
        f"kshare doctor --feature groups --feature exactly-once {_AT}",
    ),
    "status": (
        "kshare status --checkpoint /data/orders-checkpoint",
        f"kshare status --checkpoint /data/orders-checkpoint --slowest {_AT}",
    ),
    "park": (f"kshare park --topic orders --why 'bad JSON' {_AT} customer-7",),
    "unpark": (f"kshare unpark --topic orders {_AT} customer-7",),
    "parked": (f"kshare parked {_AT}",),
    "replay": (
        f"kshare replay --from orders.dlq --dry-run {_AT}",
        f"kshare replay --from orders.dlq {_AT} customer-7",
    ),
    "checkpoint": ("kshare checkpoint drop-ranges /data/orders-checkpoint",),
    "ledger": (f"kshare ledger show --query 6f9c0c2e-3b1a-4d7e-9a55-0d8f6a1c2b3e {_AT}",),
    "groups": (f"kshare groups {_AT}", f"kshare groups --group billing {_AT}"),
    "owners": (f"kshare owners --group billing --topic orders --key customer-7 {_AT}",),
    "offsets": (
        f"kshare offsets --group billing {_AT}",
        f"kshare offsets reset --group billing --to earliest --dry-run {_AT}",
    ),
    "top": (
        f"kshare top --checkpoint /data/orders-checkpoint {_AT}",
        f"kshare top --group billing --once --sort lag {_AT}",
    ),
    "ui": (f"kshare ui --checkpoint /data/orders-checkpoint {_AT}",),
    "policy": (
        f"kshare policy list {_AT}",
        f"kshare policy set accept.range.fetch false --topic orders {_AT}",
    ),
    "assign": ("kshare assign --explain situations.jsonl",),
}
"""Command lines that work, by command."""


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
    parser = _parser()
    if not (sys.argv[1:] if argv is None else argv):
        parser.print_help(sys.stderr)
        return 2
    arguments = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        with _printable_log(), _quiet_client(arguments):
            return run(arguments)
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    except KshareError as error:
        complain(f"kshare {arguments.command}: {error}")
        return 1


@contextmanager
def _printable_log() -> Iterator[None]:
    """Show what Python would of the log, unless logging is set up; others forge no lines of it."""
    log = logging.getLogger("kshare")
    if log.hasHandlers():
        yield
        return
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(PrintableFormatter())
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


@contextmanager
def _quiet_client(arguments: argparse.Namespace) -> Iterator[None]:
    """Keep librdkafka's lines back: a command ends with an error that says as much."""
    log = logging.getLogger("kshare.client")  # by name: its module brings confluent-kafka
    level = log.level
    if hasattr(arguments, "bootstrap_servers"):
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


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
    add_examples(commands.choices)
    return parser


class _Examples(argparse.HelpFormatter):
    """Leaves the lines of examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example") else super()._fill_text(text, width, indent)


class GroupedHelp(argparse.HelpFormatter):
    """Lists the commands in groups."""

    def add_argument(self, action: argparse.Action) -> None:
        """Add an argument to the section; of the commands, a section for each group."""
        if not isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - has no public name
            super().add_argument(action)
            return
        commands = {each.dest: each for each in action._get_subactions()}  # noqa: SLF001 - as above
        for heading, names in _GROUPS.items():
            self.start_section(heading)
            self.add_arguments([commands.pop(name) for name in names if name in commands])
            self.end_section()
        self.start_section("others")
        self.add_arguments(commands.values())
        self.end_section()


def add_examples(commands: Mapping[str, argparse.ArgumentParser]) -> None:
    """Give each command its examples."""
    for name, lines in EXAMPLES.items():
        if name in commands:
            heading = "example" if len(lines) == 1 else "examples"
            commands[name].epilog = "\n  ".join([f"{heading}:", *lines])
            commands[name].formatter_class = _Examples


class ShowVersions(argparse.Action):
    """``--version``: kshare's own, on a line of its own, and those of what it stands on."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        """Print them, and end the program."""
        say(f"kshare {__version__}")
        say(f"Python {'.'.join(map(str, sys.version_info[:3]))}")
        for name in _requirements():
            try:
                say(f"{name} {version(name)}")
            except PackageNotFoundError:
                say(f"{name}: not installed")
        parser.exit()


def _requirements() -> list[str]:
    """The packages that kshare needs in any case, by name."""
    stated = requires("kshare") or []
    names = (each.partition(";")[0] for each in stated if "extra ==" not in each)
    return sorted(_name(each) for each in names)


def _name(requirement: str) -> str:
    end = next((at for at, c in enumerate(requirement) if c in " <>=!~["), len(requirement))
    return requirement[:end]
