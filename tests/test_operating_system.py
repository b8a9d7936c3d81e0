"""What only some systems have is asked of one module, and all works where it lacks.

How kshare works with all of it taken away, with a real broker: integration/test_portable.py.
"""

import ast
import dataclasses
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kshare.cli.doctor import examine_system
from kshare.operating_system import POSIX, OperatingSystem, observed, this_system
from kshare.read.sharing.chunks import SharedChunks, forget_query
from kshare.read.sharing.files import nameless_file, opened_folder
from spark_plugin import fork_server
from spark_plugin.planner_side import say_what_lacks
from spark_plugin.task_side import executor_above
from tests.support.documents import ROOT
from tests.support.sharing import groups, memory_files

HOME = "kshare/operating_system.py"
PROGRAM = "spark_plugin/forked_start.py"
"""It runs before anything can be imported, so it asks by itself (test_fork_server.py has its tests
of that).
"""
NAMES = {
    *("CLOCK_BOOTTIME", "F_ADD_SEALS", "MFD_CLOEXEC", "O_PATH", "O_TMPFILE", "SCM_CREDENTIALS"),
    *("SO_PEERCRED", "TCP_USER_TIMEOUT", "copy_file_range", "epoll", "eventfd", "fcntl"),
    *("inotify", "memfd_create", "pidfd_open", "posix_fadvise", "posix_fallocate", "prctl"),
    *("sched_getaffinity", "sched_setaffinity", "sendfile", "setns", "splice", "timerfd_create"),
    *("unshare",),
}
"""Names of Python's modules, or of theirs, that not all systems have."""
FOLDERS = ("/proc", "/dev/shm", "/sys/", "\0")


def uses(source: str) -> set[str]:
    """What a module's code, not its texts for readers, uses of what only some systems have."""
    tree = ast.parse(source)
    texts = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    found = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.alias(name=name):
                found |= {name} & NAMES
            case ast.ImportFrom(module=str(name)):
                found |= {name} & NAMES
            case ast.Constant(value=str(text)) if id(node) not in texts:
                found |= {text} & NAMES  # getattr, hasattr
                found |= {folder for folder in FOLDERS if text.startswith(folder)}
            case ast.Attribute(value=ast.Name(id="sys"), attr="platform"):
                found.add("sys.platform")
            case _:
                pass
    return found


