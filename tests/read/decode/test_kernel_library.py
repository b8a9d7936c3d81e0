"""A library is made once, kept where it can be, and never used if it is damaged."""

import ctypes
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from kshare.errors import KernelLibraryError
from kshare.operating_system import POSIX, OperatingSystem, observed
from kshare.read.decode import kernel_library
from kshare.read.decode.kernel_compiler import compile_library
from kshare.read.decode.kernel_library import directories, find, locate, make, sealed
from kshare.read.decode.kernels import build
from kshare.read.decode.kernels.targets import here
from kshare.read.decode.layout import SIGNATURES
from tests.support.clock import until

CODE = b"machine code"
PACKAGE = Path(kernel_library.__file__).parent
ROOT = PACKAGE.parents[2]


class Maker:
    """Makes code, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> bytes:
        self.calls += 1
        return CODE


def blocked(path: Path) -> Path:
    """A folder that nobody can write to, whoever we are: its parent is a file."""
    path.write_text("a file")
    return path / "folder"


def test_code_is_made_once(tmp_path: Path) -> None:
    maker = Maker()
    folder = tmp_path / "not" / "there"
    path = folder / "code.so"
    assert [make("code.so", maker, [folder]) for _ in range(3)] == [path] * 3
    assert maker.calls == 1
    assert path.read_bytes().startswith(CODE)
    assert find("code.so", [folder]) == path
    assert sorted(path.name for path in folder.iterdir()) == ["code.so", "code.so.lock"]


def test_the_first_folder_that_can_be_written_gets_it(tmp_path: Path) -> None:
    maker = Maker()
    folders = [blocked(tmp_path / "file"), tmp_path / "user"]
    path = tmp_path / "user" / "code.so"
    assert [make("code.so", maker, folders) for _ in range(2)] == [path] * 2
    assert maker.calls == 1
    assert find("code.so", folders) == path


def test_where_nothing_can_be_written_each_process_makes_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    maker = Maker()
    for _ in range(2):
        assert make("code.so", maker, [blocked(tmp_path / "file")]) == CODE
    assert maker.calls == 2
    assert "compiled anew in each process" in caplog.text
    assert "NUMBA_CACHE_DIR" in caplog.text


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 100])
def test_a_damaged_file_is_not_found_and_is_replaced(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "code.so"
    make(path.name, Maker(), [tmp_path])
    whole = path.read_bytes()
    for data in (damage, whole[:-1], whole[1:], whole + b"x", b"x" + whole[1:]):
        path.write_bytes(data)
        assert find(path.name, [tmp_path]) is None
        maker = Maker()
        assert make(path.name, maker, [tmp_path]) == path
        assert maker.calls == 1
        assert path.read_bytes() == whole


def test_a_whole_library_of_another_name_is_not_found(tmp_path: Path) -> None:
    """It is of another architecture, or of other sources."""
    (tmp_path / "code.so").write_bytes(sealed("other.so", CODE))
    assert find("code.so", [tmp_path]) is None


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail() -> bytes:
        raise ValueError("the compiler fails")

    with pytest.raises(ValueError, match="compiler"):
        make("code.so", fail, [tmp_path])
    assert make("code.so", Maker(), [tmp_path]) == tmp_path / "code.so"


def test_what_another_user_could_have_written_is_not_loaded(tmp_path: Path) -> None:
    """Its digest is a checksum, which anybody can make."""
    path = tmp_path / "code.so"
    path.write_bytes(sealed(path.name, CODE))
    for mode in (0o666, 0o664, 0o646):
        path.chmod(mode)
        assert find(path.name, [tmp_path]) is None
    path.chmod(0o644)
    assert find(path.name, [tmp_path]) == path
    path.rename(tmp_path / "other.so")
    path.symlink_to(tmp_path / "other.so")
    assert find(path.name, [tmp_path]) is None


def test_what_another_user_could_have_written_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "code.so"
    path.write_bytes(sealed(path.name, b"not ours"))
    path.chmod(0o666)
    assert make(path.name, Maker(), [tmp_path]) == path
    assert path.read_bytes().startswith(CODE)
    assert path.stat().st_mode & 0o022 == 0


def test_a_lock_that_another_user_could_hold_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    lock = tmp_path / "shared" / "code.so.lock"
    lock.touch()
    lock.chmod(0o666)
    own = tmp_path / "own"
    assert make("code.so", Maker(), [tmp_path / "shared", own]) == own / "code.so"


@pytest.mark.parametrize("owner", [0, os.geteuid() + 1])
def test_only_root_and_this_user_are_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, owner: int
) -> None:
    path = tmp_path / "code.so"
    make(path.name, Maker(), [tmp_path])
    status = list(path.stat())
    status[stat.ST_UID] = owner
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result(status))
    assert find(path.name, [tmp_path]) == (path if owner == 0 else None)


def test_the_packages_own_library_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = kernel_library.file_name()
    (tmp_path / name).write_bytes(sealed(name, CODE))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert locate() == PACKAGE / name


def test_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = Path("/package")
    assert directories({"NUMBA_CACHE_DIR": "/stated", "XDG_CACHE_HOME": "/x"}, package) == [
        Path("/stated"),
        package,
    ]
    assert directories({"XDG_CACHE_HOME": "/x"}, package) == [package, Path("/x/kshare")]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert directories({}, package)[1] == tmp_path / ".cache" / "kshare"


# -- processes that start at once ---------------------------------------------------------------

MAKE = """
import sys, time
from pathlib import Path
from kshare.read.decode.kernel_library import make

