"""``kshare`` as a program: an interrupt ends it with one line, also while it imports.

Cost: nothing beside what :mod:`kshare.cli` imports.
"""

import sys

__all__ = ["main"]

_INTERRUPTED = 130
"""The exit code that a shell reports for a program that SIGINT has ended."""


def main() -> int:
    """Run a command with the arguments of this process, and return its exit code.

    Raises:
        SystemExit: Help or version was asked for, or the arguments are wrong (code 2).
    """
    try:
        from kshare.cli import main as run  # noqa: PLC0415 - takes a while, and may be interrupted

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return _INTERRUPTED