def test_only_one_module_knows_what_some_systems_lack() -> None:
    found = {}
    for package in ("kshare", "spark_plugin"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if names := uses(path.read_text()) - {"\0"}:
                found[path.relative_to(ROOT).as_posix()] = names
    assert set(found) == {HOME, PROGRAM}, found
    assert {"/proc", "O_TMPFILE", "memfd_create", "fcntl", "CLOCK_BOOTTIME"} <= found[HOME]


@pytest.mark.parametrize(
    "source",
    [
        "import fcntl",
        "from fcntl import flock",
        "import os\nos.memfd_create('x')",
        "from os import O_TMPFILE",
        "import socket\ngetattr(socket, 'SO_PEERCRED')",
        "path = f'/proc/{1}/stat'",
        "'''A docstring.'''\nplace = '/dev/shm/x'",
    ],
)
def test_a_use_elsewhere_is_seen(source: str) -> None:
    assert uses(source)


def test_texts_for_readers_are_no_uses() -> None:
    assert not uses('"""/proc has it."""\ndef f():\n    """``/proc`` has it."""  # O_TMPFILE')


# -- the answers -----------------------------------------------------------------------------------


def test_linux_has_all_of_it() -> None:
    system = observed()
    assert system.shares_open_files
    assert system.has_fork_server
    assert system.costs() == []
    assert system.boot_clock == time.CLOCK_BOOTTIME
    assert this_system() == system
    assert this_system() is this_system()


def test_a_variable_takes_it_away() -> None:
    script = "from kshare.operating_system import *; print(this_system() == POSIX)"
    command = [sys.executable, "-c", script]
    for given, answer in {"1": b"True\n", "0": b"False\n"}.items():
        environment = os.environ | {"KSHARE_PORTABLE": given}
        assert subprocess.check_output(command, env=environment) == answer


ASKED: dict[str, tuple[str, Callable[[OperatingSystem], object]]] = {
    "namespace": ("process_files", OperatingSystem.process_namespace),
    "start": ("process_files", lambda system: system.start_of(os.getpid())),
    "parent": ("process_files", lambda system: system.parent_of(os.getpid())),
    "command": ("process_files", lambda system: system.command_of(os.getpid())),
    "path": ("process_files", lambda system: system.path_of(0)),
    "sockets": ("process_files", OperatingSystem.abstract_names),
    "address": ("abstract_sockets", lambda system: system.abstract_address("x")),
    "memory": ("memory_files", lambda system: os.close(system.memory_file("x", b"x"))),
    "memory's path": ("process_files", lambda system: os.close(system.memory_file("x", b"x"))),
    "lock": ("file_locks", lambda system: system.try_lock(1)),
}


@pytest.mark.parametrize("what", ASKED)
def test_what_lacks_is_an_error_of_the_system(what: str) -> None:
    answer, ask = ASKED[what]
    before = memory_files()
    with pytest.raises(OSError, match="this system has no") as caught:
        ask(dataclasses.replace(observed(), **{answer: False}))
    assert caught.value.errno == errno.ENOSYS
    assert memory_files() == before


def test_what_is_there_is_what_it_says(tmp_path: Path) -> None:
    system = observed()
    descriptor = system.memory_file("it", b"content")
    assert Path(system.path_of(descriptor)).read_bytes() == b"content"
    assert Path(system.path_of(descriptor, os.getpid())).read_bytes() == b"content"
    os.close(descriptor)
    assert system.parent_of(os.getpid()) == os.getppid()
    assert (
        system.command_of(os.getpid())[0] == Path("/proc/self/cmdline").read_text().split("\0")[0]
    )
    with subprocess.Popen(["sleep", "60"]) as child:
        assert system.start_of(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert system.start_of(child.pid) is None  # ended, and not waited for
    assert system.start_of(child.pid) is None
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(system.abstract_address(f"kshare-{os.getpid()} it"))
        bound.listen()
        assert b"it" not in system.abstract_names()  # a name with a space is none of ours
    with (tmp_path / "locked").open("w") as first, (tmp_path / "locked").open("w") as second:
        assert system.try_lock(first.fileno())
        assert not system.try_lock(second.fileno())


# -- each absence ----------------------------------------------------------------------------------


@pytest.fixture(params=["process_files", "abstract_sockets", "file_locks"])
def without(request: pytest.FixtureRequest) -> OperatingSystem:
    return dataclasses.replace(observed(), **{request.param: False})


def test_each_range_fetches_for_itself(
    without: OperatingSystem, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no cache of chunks, and no warning in each task."""
    caplog.set_level(logging.INFO)
    for siblings in groups([(0, 300)] * 2):
        shared = SharedChunks(siblings, "t", 0, 1 << 20, without)
        assert shared.find(0, 10) is None
        assert shared.claim(0, 10)
        shared.put(0, 10, [], memoryview(b"records"))
        shared.discard(0)
        shared.close(done=True)
    forget_query("q", without)
    assert not caplog.records


def test_a_file_has_a_name_for_an_instant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with opened_folder() as folder:
        handle = nameless_file(folder, dataclasses.replace(observed(), unnamed_files=False))
    assert os.fstat(handle).st_nlink == 0
    os.close(handle)
    assert not list(tmp_path.iterdir())


def test_there_is_no_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the socket by which it is found is tried."""
    monkeypatch.setattr(fork_server, "address", lambda: pytest.fail("looks for a server"))
    for each in (
        *("process_files", "abstract_sockets", "peer_credentials", "forks_after_imports"),
    ):
        fork_server.start(dataclasses.replace(observed(), **{each: False}))


def test_an_executor_without_processes_is_its_workers_parent() -> None:
    """All workers of an executor have one: so they have one name, and no slots."""
    system = dataclasses.replace(observed(), process_files=False)
    assert executor_above(7, system) == executor_above(7, system)
    assert executor_above(7, system) != executor_above(8, system)
    assert executor_above(7, system).slots == 0


def test_a_worker_without_a_daemon_knows_its_executor() -> None:
    """``spark.python.use.daemon=false``: the JVM is its parent, not its parent's parent."""
    shell = ["java", "-c", "sleep 600 & echo $!; wait", "java"]
    command = [*shell, "--executor-id", "3", "--cores", "4"]
    with subprocess.Popen(command, executable="/bin/sh", stdout=subprocess.PIPE) as jvm:
        assert jvm.stdout
        daemon = int(jvm.stdout.readline())
        try:
            of_daemon, of_jvm = (executor_above(it, observed()) for it in (daemon, jvm.pid))
        finally:
            os.kill(daemon, signal.SIGKILL)
            jvm.kill()
    assert of_daemon == of_jvm
    assert (of_jvm.name.partition("@")[0], of_jvm.slots) == ("3", 4)


@pytest.fixture
def fresh() -> Iterator[None]:
    say_what_lacks.cache_clear()
    yield
    say_what_lacks.cache_clear()


def test_what_it_costs_is_said_once(fresh: None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        say_what_lacks(POSIX)
        say_what_lacks(observed())
    (said,) = caplog.records
    assert said.levelno == logging.INFO
    assert "each fetch it for themselves" in said.getMessage()
    (finding,) = examine_system(POSIX)
    assert finding.level == "yellow"
    assert not list(examine_system(observed()))


def test_docs_say_what_each_absence_costs() -> None:
    text = " ".join((ROOT / "docs/tuning.md").read_text().split())
    section = text.partition("## Other systems")[2]
    for cost in POSIX.costs():
        assert cost in section.replace("`", "")
    assert "KSHARE_PORTABLE=1" in section
