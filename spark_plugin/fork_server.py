"""The fork server of a Spark session: it forks processes that plan, with their imports done.

Each source and stream takes several Python processes, one after the other, and each would spend
0.3 to 0.5 s on importing PySpark, Arrow and kshare. The daemon of the first one forks this server,
which imports what planners import, and forks the others as :mod:`spark_plugin.forked_start` asks.
Whoever asks before all is imported (the second process does, and needs little) imports the rest
by itself.

A forked process is as one that Spark has started: it has the streams, environment, process group
and ``__main__`` that it would have. A request is refused where the environment differs from the
server's in more than Spark's own variables. A process whose starter has ended is killed (a daemon
is asked to end, with its workers). The server takes no more requests once Spark's JVM has ended, or
has closed the daemon's input, and it ends with the last of its processes. It has no threads.
"""

import contextlib
import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spark_plugin.forked_start import DAEMON, FORKED, address, receive

__all__ = ["ForkServer", "Request", "become", "preload", "start"]

FIRST: Final = ("pyspark.sql.worker.create_data_source",)
"""Modules of the second planning process, beside those of the daemon that forks the server."""
MODULES: Final = (
    "numpy",
    "pyarrow",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.worker.plan_data_source_read",
    "confluent_kafka.admin",
    "kshare.cluster.cluster",
    "spark_plugin.planner_side",
)
"""Modules of the others, one by one: 0.1 s each, as whoever asks meanwhile waits for one."""
_OWN: Final = (
    *("PYTHON_WORKER_FACTORY_", "PYTHON_UNIX_DOMAIN_ENABLED", "PYTHON_FAULTHANDLER_DIR"),
    *("PYTHON_DAEMON_", "SPARK_", "PYSPARK_"),
)
"""Variables whose names begin so are each process's own: nothing reads them before it runs."""
_REQUEST_SECONDS: Final = 10.0
_CREDENTIALS_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class Request:
    """The process that is to be forked.

    Attributes:
        arguments: Those of Python: ``-m``, a module, and the module's.
        group: The process group.
        environment: All variables.
        streams: Standard input, output and error.
    """

    arguments: list[str]
    group: int
    environment: Mapping[str, str]
    streams: list[int]


@dataclass(frozen=True, slots=True)
class _Forked:
    process: int
    starter: socket.socket
    end_signal: signal.Signals


def start() -> None:
    """Fork a server for this process's siblings, if they have none.

    It returns in this process. In the server, and in those that it forks, it raises SystemExit, or
    what the module that the process runs has raised.
    """
    where = address()
    if where is None:
        return
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(where)
    except OSError:  # another one was faster
        listener.close()
        return
    listener.listen()  # from now on, starters wait
    if os.fork():
        listener.close()
        return
    jvm = os.dup(0)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    os.setpgid(0, 0)
    _name_process("kshare-forks")
    preload(FIRST)
    request = ForkServer(listener, jvm, MODULES).run()
    if request is not None:
        become(request)
    sys.exit(0)


