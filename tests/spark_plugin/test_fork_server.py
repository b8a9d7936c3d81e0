"""The fork server: a process that it forks is as one that was started, and ends as that would."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from spark_plugin import forked_start
from tests.support.clock import WAIT_S, until

# Starts what it is told, as Spark's JVM does, with a pipe to each process's standard input.
JVM = """
import json, os, signal, subprocess, sys
running = {}
for line in sys.stdin:
    what, name, *more = json.loads(line)
    if what == "start":
        command, env = more
        running[name] = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        answer = running[name].pid
    elif what == "kill":
        running[name].send_signal(more[0])
        answer = None
    elif what == "number":
        answer = int.from_bytes(running[name].stdout.read(4), "big")
    elif what == "let go":
        running[name].stdin.close()
        answer = running[name].wait()
    else:
        out, err = running[name].communicate(more[0].encode())
        answer = [running[name].returncode, out.decode(), err.decode()]
    print(json.dumps(answer), flush=True)
"""
SHOWS = """
import json, os, signal, sys
import __main__
# A recent libffi keeps its own file open, once a process has called C, and maps it again.
OPEN = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
OPEN = [name for name in OPEN if "/libffi.so" not in os.path.realpath(name)]
SIGNALS = [str(signal.getsignal(n)) for n in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP)]
shown = {
    "argv": sys.argv, "orig": sys.orig_argv, "main": __main__.__spec__.name, "folder": os.getcwd(),
    "group": os.getpgrp() == os.getpgid(int(os.environ["SPARK_JVM"])),
    "environment": dict(os.environ), "input": sys.stdin.read(), "path": sys.path,
    "descriptors": len(OPEN), "signals": SIGNALS,
}
print(json.dumps(shown))
print("to the error stream", file=sys.stderr)
print("spark_plugin.fork_server" in sys.modules, file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""
WAITS = """
import os, sys, time
sys.stdout.buffer.write(os.getpid().to_bytes(4, "big"))
sys.stdout.flush()
time.sleep(1000)
"""
WHERE = """
import os, sys
print(os.environ.get("WHERE"), "spark_plugin.fork_server" in sys.modules)
"""


class Jvm:
    """A process whose program is called java, and the Python processes that it has started."""

    def __init__(self, folder: Path) -> None:
        java = folder / "java"
        shutil.copy(Path(sys.executable).resolve(), java)
        (folder / "shows.py").write_text(SHOWS)
        (folder / "waits.py").write_text(WAITS)
        (folder / "where.py").write_text(WHERE)
        self._env = {**os.environ, "PYTHONPATH": str(folder)}
        self.process = subprocess.Popen(
            [java, "-c", JVM],
            env={**os.environ, "PYTHONHOME": sys.base_prefix},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            start_new_session=True,
        )

    def _ask(self, *question: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(self, name: str, *arguments: str, plain: Any = False, **env: str) -> int:
        client = [] if plain else ["-I", "-S", forked_start.__file__]
        command = [sys.executable, *client, "-m", *arguments]
        pid: int = self._ask("start", name, command, {**self._env, **env})
        return pid

    def start_forked(self, name: str, *arguments: str, **env: str) -> psutil.Process:
        """Start a module that says its number, by the server.

        A starter that gets no answer in time, on a busy machine, starts it by itself.
        """
        while True:
            starter = self.start(name, *arguments, **env)
            process = psutil.Process(self.number_of(name))
            if process.pid != starter:
                return process
            self.kill(name, signal.SIGKILL)
            self.end_of(name)

    @contextmanager
    def forked_daemon(
        self, name: str, module: str
    ) -> Iterator[tuple[psutil.Process, psutil.Process]]:
        """Start a daemon by the server, as above; its first worker, and the daemon."""
        while True:
            starter = self.start(name, "pyspark.daemon", module)
            with socket.create_connection(("127.0.0.1", self.number_of(name))) as connection:
                worker = psutil.Process(int.from_bytes(connection.recv(4), "big"))
                daemon = worker.parent()
                assert daemon is not None
                if daemon.pid != starter:
                    yield worker, daemon
                    return
                self.kill(name, signal.SIGKILL)
            self.end_of(name)

    def end_of_forked(self, *arguments: str, **env: str) -> tuple[int, str, str]:
        """Return how a module ends that says last, on its output streams, if it was forked."""
        while True:
            self.start("forked", *arguments, **env)
            code, out, err = self.end_of("forked", "sent")
            if (err or out).endswith("True\n"):
                return code, out, err

    @property
    def address(self) -> str:
        """Where its fork server listens."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        started = int(stat.rpartition(")")[2].split()[19])
        namespace = Path("/proc/self/ns/pid").readlink()
        return f"\0kshare-forks-{os.getuid()}-{namespace}-{self.process.pid}-{started}"

    def start_server(self) -> int:
        """Return the process of the daemon that has forked a server."""
        pid = self.start("daemon", "pyspark.daemon", "pyspark.sql.worker.lookup_data_sources")
        assert self.number_of("daemon")  # its port: it has forked the server
        return pid

    def kill(self, name: str, number: signal.Signals) -> None:
        self._ask("kill", name, number)

    def end_of(self, name: str, sent: str = "") -> tuple[int, str, str]:
        code, out, err = self._ask("end", name, sent)
        return code, out, err

    def let_go_of(self, name: str) -> None:
        """Close a process's standard input, and wait for its end."""
        self._ask("let go", name)

    def number_of(self, name: str) -> int:
        """Return the number that a process has written."""
        number: int = self._ask("number", name)
        return number


@pytest.fixture
def jvm(tmp_path: Path) -> Iterator[Jvm]:
    jvm = Jvm(tmp_path)
    yield jvm
    jvm.process.kill()
    jvm.process.communicate()


def test_it_is_as_if_it_was_started(jvm: Jvm) -> None:
    jvm.start_server()
    env = {"PYTHON_WORKER_FACTORY_SECRET": "s", "SPARK_JVM": str(jvm.process.pid)}
    jvm.start("plain", "shows", "7", "a b", plain=True, **env)
    ends = jvm.end_of("plain", "sent"), jvm.end_of_forked("shows", "7", "a b", **env)
    assert [(code, err) for code, _, err in ends] == [
        (7, "to the error stream\nFalse\n"),
        (7, "to the error stream\nTrue\n"),
    ]
    plain, forked = (json.loads(out) for _, out, _ in ends)
    assert plain == forked


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_starter(jvm: Jvm, number: signal.Signals) -> None:
    jvm.start_server()
    process = jvm.start_forked("it", "waits")
    jvm.kill("it", number)
    assert jvm.end_of("it")[0] == -number
    process.wait(WAIT_S)


def ignores_hangups(process: psutil.Process) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    ignored = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(ignored.split()[1], 16) >> (signal.SIGHUP - 1) & 1)


def test_a_daemon_ends_with_its_starter_and_so_do_its_workers(jvm: Jvm) -> None:
    jvm.start_server()
    with jvm.forked_daemon("it", "pyspark.sql.worker.create_data_source") as (worker, daemon):
        assert daemon.name() == "kshare-daemon"
        until(lambda: not ignores_hangups(worker))  # PySpark says its number a moment before
        jvm.kill("it", signal.SIGKILL)
        psutil.wait_procs([worker, daemon], WAIT_S)
        assert not worker.is_running()
        assert not daemon.is_running()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_its_starter_ends_as_it_does(jvm: Jvm, number: signal.Signals) -> None:
    jvm.start_server()
    jvm.start_forked("it", "waits").send_signal(number)
    assert jvm.end_of("it")[0] == -number


@pytest.mark.parametrize("end", ["JVM", "daemon"])
def test_the_server_ends_with_the_last_of_its_processes(jvm: Jvm, end: str) -> None:
    """Once the JVM has, or has let go of the daemon that forked the server."""
    daemon = psutil.Process(jvm.start_server())
    process = jvm.start_forked("it", "waits")
    (server,) = daemon.children()
    assert server.name() == "kshare-forks"
    if end == "JVM":
        jvm.process.kill()
        process.kill()  # it does not see its JVM end, as a planner would
    else:
        jvm.let_go_of("daemon")
        jvm.start("other", "where")
        assert jvm.end_of("other")[1] == "None False\n"
        assert process.is_running()
        jvm.kill("it", signal.SIGKILL)
    _, alive = psutil.wait_procs([daemon, server, process], WAIT_S)
    assert not alive


def test_another_environment_is_not_the_servers(jvm: Jvm) -> None:
    jvm.start_server()
    jvm.start("it", "where", WHERE="elsewhere")
    assert jvm.end_of("it") == (0, "elsewhere False\n", "")


def test_there_is_one_server(jvm: Jvm) -> None:
    jvm.start_server()
    jvm.start("it", "pyspark.daemon", "pyspark.sql.worker.create_data_source", KSHARE_X="1")
    assert jvm.number_of("it")
    assert jvm.end_of_forked("where")[1] == "None True\n"
    names = [process.name() for process in psutil.Process(jvm.process.pid).children(recursive=True)]
    assert names.count("kshare-forks") == 1


def test_a_server_that_dies_is_done_without(jvm: Jvm) -> None:
    (server,) = psutil.Process(jvm.start_server()).children()
    server.kill()
    jvm.start("it", "where")
    assert jvm.end_of("it") == (0, "None False\n", "")


def test_only_a_jvm_has_a_server() -> None:
    """Where a script of the user's stands between, each process would have another parent."""
    assert forked_start.address() is None


def connected(jvm: Jvm) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(WAIT_S)
    connection.connect(jvm.address)
    return connection


def test_who_says_nothing_keeps_nobody_waiting(jvm: Jvm) -> None:
    """And is refused after a second."""
    jvm.start_server()
    silent = [connected(jvm) for _ in range(80)]
    for connection in silent[::2]:
        connection.send(b"\1")
    assert jvm.end_of_forked("where")[1] == "None True\n"
    for connection in silent:
        with suppress(ConnectionResetError):  # it had sent what the server never read
            assert connection.recv(2) in (forked_start.READY, b"")
            assert connection.recv(1) == b""
        connection.close()


@pytest.mark.parametrize(
    "message",
    [b"no JSON", b"[" * 100_000, b"[]", b'[1,"",1,{},[]]', b'["","",1e999,{"a":1},["-m","x"]]'],
    ids=["no JSON", "deep", "empty", "a number", "infinite"],
)
def test_what_is_no_request_is_refused(jvm: Jvm, message: bytes) -> None:
    jvm.start_server()
    with connected(jvm) as connection:
        streams = [0, 1, 2]
        socket.send_fds(connection, [len(message).to_bytes(4, sys.byteorder)], streams)
        connection.sendall(message)
        assert connection.recv(1) == forked_start.READY
        assert connection.recv(1) == b""
    assert jvm.end_of_forked("where")[1] == "None True\n"


def test_what_is_too_long_is_not_read(jvm: Jvm) -> None:
    (server,) = psutil.Process(jvm.start_server()).children()
    with connected(jvm) as connection:
        connection.send((1 << 31).to_bytes(4, sys.byteorder))
        with pytest.raises(ConnectionError):
            connection.sendall(bytes(1 << 30))
    assert jvm.end_of_forked("where")[1] == "None True\n"
    assert server.is_running()


def test_a_process_whose_starter_has_given_up_never_runs(jvm: Jvm) -> None:
    """Its starter has started another one, with the same streams."""
    (server,) = psutil.Process(jvm.start_server()).children()
    assert jvm.end_of_forked("where")[1] == "None True\n"
    server.suspend()
    jvm.start("it", "where")
    assert jvm.end_of("it") == (0, "None False\n", "")
    server.resume()
    assert jvm.end_of_forked("where")[1] == "None True\n"
    until(lambda: not server.children())


class Peer:
    """A connection whose other side is another's."""

    def __init__(self, process: int, user: int) -> None:
        self._said = b"".join(n.to_bytes(4, sys.byteorder) for n in (process, user, 0))

    def getsockopt(self, *_: int) -> bytes:
        return self._said


def test_only_processes_of_this_user_and_this_container_are_heard() -> None:
    def is_ours(process: int, user: int) -> bool:
        return forked_start.is_ours(cast("socket.socket", Peer(process, user)))

    assert is_ours(1, os.getuid())
    assert not is_ours(1, os.getuid() + 1)
    assert not is_ours(0, os.getuid())


def test_a_name_that_another_has_taken_is_done_without(jvm: Jvm) -> None:
    """Its listener answers nobody, and takes no more connections."""
    with socket.socket(socket.AF_UNIX) as squatter, socket.socket(socket.AF_UNIX) as first:
        squatter.bind(jvm.address)
        squatter.listen(0)
        first.connect(jvm.address)
        jvm.start("it", "where")
        assert jvm.end_of("it") == (0, "None False\n", "")
