"""The shared library of compiled code: where it is, whether it is the right one, and who makes it.

It comes with the wheel; an editable installation has it beside this module. Its name has the
system, the architecture and a digest of the kernels' sources; its last bytes are a digest of name
and contents.

Guarantees: a library that is cut short, damaged, or made for another processor or from other
sources is never loaded; neither is one outside of Python's path that another user could have
written: its digest is a checksum, which anybody can make. In a clone that nobody has built, that of
another kshare on the path is taken, if it is of these sources. Where it is missing (a developer has
changed a kernel; the platform has no wheel) and numba is installed, it is made: processes that
start at once make it once, and the others wait for it; one that is killed meanwhile blocks nobody,
since the operating system drops its lock.

Cost: 0.5 ms to find and load it; half a minute of CPU time to make it, in processes of
its own.
"""

import ctypes
import hashlib
import logging
import os
import pkgutil
import platform
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from kshare.operating_system import OperatingSystem, this_system

__all__ = ["directories", "elsewhere", "file_name", "find", "load", "locate", "make", "sealed"]

_log = logging.getLogger(__name__)

_PACKAGE: Final = "kshare.read.decode"
_SOURCES: Final = (
    *("avro_step.py", "json_kind.py", "layout.py", "message_table.py", "node_kind.py"),
    *("pattern_step.py", "status.py", "kernels/avro.py", "kernels/avro_values.py"),
    *("kernels/batch_heads.py", "kernels/binary.py", "kernels/build.py"),
    *("kernels/json.py", "kernels/json_numbers.py", "kernels/json_patterns.py"),
    *(
        "kernels/json_text.py",
        "kernels/json_times.py",
        "kernels/json_values.py",
        "kernels/message_values.py",
    ),
    *("kernels/messages.py", "kernels/native.py", "kernels/output.py"),
    *("kernels/protobuf_wire.py", "kernels/scan.py", "kernels/targets.py", "kernels/text.py"),
    *("kernels/variant.py", "kernels/variant_keys.py", "kernels/variant_values.py"),
    "variant_kind.py",
)
_DIGEST_BYTES: Final = 32
_WAIT_SECONDS: Final = 600.0  # for another process that makes the code, on a machine that is busy
_POLL_SECONDS: Final = 0.05
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def load(system: OperatingSystem | None = None) -> ctypes.CDLL:
    """Load the library; see :func:`locate`.

    Args:
        system: What the operating system has; by default, that of this process.
    """
    found, system = locate(), system or this_system()
    if isinstance(found, bytes):
        return _loaded(found, system)
    # What was looked at is what is loaded, even if its folder has another file by now.
    descriptor = _opened(found.name, found)
    try:
        if system.process_files:
            return ctypes.CDLL(system.path_of(descriptor))
        if _is_importable(found):  # nobody else can change it
            return ctypes.CDLL(str(found))
        return _loaded(os.pread(descriptor, os.fstat(descriptor).st_size, 0), system)
    finally:
        os.close(descriptor)


def _loaded(library: bytes, system: OperatingSystem) -> ctypes.CDLL:
    """Load a library that is in no folder: from memory, or from a folder of this user's alone."""
    with suppress(OSError):
        descriptor = system.memory_file("kernels", library)
        try:
            return ctypes.CDLL(system.path_of(descriptor))
        finally:
            os.close(descriptor)
    with tempfile.TemporaryDirectory(prefix="kshare-") as folder:  # mode 0700
        path = Path(folder, "kernels.so")
        path.write_bytes(library)
        return ctypes.CDLL(str(path))  # it stays when its file goes


def locate() -> Path | bytes:
    """Find the library; make it where it is missing and there is a compiler.

    Returns:
        Its file; its contents, if it is in no folder: the installation is a zip file, or no folder
        can be written.

    Raises:
        KernelLibraryError: There is none for this platform and these sources, and no compiler.
    """
    name, package = file_name(), Path(__file__).parent
    folders = directories(os.environ, package)
    found = find(name, [package, *folders]) or _in_archive(name) or elsewhere(name, sys.path)
    if found is None:
        # Hardly any process needs it: 12 ms.
        from kshare.read.decode.kernel_compiler import compiler  # noqa: PLC0415

        found = make(name, compiler(name), folders)
    return found


def file_name(system: str = sys.platform, machine: str | None = None) -> str:
    """Return the name of the library of these sources for a kind of machine.

    A home directory may be of machines with several systems, so its name has the system, too.

    Args:
        system: ``sys.platform`` there.
        machine: ``platform.machine()`` there; None: this one's.
    """
    machine = platform.machine() if machine is None else machine
    digest = hashlib.sha256()
    for source in _SOURCES:
        digest.update(pkgutil.get_data(_PACKAGE, source) or b"")
    return f"kernels-{system}-{machine}-{digest.hexdigest()[:16]}.so"


