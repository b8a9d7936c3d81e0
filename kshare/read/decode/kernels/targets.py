"""The machines that kernels are made for: what a compiler, a linker and pip call each of them.

Any of them can be made on any other. A processor that is not in the table gets its own kernels
where kshare is installed from source, on Linux.
"""

import platform
import sys
from dataclasses import dataclass
from typing import Final

__all__ = ["TARGETS", "ZIG", "Target", "here", "link_commands", "named"]

ZIG: Final = "ziglang>=0.14"
"""The package whose linkers make what the machine's own ``ld`` cannot: 100 MB to fetch, 400 MB
installed."""


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of machine.

    Attributes:
        system: ``sys.platform`` there.
        machine: ``platform.machine()`` there.
        triple: What LLVM calls it. A Mac's has the oldest macOS, which the library then names.
        cpu: The processor that LLVM may count on: the oldest of this kind.
        zig: What zig calls it.
        platforms: The platforms of a wheel, as pip calls them.
    """

    system: str
    machine: str
    triple: str
    cpu: str
    zig: str
    platforms: tuple[str, ...]

    @property
    def name(self) -> str:
        """What kshare calls it."""
        return f"{self.system}-{self.machine}"

    @property
    def tag(self) -> str:
        """The tag of its wheel, which is for any Python 3."""
        return f"py3-none-{'.'.join(self.platforms)}"


def _linux(machine: str, cpu: str) -> Target:
    # The library asks for no symbol that the oldest glibc would not have. pip before 20.3 knows
    # the older name of the same platform alone.
    platforms = (f"manylinux_2_17_{machine}", f"manylinux2014_{machine}")
    triple, zig = f"{machine}-unknown-linux-gnu", f"{machine}-linux-gnu.2.17"
    return Target("linux", machine, triple, cpu, zig, platforms)


def _mac(machine: str, cpu: str, zig: str) -> Target:
    # macOS 11 is the first for these processors of Apple's, and older than what PySpark needs.
    triple, tag = f"{machine}-apple-macosx11.0.0", f"macosx_11_0_{machine}"
    return Target("darwin", machine, triple, cpu, f"{zig}-macos.11.0", (tag,))


TARGETS: Final = (
    _linux("x86_64", "x86-64"),
    _linux("aarch64", "generic"),
    _mac("arm64", "apple-m1", "aarch64"),
    _mac("x86_64", "x86-64", "x86_64"),
)
"""The machines that have a wheel."""


def named(name: str) -> Target:
    """Return the target of a name.

    Raises:
        ValueError: There is none.
    """
    for target in TARGETS:
        if target.name == name:
            return target
    names = ", ".join(target.name for target in TARGETS)
    raise ValueError(f"there are no kernels for {name!r}; wanted one of {names}")


def here(system: str = sys.platform, machine: str | None = None) -> Target:
    """Return the target that is this machine.

    Args:
        system: ``sys.platform``.
        machine: ``platform.machine()``; None: this one's.
    """
    machine = platform.machine() if machine is None else machine
    if system == "linux" and all(target.machine != machine for target in TARGETS):
        return _linux(machine, "generic")
    return named(f"{system}-{machine}")


def link_commands(target: Target, ld: str | None, zig: list[str] | None) -> list[list[str]]:
    """Return the commands that link an object file for a target, the best first.

    The names of the output and of the object file follow.

    Args:
        target: The machine.
        ld: This machine's linker, if it has one and the target is this machine.
        zig: The command of zig, if it is installed.
    """
    if target.system == "darwin":
        # Apple's ld is of no use: it has other options, and comes with 3 GB of developers' tools.
        # An arm64 Mac loads only what is signed; zig does that.
        name = "-Wl,-install_name,@rpath/kshare-kernels"
        return [[*zig, "cc", "-target", target.zig, "-shared", "-s", name, "-o"]] if zig else []
    # An executable stack is what ld assumes of an object file that does not say.
    options = ["-shared", "--strip-all", "-z", "noexecstack", "-o"]
    linkers = [*([[ld]] if ld else []), *([[*zig, "ld.lld"]] if zig else [])]
    return [[*linker, *options] for linker in linkers]
