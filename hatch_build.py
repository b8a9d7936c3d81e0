"""The wheel carries the compiled kernels, for one platform and any version of Python.

It is for this machine, or for the one that ``KSHARE_WHEEL_TARGET`` names: one of those of
``kshare/read/decode/kernels/targets.py``, such as ``darwin-arm64``. ``make wheels`` makes them all.
"""

import importlib
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["KernelsBuildHook"]

_HOME = "kshare/read/decode"


class KernelsBuildHook(BuildHookInterface[Any]):
    """Compiles the kernels into a wheel, or into the source tree of an editable installation."""

    def dependencies(self) -> list[str]:
        """Return the compiler, with a linker where the machine's own does not do.

        A Mac's never does: pyproject.toml says that, by a marker.
        """
        targets = self._module("kernels.targets")
        is_local = self._target() in (None, targets.here())
        return ["numba>=0.61", *([] if is_local and shutil.which("ld") else [targets.ZIG])]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the library. Only the standard library is imported here, and the builder's process.

        Args:
            version: "standard" or "editable".
            build_data: Gets the library's place in the wheel, and the wheel's tag.
        """
        compiler, library = self._module("kernel_compiler"), self._module("kernel_library")
        if version == "editable":
            name, folders = library.file_name(), [Path(self.root, _HOME)]
            if library.find(name, folders) is None:
                library.make(name, compiler.compile_library, folders)
            return
        target = self._target() or self._module("kernels.targets").here()
        name = library.file_name(target.system, target.machine)
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name, name)
        file.write_bytes(library.sealed(name, compiler.compile_library(target.name)))
        build_data["force_include"][str(file)] = f"{_HOME}/{name}"
        build_data["pure_python"] = False
        is_stated = self._target() is not None
        build_data["tag"] = target.tag if is_stated or _is_usual() else f"py3-none-{_own()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what the wheel has a copy of."""
        if version == "standard":
            self._folder.cleanup()

    def _target(self) -> Any:
        """The machine that the environment names; None: it names none."""
        name = os.environ.get("KSHARE_WHEEL_TARGET")
        return self._module("kernels.targets").named(name) if name else None

    def _module(self, name: str) -> Any:
        """A module of the sources that are built, whatever kshare is installed."""
        sys.path.insert(0, self.root)
        try:
            return importlib.import_module(f"kshare.read.decode.{name}")
        finally:
            sys.path.remove(self.root)


def _is_usual() -> bool:
    """Return whether this machine is one that the target's tag is for: not so with musl."""
    return sys.platform != "linux" or platform.libc_ver()[0] == "glibc"


def _own() -> str:
    """The platform of this machine alone."""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