folder, seconds = Path(sys.argv[1]), float(sys.argv[2])

def compile_():
    with (folder / "made").open("a") as file:
        file.write("x")
    time.sleep(seconds)
    return b"machine code"

print(make("code.so", compile_, [folder]).name)
"""


def start(folder: Path, seconds: float) -> subprocess.Popen[str]:
    """A process that wants the code, and takes so long to make it."""
    command = [sys.executable, "-c", MAKE, str(folder), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_that_start_at_once_make_it_once(tmp_path: Path) -> None:
    processes = [start(tmp_path, 0.5) for _ in range(4)]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["code.so\n"] * 4
    assert (tmp_path / "made").read_text() == "x"


def test_one_that_is_killed_blocks_nobody(tmp_path: Path) -> None:
    killed = start(tmp_path, 1_000)
    made = tmp_path / "made"
    until(lambda: made.exists() and made.read_text() == "x")
    others = [start(tmp_path, 0.1) for _ in range(2)]
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert [other.communicate(timeout=60)[0] for other in others] == ["code.so\n"] * 2
    assert (tmp_path / "made").read_text() == "xx"


# -- the kernels --------------------------------------------------------------------------------

FRESH = """
import sys
from kshare.read.decode.records import Decoder, index_batches
from tests.support.decoding import slice_of
from tests.support.batches import Rec, batch_of

