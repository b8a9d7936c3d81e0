"""From the kernels' source to a shared library, in a process of its own.

Cost: 5 s and 200 MB, most of them numba's.
"""

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from kshare.errors import KernelLibraryError

__all__ = ["compile_library", "compiler"]

_ROOT = Path(__file__).parents[3]
_BUILD = """
import runpy, sys
# Not by PYTHONPATH: where pip builds a wheel, it drops what the environment has for its own.
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("kshare.wire.decode.kernels.build", run_name="__main__")
"""


def compiler(name: str) -> Callable[[], bytes]:
    """Return what makes the library of a name.

    Raises:
        KernelLibraryError: Numba is not installed.
    """
    if find_spec("numba") is None:
        raise KernelLibraryError(
            f"there are no compiled kernels for this machine ({platform.machine()}) in "
            f"{Path(__file__).parent}: wanted {name}, whole and of these sources. Install kshare's "
            "wheel for this platform anew (pip install --force-reinstall --no-deps kshare), or let "
            "kshare compile them here: pip install 'kshare[compile]'"
        )
    return compile_library


def compile_library() -> bytes:
    """Compile and link the kernels, for any processor of this architecture.

    Raises:
        KernelLibraryError: The compiler or the linker fails.
    """
    # Numba optimises for the processor of this machine otherwise.
    environment = {**os.environ, "NUMBA_CPU_NAME": "generic"}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "kernels.so"
        # -P: another source tree may be the current directory.
        command = [sys.executable, "-P", "-c", _BUILD, str(_ROOT), str(output)]
        done = subprocess.run(  # noqa: S603 - our own module
            command, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise KernelLibraryError(f"the kernels cannot be compiled: {done.stderr.strip()}")
        return output.read_bytes()
