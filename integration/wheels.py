"""The wheels of a release, one for each kind of machine, made on this one: ``make wheels``.

``python -m integration.wheels DIST`` builds them and looks at each: its list of files, its tag,
what pip takes on that machine, and the library in it, read by a package that knows the formats. It
prints one line a wheel. Needs the packages of the group ``wheels``, and a minute and a half of CPU
time.
"""

import argparse
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import zipfile
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kshare._version import __version__
from kshare.read.decode.kernel_library import file_name, sealed
from kshare.read.decode.kernels.targets import TARGETS, Target
from kshare.read.decode.layout import SIGNATURES

__all__ = ["Library", "WheelError", "build", "check", "examined"]

ROOT = Path(__file__).parents[1]
_HOME = "kshare/read/decode"
_FROM_LIBC = {"memcpy", "memmove", "memset", "bzero"}
_ARCHITECTURES = {
    "linux-x86_64": ("ELF", "X86_64"),
    "linux-aarch64": ("ELF", "AARCH64"),
    "darwin-x86_64": ("MachO", "X86_64"),
    "darwin-arm64": ("MachO", "ARM64"),
}
# What zig's linker exports of its own in every library for a Mac.
_OF_THE_LINKER = {"_mh_dylib_header", "__dso_handle"}


class WheelError(Exception):
    """A wheel is not as it has to be."""


@dataclass(frozen=True)
class Library:
    """What a shared library says of itself.

    Attributes:
        form: Its format, and the processor it is for.
        exports: The functions that others can call.
        imports: The functions that it calls and does not have.
        needs: The libraries that must be there.
        is_safe: Whether no memory is for code that can be written, the stack included.
        is_signed: Whether it has a signature that its bytes agree with; None: it has none.
        oldest: The oldest system that it is for, if it names one.
    """

    form: tuple[str, str]
    exports: set[str]
    imports: set[str]
    needs: set[str]
    is_safe: bool
    is_signed: bool | None
    oldest: tuple[int, ...] | None


def examined(data: bytes) -> Library:
    """Return what a library's file says."""
    import lief  # of the group ``wheels`` alone

    lief.logging.disable()  # it reports parts that no library has to have
    found: Any = lief.parse(list(data))
    if isinstance(found, lief.ELF.Binary):
        return _of_elf(found)
    if isinstance(found, lief.MachO.FatBinary):
        (found,) = found
    if isinstance(found, lief.MachO.Binary):
        return _of_mach_o(found, data)
    raise WheelError(f"the library is neither ELF nor Mach-O: {data[:4].hex()}")


def _of_elf(found: Any) -> Library:
    segments = {segment.type.name: int(segment.flags) for segment in found.segments}
    loaded = [int(s.flags) for s in found.segments if s.type.name == "LOAD"]
    can_write, can_run = 2, 1
    return Library(
        ("ELF", found.header.machine_type.name),
        {symbol.name for symbol in found.dynamic_symbols if symbol.exported},
        {s.name for s in found.dynamic_symbols if s.name and not s.exported},
        set(found.libraries),
        # Without the segment the stack is for code, too.
        not segments.get("GNU_STACK", can_run) & can_run
        and not any(flags & can_write and flags & can_run for flags in loaded),
        None,
        None,
    )


def _of_mach_o(found: Any, data: bytes) -> Library:
    exports = {s.name[1:] for s in found.symbols if s.has_export_info}
    imports = {s.name for s in found.symbols if s.category.name == "UNDEFINED"}
    needs = {command.name for command in found.libraries if command.command.name != "ID_DYLIB"}
    can_write, can_run = 2, 4
    protections = [segment.init_protection for segment in found.segments]
    return Library(
        ("MachO", found.header.cpu_type.name),
        exports - _OF_THE_LINKER,
        {name.removeprefix("_") for name in imports - {"dyld_stub_binder"}},
        needs,
        not any(bits & can_write and bits & can_run for bits in protections),
        _agrees(data, found.code_signature.data_offset) if found.has_code_signature else None,
        tuple(found.build_version.minos[:2]),
    )