class ForkServer:
    """Forks processes for those that connect, and ends with the last of them.

    Args:
        listener: Where they connect.
        jvm: A pipe from Spark's JVM, which is closed when no more processes will be needed.
        modules: Modules to import while nobody asks for a process.
    """

    def __init__(self, listener: socket.socket, jvm: int, modules: Sequence[str] = ()) -> None:
        self._listener, self._jvm = listener, jvm
        self._modules = deque(modules)
        self._forked: dict[int, _Forked] = {}  # by process
        self._starters: dict[int, _Forked] = {}  # those with a starter, by its descriptor
        self._signals, self._waker = os.pipe()
        for end in (self._signals, self._waker):
            os.set_blocking(end, False)

    def run(self) -> Request | None:
        """Serve until nothing is left.

        Returns:
            In a forked process, what it is to be; in the server, at its end, None.
        """
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        serving = True
        while serving or self._forked:
            ready = self._ready(serving=serving)
            self._reap()
            for starter in ready & self._starters.keys():
                forked = self._starters.pop(starter)
                # It is not reaped yet: the number is its own.
                os.kill(forked.process, forked.end_signal)
            if serving and self._jvm in ready:
                serving = False
                self._listener.close()
            elif serving and self._listener.fileno() in ready:
                request = self._fork()
                if request is not None:
                    return request
            elif serving and self._modules:
                preload([self._modules.popleft()])
        return None

    def _ready(self, *, serving: bool) -> set[int]:
        poller = select.poll()
        poller.register(self._signals, select.POLLIN)
        for starter in self._starters:
            poller.register(starter, 0)  # it can only hang up
        if serving:
            poller.register(self._listener, select.POLLIN)
            poller.register(self._jvm, 0)
        wait = 0 if serving and self._modules else None
        ready = {descriptor for descriptor, _ in poller.poll(wait)}
        with suppress(BlockingIOError):
            os.read(self._signals, 4096)
        return ready

    def _reap(self) -> None:
        """Tell the starters of processes that have ended."""
        while self._forked:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            starter = self._forked.pop(process).starter
            self._starters.pop(starter.fileno(), None)
            with suppress(OSError), starter:
                starter.sendall(status.to_bytes(4, sys.byteorder))

    def _fork(self) -> Request | None:
        """Take a request and fork; return the request in the forked process."""
        starter, _ = self._listener.accept()
        starter.settimeout(_REQUEST_SECONDS)
        process, request, streams = -1, None, list[int]()
        try:
            request = _received(starter, streams)
            if request is not None:
                process = os.fork()
        except (OSError, ValueError, EOFError, TypeError) as error:
            _say(str(error))
        if process == 0:
            starter.close()
            self._leave()
            return request
        for stream in streams:
            os.close(stream)
        if request is None or process < 0:
            starter.close()  # it starts without a server
            return None
        is_daemon = request.arguments[1] == DAEMON
        forked = _Forked(process, starter, signal.SIGTERM if is_daemon else signal.SIGKILL)
        self._forked[process] = self._starters[starter.fileno()] = forked
        with suppress(OSError):  # if it has ended, it is found to have hung up
            starter.sendall(FORKED)
        return None

    def _leave(self) -> None:
        """Keep nothing of the server, in a forked process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._listener.close()
        for descriptor in (self._jvm, self._signals, self._waker):
            os.close(descriptor)
        for forked in self._forked.values():
            forked.starter.close()
        self._forked, self._starters = {}, {}


def _received(starter: socket.socket, streams: list[int]) -> Request | None:
    """Receive a request, and its streams; None if the process cannot come from this server."""
    credentials = starter.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS_BYTES)
    head, received, _, _ = socket.recv_fds(starter, 4, 3)
    streams += received
    message = receive(starter, int.from_bytes(head, sys.byteorder))
    if int.from_bytes(credentials[4:8], sys.byteorder) != os.getuid():
        return None
    python, folder, group, environment, arguments = marshal.loads(message)  # noqa: S302 - our own
    here = sys.executable, os.getcwd(), _common(os.environ)  # noqa: PTH109
    if len(streams) != 3 or (python, folder, _common(environment)) != here:
        return None
    return Request(arguments, group, environment, streams)


def _common(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(_OWN)}


def become(request: Request) -> None:
    """Become the process of a request, and run its module as ``__main__``."""
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
    for stream in request.streams:
        os.close(stream)
    with suppress(OSError):  # the group has ended
        os.setpgid(0, request.group)
    os.environ.clear()
    os.environ.update(request.environment)
    _, module, *arguments = request.arguments
    _name_process("kshare-daemon" if module == DAEMON else "kshare-planner")
    sys.orig_argv = [sys.executable, *request.arguments]
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)  # it runs once more, as "__main__"
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _name_process(name: str) -> None:
    """Set what ``ps -o comm`` and ``top`` show; the command line stays that of the daemon."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def _say(what: Any) -> None:
    print(f"spark_plugin.fork_server: {what}", file=sys.stderr)  # noqa: T201


def preload(modules: Sequence[str]) -> list[str]:
    """Import modules ahead of their use.

    Returns:
        The modules that could not be imported.
    """
    failed = []
    # The daemon talks to Spark's JVM over its standard output, so imports must not print there.
    with contextlib.redirect_stdout(sys.stderr):
        for module in modules:
            try:
                importlib.import_module(module)
            except Exception:  # the worker that needs the module will report it
                traceback.print_exc()
                failed.append(module)
    # Workers collect garbage after each task. Modules are never garbage, and looking through them
    # would copy the pages that all workers share.
    gc.collect()
    gc.freeze()
    return failed