def directories(environment: Mapping[str, str], package: Path) -> list[Path]:
    """Return where a library is kept that is made here: the first of them that can be written.

    Args:
        environment: ``NUMBA_CACHE_DIR``, if set, keeps what is made; else the package's own folder,
            or the user's cache (``XDG_CACHE_HOME``) where the installation is read-only.
        package: The folder where an installation has its library.
    """
    stated = environment.get("NUMBA_CACHE_DIR")
    if stated:
        return [Path(stated), package]
    user = environment.get("XDG_CACHE_HOME")
    folders = [package]
    with suppress(RuntimeError):  # there is no home directory
        folders.append((Path(user) if user else Path.home() / ".cache") / "kshare")
    return folders


def find(name: str, folders: list[Path]) -> Path | None:
    """Return the library of a name, if one of the folders has it, and it may be loaded."""
    for folder in folders:
        with suppress(OSError):
            os.close(_opened(name, folder / name))
            return folder / name
    return None


def _opened(name: str, path: Path) -> int:
    """Return a descriptor of a library that may be loaded.

    Raises:
        OSError: It is not there, not whole, or somebody else could have written it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not (_is_importable(path) or _is_own(descriptor)):
            raise PermissionError(f"{path} could have been written by another user")
        if not _is_whole(name, os.pread(descriptor, os.fstat(descriptor).st_size, 0)):
            raise FileNotFoundError(f"{path} is not whole")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_importable(path: Path) -> bool:
    """Return whether Python imports modules from this file's folder, so it trusts it anyway."""
    inside = Path(*_PACKAGE.split("."))
    on_path = (Path(entry).absolute() / inside for entry in sys.path)
    return path.parent == Path(__file__).parent or path.absolute().parent in on_path


def _is_own(descriptor: int) -> bool:
    """Return whether nobody but this user, and root, can write to an open file."""
    status = os.fstat(descriptor)
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & _OTHERS_WRITE


def make(name: str, compile_: Callable[[], bytes], folders: list[Path]) -> Path | bytes:
    """Make the library, unless another process does so meanwhile.

    Args:
        name: Name of the file.
        compile_: Returns the library.
        folders: The first that can be written gets it; if none can be, a warning says so.

    Returns:
        Its file; its contents, if no folder can be written.
    """
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _lock(folder / f"{name}.lock"):
                if find(name, [folder]) is None:
                    _write(folder / name, sealed(name, compile_()))
                return folder / name
        except OSError as error:
            _log.info("compiled kernels cannot be kept in %s: %s", folder, error)
    _log.warning(
        "kshare's kernels are compiled anew in each process: no directory for them can be written; "
        "set NUMBA_CACHE_DIR to one that this user alone can write",
    )
    return compile_()


def elsewhere(name: str, path: Iterable[str]) -> Path | bytes | None:
    """Return the library of a name from any kshare, if one has it, and it is whole.

    Spark's workers, and scripts that lie in a clone, import the clone's sources, which nobody has
    built, in place of the installed kshare.

    Args:
        name: Name of the file.
        path: Python's path: folders, or archives. The files of installed distributions count, too.

    Returns:
        Its file; its contents, if it is in an archive.
    """
    from importlib.machinery import PathFinder  # noqa: PLC0415 - hardly any process needs it
    from importlib.metadata import distributions  # noqa: PLC0415 - as above: 20 ms

    inside = Path(*_PACKAGE.split(".")[1:], name)
    for entry in path:
        spec = PathFinder.find_spec(_PACKAGE.partition(".")[0], [entry])
        if spec is None:
            continue
        loader: Any = spec.loader
        for place in spec.submodule_search_locations or ():
            file = Path(place) / inside
            with suppress(OSError, AttributeError):  # it has no such file; a finder without files
                data: bytes = loader.get_data(str(file))
                if _is_whole(name, data):
                    return file if file.exists() else data
    for distribution in distributions(name="kshare"):
        listed = Path(str(distribution.locate_file(Path("kshare") / inside)))
        if found := find(name, [listed.parent]):
            return found
    return None


def sealed(name: str, library: bytes) -> bytes:
    """Return a library with a digest behind it, which loaders of libraries do not mind."""
    return library + hashlib.sha256(name.encode() + library).digest()


def _is_whole(name: str, data: bytes) -> bool:
    return sealed(name, data[:-_DIGEST_BYTES]) == data


def _in_archive(name: str) -> bytes | None:
    """Return the library of an installation that is a zip file on Python's path."""
    with suppress(OSError):
        data = pkgutil.get_data(_PACKAGE, name)
        if data is not None and _is_whole(name, data):
            return data
    return None


def _write(path: Path, data: bytes) -> None:
    """Write a file that is whole from the first moment on."""
    temporary = path.with_name(f"{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(temporary, flags, 0o644), "wb") as file:  # noqa: PTH123
            file.write(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a file's lock, or go on without it where there are no locks or its holder is stuck.

    Raises:
        OSError: The file is another user's, who could hold it for ever.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o644), "ab") as file:  # noqa: PTH123
        if not (_is_importable(path) or _is_own(file.fileno())):
            raise PermissionError(f"{path} is another user's")
        until = time.monotonic() + _WAIT_SECONDS
        with suppress(OSError):  # a file system without locks
            while time.monotonic() < until and not this_system().try_lock(file.fileno()):
                time.sleep(_POLL_SECONDS)
        yield
