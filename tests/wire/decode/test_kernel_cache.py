"""Machine code is made once, kept where it can be, and never used if it is damaged."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kshare.wire.decode import compiled
from kshare.wire.decode.kernel_cache import cached, directories
from tests.support.clock import until

CODE = b"machine code"


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
    make = Maker()
    folder = tmp_path / "not" / "there"
    assert [cached("code.o", make, [folder]) for _ in range(3)] == [CODE] * 3
    assert make.calls == 1
    assert sorted(path.name for path in folder.iterdir()) == ["code.o", "code.o.lock"]


def test_the_first_folder_that_can_be_written_gets_it(tmp_path: Path) -> None:
    make = Maker()
    folders = [blocked(tmp_path / "file"), tmp_path / "user"]
    assert [cached("code.o", make, folders) for _ in range(2)] == [CODE] * 2
    assert make.calls == 1
    assert (tmp_path / "user" / "code.o").exists()


def test_a_folder_that_can_only_be_read_serves(tmp_path: Path) -> None:
    cached("code.o", Maker(), [tmp_path / "image"])
    make = Maker()
    assert cached("code.o", make, [blocked(tmp_path / "file"), tmp_path / "image"]) == CODE
    assert make.calls == 0


def test_where_nothing_can_be_written_each_process_makes_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make = Maker()
    for _ in range(2):
        assert cached("code.o", make, [blocked(tmp_path / "file")]) == CODE
    assert make.calls == 2
    assert "compiled anew in each process" in caplog.text
    assert "NUMBA_CACHE_DIR" in caplog.text


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 100])
def test_a_damaged_file_is_replaced(tmp_path: Path, damage: bytes) -> None:
    cached("code.o", Maker(), [tmp_path])
    whole = (tmp_path / "code.o").read_bytes()
    for data in (damage, whole[:-1], whole + b"x"):
        (tmp_path / "code.o").write_bytes(data)
        make = Maker()
        assert cached("code.o", make, [tmp_path]) == CODE
        assert make.calls == 1
        assert (tmp_path / "code.o").read_bytes() == whole


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail() -> bytes:
        raise ValueError("the compiler fails")

    with pytest.raises(ValueError, match="compiler"):
        cached("code.o", fail, [tmp_path])
    assert cached("code.o", Maker(), [tmp_path]) == CODE


def test_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = Path("/package")
    assert directories({"NUMBA_CACHE_DIR": "/stated", "XDG_CACHE_HOME": "/x"}, package) == [
        Path("/stated")
    ]
    assert directories({"XDG_CACHE_HOME": "/x"}, package) == [
        package / "__pycache__",
        Path("/x/kshare"),
    ]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert directories({}, package)[1] == tmp_path / ".cache" / "kshare"


# -- processes that start at once ---------------------------------------------------------------

MAKE = """
import sys, time
from pathlib import Path
from kshare.wire.decode.kernel_cache import cached

folder, seconds = Path(sys.argv[1]), float(sys.argv[2])

def make():
    with (folder / "made").open("a") as file:
        file.write("x")
    time.sleep(seconds)
    return b"machine code"

print(cached("code.o", make, [folder]).decode())
"""


def start(folder: Path, seconds: float) -> subprocess.Popen[str]:
    """A process that wants the code, and takes so long to make it."""
    command = [sys.executable, "-c", MAKE, str(folder), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_that_start_at_once_make_it_once(tmp_path: Path) -> None:
    processes = [start(tmp_path, 0.5) for _ in range(4)]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["machine code\n"] * 4
    assert (tmp_path / "made").read_text() == "x"


def test_one_that_is_killed_blocks_nobody(tmp_path: Path) -> None:
    killed = start(tmp_path, 1_000)
    made = tmp_path / "made"
    until(lambda: made.exists() and made.read_text() == "x")
    others = [start(tmp_path, 0.1) for _ in range(2)]
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert [other.communicate(timeout=60)[0] for other in others] == ["machine code\n"] * 2
    assert (tmp_path / "made").read_text() == "xx"


# -- the kernels --------------------------------------------------------------------------------

FRESH = """
import sys
from kshare.wire.decode.records import Decoder, index_batches
from tests.support.decoding import slice_of
from tests.support.batches import Rec, batch_of

long = Rec(b"k" * 1000, b"v" * 100_000, headers=((b"h" * 300, b"x" * 300),))
data = batch_of([long], codec="lz4").encode()
index = index_batches(data, topic="t", partition=3, fetch_offset=0)
(rows,) = Decoder(slice_of(), columns=["key", "value", "headers"]).decode(index)
(row,) = rows.batch.to_pylist()
assert (row["key"], row["value"]) == (long.key, long.value)
assert row["headers"] == [{"key": "h" * 300, "value": b"x" * 300}]
unwanted = {"numba", "scipy", "kshare.wire.decode.kernels"}
print(sorted(unwanted & set(sys.modules)))
"""


def run_fresh(folder: Path) -> str:
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", FRESH]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_process_that_finds_the_code_does_without_numba(tmp_path: Path) -> None:
    """And calls nothing that numba would have to bring."""
    path = compiled.warm(tmp_path)
    assert path.parent == tmp_path
    before = path.stat().st_mtime_ns
    assert run_fresh(tmp_path) == "[]\n"
    assert compiled.warm(tmp_path) == path
    assert path.stat().st_mtime_ns == before


def test_the_files_name_tells_every_source() -> None:
    folder = Path(compiled.__file__).parent
    sources = {str(path.relative_to(folder)) for path in folder.glob("kernels/*.py")}
    assert sources - {"kernels/__init__.py"} <= set(compiled._SOURCES)
    assert {"layout.py", "status.py", "compiled.py"} <= set(compiled._SOURCES)


def test_warming_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="written"):
        compiled.warm(blocked(tmp_path / "file"))


def test_threads_that_load_the_code_at_once_share_it() -> None:
    """A second copy would be freed while it is called: the process would crash."""
    code = """
import threading
from kshare.wire.decode.records import index_batches
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
