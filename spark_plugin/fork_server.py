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

Anybody on the host may connect to an abstract socket. So the server first asks the system whose
process it is; it reads from this user's alone, never waits for any, and gives each a second to
send a request of 1 MiB at most. A forked process runs once its starter has said so: a starter that
has given up meanwhile has started another one.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kshare.operating_system import OperatingSystem, this_system
from spark_plugin.forked_start import (
    DAEMON,
    FORKED,
    GO,
    LARGEST,
    READY,
    address,
    is_ours,
    receive,
)

__all__ = ["ForkServer", "Request", "become", "preload", "start"]

FIRST: Final = ("pyspark.sql.worker.create_data_source",)
"""Modules of the second planning process, beside those of the daemon that forks the server."""
MODULES: Final = (
    "numpy",
    "pyarrow",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.worker.plan_data_source_read",
    "confluent_kafka.admin",
    "kshare.kafka.cluster",
    "spark_plugin.planner_side",
)
"""Modules of the others, one by one: 0.1 s each, as whoever asks meanwhile waits for one."""
_OWN: Final = (
    *("PYTHON_WORKER_FACTORY_", "PYTHON_UNIX_DOMAIN_ENABLED", "PYTHON_FAULTHANDLER_DIR"),
    *("PYTHON_DAEMON_", "SPARK_", "PYSPARK_"),
)
"""Variables whose names begin so are each process's own: nothing reads them before it runs."""
_REQUEST_SECONDS: Final = 1.0
_MOST_STARTERS: Final = 64  # whose requests are not whole yet
_PIECE_BYTES: Final = 65_536
_PAUSE_SECONDS: Final = 0.1  # at the limit of open files


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


@dataclass(frozen=True, slots=True)
class _Starter:
    """Whose request is not whole yet."""

    connection: socket.socket
    until: float
    received: bytearray = field(default_factory=bytearray)
    streams: list[int] = field(default_factory=list)

    def read(self) -> bytes | None:
        """Return the request; None if some of it is yet to come.

        Raises:
            OSError: The starter has ended.
            ValueError: It is too long, or has too many streams.
        """
        try:
            piece, streams, _, _ = socket.recv_fds(self.connection, _PIECE_BYTES, 3)
        except BlockingIOError:
            return None
        self.streams.extend(streams)
        self.received.extend(piece)
        size = int.from_bytes(self.received[:4], sys.byteorder)
        if not piece:
            raise ConnectionResetError("a starter has ended")
        if size > LARGEST or len(self.received) > 4 + LARGEST or len(self.streams) > 3:
            raise ValueError(f"a request of {size} bytes and {len(self.streams)} streams")
        is_whole = len(self.received) >= 4 + size and len(self.received) > 4
        return bytes(self.received[4:]) if is_whole else None

    def close(self) -> None:
        """Close the connection, and what has come with it."""
        self.connection.close()
        self.close_streams()

    def close_streams(self) -> None:
        """Close the streams that have come with the request."""
        for stream in self.streams:
            os.close(stream)
        self.streams.clear()


def start(system: OperatingSystem | None = None) -> None:
    """Fork a server for this process's siblings, if they have none and the system lets it.

    It returns in this process. In the server, and in those that it forks, it raises SystemExit, or
    what the module that the process runs has raised.
    """
    where = address() if (system or this_system()).has_fork_server else None
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
        self._asking: dict[int, _Starter] = {}  # by descriptor
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
        self._listener.setblocking(False)
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
                self._refuse(list(self._asking))
            elif serving:
                request = self._serve(ready)
                if request is not None:
                    return request
        return None

    def _serve(self, ready: set[int]) -> Request | None:
        """Take what has come; return the request in a forked process."""
        if self._listener.fileno() in ready:
            self._accept()
        for starter in ready & self._asking.keys():
            request = self._hear(starter)
            if request is not None:
                return request
        now = time.monotonic()
        self._refuse([at for at, starter in self._asking.items() if starter.until <= now])
        if self._modules and not ready:
            preload([self._modules.popleft()])
        return None

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no more files can be opened
            _say(str(error))
            time.sleep(_PAUSE_SECONDS)
            return
        if not is_ours(connection) or len(self._asking) >= _MOST_STARTERS:
            connection.close()
            return
        connection.setblocking(False)
        with suppress(OSError):  # if it has ended, that is found when its request is read
            connection.send(READY)
        until = time.monotonic() + _REQUEST_SECONDS
        self._asking[connection.fileno()] = _Starter(connection, until)

    def _refuse(self, starters: Sequence[int]) -> None:
        for starter in starters:
            self._asking.pop(starter).close()  # it starts without a server

    def _hear(self, descriptor: int) -> Request | None:
        """Read of a request; fork once it is whole, and return it in the forked process."""
        starter = self._asking[descriptor]
        try:
            message = starter.read()
            if message is None:
                return None
            request = _request(message, starter.streams)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            _say(str(error))
            request = None
        if request is None:
            self._refuse([descriptor])
            return None
        return self._fork(request, self._asking.pop(descriptor))

    def _ready(self, *, serving: bool) -> set[int]:
        poller = select.poll()
        poller.register(self._signals, select.POLLIN)
        for starter in self._starters:
            poller.register(starter, 0)  # it can only hang up
        if serving:
            poller.register(self._listener, select.POLLIN)
            poller.register(self._jvm, 0)
        for starter in self._asking:
            poller.register(starter, select.POLLIN)
        ready = {descriptor for descriptor, _ in poller.poll(self._wait_ms(serving=serving))}
        with suppress(BlockingIOError):
            os.read(self._signals, 4096)
        return ready

    def _wait_ms(self, *, serving: bool) -> float | None:
        if serving and self._modules:
            return 0
        ends = [starter.until for starter in self._asking.values()]
        return max(min(ends) - time.monotonic(), 0) * 1000 + 1 if ends else None

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

    def _fork(self, request: Request, starter: _Starter) -> Request | None:
        """Fork; return the request in the forked process."""
        try:
            process = os.fork()
        except OSError as error:
            _say(str(error))
            starter.close()
            return None
        if process == 0:
            self._leave()
            _wait_for_go(starter.connection)
            return request
        starter.close_streams()
        is_daemon = request.arguments[1] == DAEMON
        end_signal = signal.SIGTERM if is_daemon else signal.SIGKILL
        forked = _Forked(process, starter.connection, end_signal)
        self._forked[process] = self._starters[starter.connection.fileno()] = forked
        with suppress(OSError):  # if it has ended, it is found to have hung up
            starter.connection.sendall(FORKED)
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
        self._refuse(list(self._asking))
        self._forked, self._starters = {}, {}


def _wait_for_go(starter: socket.socket) -> None:
    """Return once the starter says that this process is to run; end if it has given up."""
    starter.setblocking(True)
    with starter:
        if receive(starter, 1) != GO:
            os._exit(0)


def _request(message: bytes, streams: list[int]) -> Request | None:
    """Read a request; None if the process cannot come from this server.

    Raises:
        ValueError: It is no request.
    """
    python, folder, group, environment, arguments = json.loads(message)
    names = [python, folder, *environment, *environment.values(), *arguments]
    if not all(isinstance(name, str) for name in names) or type(group) is not int:
        raise ValueError("a request of another form")
    here = sys.executable, os.getcwd(), _common(os.environ)  # noqa: PTH109
    is_from_here = (python, folder, _common(environment)) == here
    if len(streams) != 3 or len(arguments) < 2 or not is_from_here:
        return None
    return Request(arguments, group, environment, list(streams))


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
    this_system().name_process(name)


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
