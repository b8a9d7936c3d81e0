"""``kshare warm``: say where the compiled kernels are; images had to compile them once.

Cost: none; some seconds in a source tree whose kernels have changed.
"""

import argparse
import sys
from pathlib import Path

from kshare.errors import KernelLibraryError
from kshare.wire.decode import kernel_library

__all__ = ["run"]


def run(_: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit code."""
    try:
        found = kernel_library.locate()
    except KernelLibraryError as error:
        sys.stderr.write(f"kshare warm: {error}\n")
        return 1
    where = found if isinstance(found, Path) else "in the archive that kshare is imported from"
    sys.stdout.write(f"nothing to do: kshare comes with its kernels compiled: {where}\n")
    if arguments.directory is not None:
        sys.stdout.write(f"{arguments.directory} is not needed, nor NUMBA_CACHE_DIR\n")
    return 0
