"""``kshare warm``: compile the reader's kernels ahead of the first query, as for an image build.

Cost: some seconds; nothing, if they are there already.
"""

import argparse
import sys

from kshare.wire.decode import compiled

__all__ = ["run"]


def run(_: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit code."""
    try:
        path = compiled.warm(arguments.directory)
    except OSError as error:
        sys.stderr.write(f"kshare warm: the kernels cannot be kept: {error}\n")
        return 1
    sys.stdout.write(f"compiled: {path}\n")
    return 0
