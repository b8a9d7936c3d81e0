"""The wheel carries the compiled kernels, for one platform and any version of Python."""

import platform
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["KernelsBuildHook"]

_HOME = "kshare/wire/decode"


class KernelsBuildHook(BuildHookInterface[Any]):
    """Compiles the kernels into a wheel, or into the source tree of an editable installation."""

    def dependencies(self) -> list[str]:
        """Return the compiler, with a linker (400 MB) for machines that have none."""
        return ["numba>=0.61", *(["ziglang>=0.14"] if shutil.which("ld") is None else [])]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the library. Only the standard library is imported here, and the builder's process.

        Args:
            version: "standard" or "editable".
            build_data: Gets the library's place in the wheel, and the wheel's tag.
        """
        sys.path.insert(0, self.root)
        try:
            from kshare.wire.decode import kernel_compiler, kernel_library  # noqa: PLC0415
        finally:
            sys.path.remove(self.root)
        name = kernel_library.file_name()
        if version == "editable":
            folders = [Path(self.root, _HOME)]
            if kernel_library.find(name, folders) is None:
                kernel_library.make(name, kernel_compiler.compile_library, folders)
            return
        self._folder = tempfile.TemporaryDirectory()
        library = Path(self._folder.name, name)
        library.write_bytes(kernel_library.sealed(name, kernel_compiler.compile_library()))
        build_data["force_include"][str(library)] = f"{_HOME}/{name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what the wheel has a copy of."""
        if version == "standard":
            self._folder.cleanup()


def _platform() -> str:
    """The wheel's platform: the library asks for nothing that the oldest glibc would not have."""
    machine = platform.machine()
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        return f"manylinux_2_17_{machine}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