def _agrees(data: bytes, at: int) -> bool:
    """Return whether the first code directory of a signature has the hashes of all pages before it.

    The format: ``cs_blobs.h`` of Apple's kernel; all numbers are big-endian.
    """
    magic, _, count = struct.unpack_from(">III", data, at)
    slots = [struct.unpack_from(">II", data, at + 12 + 8 * slot) for slot in range(count)]
    (directory,) = (at + offset for kind, offset in slots if kind == 0)
    head = struct.unpack_from(">9I4B", data, directory)
    hashes, pages, end = directory + head[4], head[7], head[8]
    size = 1 << head[12]
    if magic != 0xFADE0CC0 or head[0] != 0xFADE0C02 or end != at or pages != -(-end // size):
        return False
    return all(
        hashlib.sha256(data[page * size : min(end, (page + 1) * size)]).digest()
        == data[hashes + 32 * page : hashes + 32 * (page + 1)]
        for page in range(pages)
    )


def build(target: Target, folder: Path) -> Path:
    """Make the wheel for a machine, with the packages of this environment.

    Raises:
        WheelError: It cannot be made.
    """
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    environment = {**os.environ, "KSHARE_WHEEL_TARGET": target.name}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise WheelError(f"no wheel for {target.name}: {done.stdout}\n{done.stderr[-3000:]}")
    return folder / f"kshare-{__version__}-{target.tag}.whl"


def check(wheel: Path, target: Target) -> str:
    """Look at a wheel from all sides; return a line about it.

    Raises:
        WheelError: Something of it is not right.
    """
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    (metadata,) = {name.split("/")[0] for name in files if ".dist-info/" in name}
    _must(_record(files, metadata) == "", f"{wheel.name}: RECORD: {_record(files, metadata)}")
    lines = files[f"{metadata}/WHEEL"].decode().splitlines()
    tags = {line.partition(": ")[2] for line in lines if line.startswith("Tag: ")}
    wanted = {f"py3-none-{platform}" for platform in target.platforms}
    _must(tags == wanted, f"{wheel.name}: its tags are {tags}, not {wanted}")
    libraries = [name for name in files if name.startswith(f"{_HOME}/kernels-")]
    name = file_name(target.system, target.machine)
    _must(libraries == [f"{_HOME}/{name}"], f"{wheel.name} has {libraries}, not {name} alone")
    data = files[f"{_HOME}/{name}"]
    _must(sealed(name, data[:-32]) == data, f"{name} has no digest behind it")
    library = examined(data)
    _must_be_for(target, library, name)
    for platform in target.platforms:
        chosen = _chosen_by_pip(wheel.parent, platform)
        _must(chosen == wheel.name, f"on {platform} pip takes {chosen}, not {wheel.name}")
    signed = {True: "signed", False: "badly signed", None: "not signed"}[library.is_signed]
    owner = ", ".join(library.needs) or "the process"
    return (
        f"{wheel.name}: {wheel.stat().st_size:,} bytes; {name}: {len(data):,} bytes, "
        f"{' '.join(library.form)}, {signed}; has {', '.join(sorted(library.exports))}; "
        f"asks for {', '.join(sorted(library.imports))} of {owner}"
    )


def _must_be_for(target: Target, library: Library, name: str) -> None:
    """Raise an error unless a library is one for a machine, and does what the loader wants."""
    form = _ARCHITECTURES[target.name]
    is_mac = target.system == "darwin"
    _must(library.form == form, f"{name} is for {library.form}, not {form}")
    wanted = set(SIGNATURES)
    _must(library.exports == wanted, f"{name} exports {library.exports}, not {wanted}")
    others = library.imports - _FROM_LIBC
    _must(not others, f"{name} asks for {others}, which are not the C library's")
    # Who loads it on Linux has the C library; on a Mac a function is looked up in a named library.
    needs = {"/usr/lib/libSystem.B.dylib"} if is_mac else set[str]()
    _must(library.needs == needs, f"{name} needs {library.needs}, not {needs}")
    _must(library.is_safe, f"{name} has memory, or a stack, for code that can be written")
    # Processors of Apple's run nothing that is not signed; nobody signs for the others.
    signed = True if target.name == "darwin-arm64" else None
    _must(library.is_signed is signed, f"{name}: its signature is {library.is_signed}")
    oldest = (11, 0) if is_mac else None
    _must(library.oldest == oldest, f"{name} is for {library.oldest} on, not {oldest}")


def _record(files: dict[str, bytes], metadata: str) -> str:
    """Say what is wrong with a wheel's list of its files; nothing, if it is right."""
    record = f"{metadata}/RECORD"
    listed = dict(line.split(",", 1) for line in files[record].decode().splitlines())
    if listed.keys() != files.keys():
        return f"differs in {', '.join(sorted(listed.keys() ^ files.keys()))}"
    for name, data in files.items():
        digest = urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        if listed[name] != ("," if name == record else f"sha256={digest},{len(data)}"):
            return f"{name} is not {listed[name]}"
    return ""


def _chosen_by_pip(folder: Path, platform: str) -> str:
    """Return the wheel that pip installs on a platform; it fetches and installs nothing."""
    with tempfile.TemporaryDirectory() as target:
        report = Path(target, "report.json")
        command = [
            *(sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps"),
            *("--no-index", "--find-links", str(folder), "--only-binary=:all:"),
            *("--platform", platform, "--target", target, "--report", str(report)),
            f"kshare=={__version__}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise WheelError(f"pip finds no wheel for {platform}: {done.stderr.strip()}")
        (chosen,) = json.loads(report.read_text())["install"]
        return str(chosen["download_info"]["url"]).rpartition("/")[2]


def _must(holds: bool, fault: str) -> None:
    if not holds:
        raise WheelError(fault)


def main() -> None:
    """Build and check the wheels that the command line asks for; all of them, if it names none."""
    names = [target.name for target in TARGETS]
    parser = argparse.ArgumentParser(description="Build and check kshare's wheels.")
    parser.add_argument("folder", type=Path, help="where they go")
    parser.add_argument("targets", nargs="*", help=f"some of {', '.join(names)}")
    arguments = parser.parse_args()
    targets = [target for target in TARGETS if target.name in (arguments.targets or names)]
    try:
        made = [(build(target, arguments.folder), target) for target in targets]
        for wheel, target in made:
            print(check(wheel, target))
    except WheelError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
