"""``kshare warm``: compile the reader's kernels ahead of the first query, as for an image build.

Cost: some seconds; nothing, if they are there already.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

__all__ = ["add_to"]


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the command to the parser of the program."""
    warm = commands.add_parser(
        "warm",
        help="compile the reader's kernels now, not in the first query of a machine",
        description="Compile the reader's kernels, and keep them where tasks look for them: for "
        "the build of an image. The code fits every processor of the same architecture.",
    )
    warm.add_argument(
        "directory",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="keep them there; tasks need NUMBA_CACHE_DIR=DIR then (default: NUMBA_CACHE_DIR, or "
        "kshare's own folder, or the user's cache)",
    )
    warm.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    # Brings numpy, pyarrow and LLVM, which no other command needs.
    from kshare.wire.decode import compiled  # noqa: PLC0415

    try:
        path = compiled.warm(arguments.directory)
    except OSError as error:
        sys.stderr.write(f"kshare warm: the kernels cannot be kept: {error}\n")
        return 1
    sys.stdout.write(f"compiled: {path}\n")
    return 0
