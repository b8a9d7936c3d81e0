"""From the kernels' source to a shared library, in a process of its own.

Cost: half a minute of CPU time, in two processes of 200 MB each; most of it is numba's.
"""

import os
import platform
import subprocess
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from kshare.errors import KernelLibraryError
from kshare.start_folder import python_module

__all__ = ["compile_library", "compiler"]

_ROOT = Path(__file__).parents[3]
_BUILD = "kshare.read.decode.kernels.build"


def compiler(name: str) -> Callable[[], bytes]:
    """Return what makes the library of a name.

    Raises:
        KernelLibraryError: Numba is not installed.
    """
    if find_spec("numba") is None and (_ROOT / "hatch_build.py").exists():
        raise KernelLibraryError(
            f"there are no compiled kernels: {_ROOT} is a clone of kshare that is not built, and "
            "Python imports kshare from there; no other kshare on its path has those of these "
            f"sources ({name}). Build it (pip install -e {_ROOT}), or start in another folder, so "
            "that the installed kshare is imported"
        )
    if find_spec("numba") is None:
        raise KernelLibraryError(
            f"there are no compiled kernels for this machine ({platform.machine()}) in "
            f"{Path(__file__).parent}: wanted {name}, whole and of these sources. Install kshare's "
            "wheel for this platform anew (pip install --force-reinstall --no-deps kshare), or let "
            "kshare compile them here: pip install 'kshare[compile]'"
        )
    return compile_library


def compile_library(target: str | None = None) -> bytes:
    """Compile and link the kernels, for any processor of an architecture.

    Args:
        target: One of :mod:`kshare.read.decode.kernels.targets`; None: this machine.

    Raises:
        KernelLibraryError: The compiler or the linker fails.
    """
    # Numba optimises for the processor of this machine otherwise.
    environment = {**os.environ, "NUMBA_CPU_NAME": "generic"}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "kernels.so"
        command = [*python_module(_BUILD), str(output), *([target] if target else [])]
        done = subprocess.run(  # noqa: S603 - our own module
            command, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise KernelLibraryError(f"the kernels cannot be compiled: {done.stderr.strip()}")
        return output.read_bytes()