long = Rec(b"k" * 1000, b"v" * 100_000, headers=((b"h" * 300, b"x" * 300),))
data = batch_of([long], codec="lz4").encode()
index = index_batches(data, topic="t", partition=3, fetch_offset=0)
(rows,) = Decoder(slice_of(), columns=["key", "value", "headers"]).decode(index)
(row,) = rows.batch.to_pylist()
assert (row["key"], row["value"]) == (long.key, long.value)
assert row["headers"] == [{"key": "h" * 300, "value": b"x" * 300}]
unwanted = {"numba", "scipy", "kshare.read.decode.kernels"}
print(sorted(unwanted & set(sys.modules)))
"""


def run_fresh(root: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Read a record in a process that imports kshare from a folder or an archive."""
    path = environment.pop("PYTHONPATH", os.pathsep.join([str(root), str(ROOT)]))
    return subprocess.run(
        [sys.executable, "-P", "-c", FRESH],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_process_reads_without_the_compiler() -> None:
    """And calls nothing that the compiler would have to bring."""
    locate()
    assert run_fresh().stdout == "[]\n"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """An installation of the package, with its library, that can be changed."""
    root = tmp_path / "installed"
    path = locate()
    assert isinstance(path, Path)
    shutil.copytree(ROOT / "kshare", root / "kshare", ignore=shutil.ignore_patterns("kernels-*"))
    shutil.copy(path, root / "kshare/read/decode")
    return root


def without_numba(*path: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """The same where numba is not installed, and neither is kshare; the user's cache is empty."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "tests").symlink_to(ROOT / "tests")
    (site / "sitecustomize.py").write_text(
        f"import sys; sys.path.remove({str(ROOT)!r})\n"
        "import importlib.util as u\n"
        "found = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'numba' else found(name, *rest)\n"
    )
    entries = os.pathsep.join(map(str, [site, *path]))
    return run_fresh(PYTHONPATH=entries, XDG_CACHE_HOME=str(tmp_path / "cache"))


def test_an_installation_needs_no_compiler(installed: Path, tmp_path: Path) -> None:
    assert without_numba(installed, tmp_path=tmp_path).stdout == "[]\n"


@pytest.mark.parametrize("fault", ["missing", "truncated", "other sources", "other architecture"])
def test_a_wrong_library_is_refused(installed: Path, tmp_path: Path, fault: str) -> None:
    """With an error that says what is wanted, and how to get it; nothing of it is loaded."""
    folder = installed / "kshare/read/decode"
    (path,) = folder.glob("kernels-*.so")
    if fault == "missing":
        path.unlink()
    elif fault == "truncated":
        path.write_bytes(path.read_bytes()[:-1000])
    elif fault == "other sources":
        with (folder / "layout.py").open("a") as source:
            source.write("# changed\n")
    else:
        library = path.read_bytes()[:-32]
        path.write_bytes(sealed(path.name.replace(platform.machine(), "riscv64"), library))
    done = without_numba(installed, tmp_path=tmp_path)
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith("kshare.errors.KernelLibraryError: there are no compiled kernels")
    assert str(folder) in error
    assert "pip install 'kshare[compile]'" in error
    assert sorted(folder.glob("*.lock")) == []


def test_the_library_in_an_archive_is_loaded(installed: Path, tmp_path: Path) -> None:
    """As of ``spark-submit --py-files``."""
    assert without_numba(zipped(installed, tmp_path), tmp_path=tmp_path).stdout == "[]\n"


def zipped(installed: Path, tmp_path: Path) -> Path:
    archive = tmp_path / "kshare.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in installed.rglob("*"):
            file.write(path, path.relative_to(installed))
    return archive


# -- a clone that nobody has built ---------------------------------------------------------------


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone, as it is after ``git clone``."""
    root = tmp_path / "clone"
    shutil.copytree(ROOT / "kshare", root / "kshare", ignore=shutil.ignore_patterns("kernels-*"))
    shutil.copy(ROOT / "hatch_build.py", root)
    return root


@pytest.mark.parametrize("is_zip", [False, True])
def test_a_clone_takes_the_library_of_another_kshare_of_its_sources(
    clone: Path, installed: Path, tmp_path: Path, is_zip: bool
) -> None:
    other = zipped(installed, tmp_path) if is_zip else installed
    assert without_numba(clone, other, tmp_path=tmp_path).stdout == "[]\n"
    assert sorted((clone / "kshare/read/decode").glob("kernels-*")) == []


@pytest.mark.parametrize("fault", ["none", "damaged", "other sources"])
def test_a_clone_without_one_says_what_it_is(
    clone: Path, installed: Path, tmp_path: Path, fault: str
) -> None:
    (library,) = (installed / "kshare/read/decode").glob("kernels-*.so")
    if fault == "damaged":
        library.write_bytes(library.read_bytes()[:-1])
    if fault == "other sources":
        library.rename(library.with_name("kernels-linux-x86_64-0123456789abcdef.so"))
    path = [clone] if fault == "none" else [clone, installed]
    error = without_numba(*path, tmp_path=tmp_path).stderr.splitlines()[-1]
    assert f"{clone} is a clone of kshare that is not built" in error
    assert f"pip install -e {clone}" in error
    assert "start in another folder" in error


def test_the_files_of_a_distribution_count(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    shutil.copytree(installed, site)
    metadata = site / "kshare-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kshare\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(site)
    found = kernel_library.elsewhere(kernel_library.file_name(), [])
    assert found == site / "kshare/read/decode" / kernel_library.file_name()


@pytest.mark.long
def test_changed_sources_are_compiled_at_first_use(installed: Path) -> None:
    """Where there is a compiler, as in an editable installation after a pull."""
    folder = installed / "kshare/read/decode"
    (old,) = folder.glob("kernels-*.so")
    with (folder / "kernels/scan.py").open("a") as source:
        source.write("# changed\n")
    assert run_fresh(installed).stdout == "[]\n"
    (new,) = set(folder.glob("kernels-*.so")) - {old}
    made = new.stat().st_mtime_ns
    assert run_fresh(installed).stdout == "[]\n"
    assert new.stat().st_mtime_ns == made


SMALLER = [
    POSIX,
    replace(observed(), process_files=False),
    replace(observed(), memory_files=False),
]
"""Systems where a library is not loaded by the path of an open file, or not from memory."""


@pytest.mark.parametrize("system", SMALLER, ids=["POSIX", "no /proc", "no memory files"])
@pytest.mark.parametrize("where", ["installed", "cache", "archive"])
def test_kernels_load_where_there_are_no_paths_of_open_files(
    system: OperatingSystem, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that another user could exchange meanwhile is copied; nothing of that is left."""
    found = locate()
    assert isinstance(found, Path)
    if where != "installed":
        kept = tmp_path / "cache" / found.name
        kept.parent.mkdir()
        shutil.copyfile(found, kept)
        place = kept if where == "cache" else kept.read_bytes()
        monkeypatch.setattr(kernel_library, "locate", lambda: place)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = sorted(tmp_path.iterdir())
    loaded = kernel_library.load(system)
    assert all(loaded[name] for name in SIGNATURES)
    assert sorted(tmp_path.iterdir()) == before
    if where == "cache" and not system.process_files:
        assert loaded._name != str(kept)


@pytest.mark.long
def test_each_linker_makes_a_library() -> None:
    code = build.compile_object(here())
    for linker in build.linkers(here()):
        library = build.link(code, linker)
        descriptor = os.memfd_create("kernels")
        os.write(descriptor, library)
        loaded = ctypes.CDLL(f"/proc/self/fd/{descriptor}")
        os.close(descriptor)
        assert all(loaded[name] for name in SIGNATURES)


def test_a_compiler_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is neither ``ld`` nor ziglang, or Python does not start."""
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))
    with pytest.raises(KernelLibraryError, match=r"cannot be compiled.*\S"):
        compile_library()


def test_the_files_name_tells_every_source() -> None:
    sources = {str(path.relative_to(PACKAGE)) for path in PACKAGE.glob("kernels/*.py")}
    assert sources - {"kernels/__init__.py"} <= set(kernel_library._SOURCES)
    assert {"layout.py", "status.py"} <= set(kernel_library._SOURCES)


def test_threads_that_load_the_code_at_once_share_it() -> None:
    """A second copy would be freed while it is called: the process would crash."""
    code = """
import threading
from kshare.read.decode.records import index_batches
barrier = threading.Barrier(4)
def use():
    barrier.wait()
    for _ in range(200):
        index_batches(b"", topic="t", partition=0, fetch_offset=0)
threads = [threading.Thread(target=use) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
