"""A fast start of one of Spark's processes, for ``kshare-python``: by the session's fork server.

``python3 -I -S forked_start.py -m MODULE ...`` asks :mod:`spark_plugin.fork_server` to fork a
process that runs the module, lends it its standard streams, and waits: it ends as that process
does, and if it is killed, so is that process. Without a server, or if that one is of another
environment, it becomes such a process itself (:mod:`spark_plugin.plain_start`). It imports only
what is built into Python: pathlib alone takes longer than all of this.
"""

import _json  # json takes 5 ms
import _signal  # type: ignore[import-not-found]  # so does signal
import _socket
import os
import sys
import time
from typing import NoReturn

__all__ = ["DAEMON", "FORKED", "GO", "LARGEST", "READY", "address", "is_ours", "receive"]

DAEMON = "pyspark.daemon"
READY = b"\3"
"""The server has accepted. Streams sent to one that is stopped would stay open until it goes on."""
FORKED = b"\1"
"""The server's answer once it has forked; without it, it closes the connection."""
GO = b"\2"
"""What the forked process waits for: from then on its starter has no other."""
LARGEST = 1 << 20
"""Bytes of a request, at most."""
_SECONDS = 0.5  # for the server's answer: it may be stopped, or be another user's
_CREDENTIALS_BYTES = 12


def address() -> str | None:
    """Return the address of the fork server for processes of this one's parent, a Spark's JVM.

    It is an abstract one of Linux, which goes with its server.

    Returns:
        None if the parent is no JVM, or there is no ``/proc`` to see that.
    """
    if os.environ.get("KSHARE_PORTABLE") == "1":  # kshare.operating_system, which takes 10 ms
        return None
    parent = os.getppid()
    try:
        program = os.readlink(f"/proc/{parent}/exe")  # noqa: PTH115
        with open(f"/proc/{parent}/stat", "rb") as stat:  # noqa: PTH123
            started = int(stat.read().rpartition(b")")[2].split()[19])
        # Two containers may share their network, and then the addresses, but not their processes.
        namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    except (OSError, ValueError, IndexError):
        return None
    if not program.endswith("/java"):
        return None
    return f"\0kshare-forks-{os.getuid()}-{namespace}-{parent}-{started}"


def is_ours(connection: "_socket.socket") -> bool:
    """Return whether the other side is a process of this user, and of these processes."""
    option = _socket.SOL_SOCKET, _socket.SO_PEERCRED, _CREDENTIALS_BYTES
    peer = connection.getsockopt(*option)
    process, user = (int.from_bytes(peer[at : at + 4], sys.byteorder) for at in (0, 4))
    # A process of another container is not seen in this one: its number is 0.
    return user == os.getuid() and process > 0


def receive(connection: "_socket.socket", size: int) -> bytes:
    """Receive ``size`` bytes, or fewer if the other side has closed the connection."""
    got = b""
    while len(got) < size and (more := connection.recv(size - len(got))):
        got += more
    return got


def _request(arguments: list[str]) -> bytes:
    """Return a request as JSON, which names hold that are no text (``surrogateescape``), too."""
    quoted = _json.encode_basestring_ascii
    environment = ",".join(f"{quoted(name)}:{quoted(value)}" for name, value in os.environ.items())
    said = ",".join(quoted(argument) for argument in arguments)
    here = f"{quoted(sys.executable)},{quoted(os.getcwd())},{os.getpgrp()}"  # noqa: PTH109
    return f"[{here},{{{environment}}},[{said}]]".encode()


def _forked(where: str, arguments: list[str]) -> "_socket.socket | None":
    """Return the connection to a server that has forked a process for the arguments."""
    message, until = _request(arguments), time.monotonic() + _SECONDS
    if len(message) > LARGEST:
        return None
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.settimeout(_SECONDS)
        connection.connect(where)
        if is_ours(connection) and receive(connection, 1) == READY:
            streams = b"".join(stream.to_bytes(4, sys.byteorder) for stream in (0, 1, 2))
            size = len(message).to_bytes(4, sys.byteorder)
            connection.sendmsg([size], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
            connection.sendall(message)
            connection.settimeout(max(until - time.monotonic(), 0.01))
            if receive(connection, 1) == FORKED:
                connection.settimeout(None)
                connection.sendall(GO)
                return connection
    except OSError:
        pass
    connection.close()
    return None


def _end_as(status: int) -> NoReturn:
    """End as a process with this wait status did."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in (_signal.SIGKILL, _signal.SIGSTOP):
            _signal.signal(number, _signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 255)


def main(arguments: list[str]) -> NoReturn:
    """Have a process run, and end as it does."""
    where = address()
    if where is not None and (connection := _forked(where, arguments)) is not None:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        answer = receive(connection, 4)
        _end_as(int.from_bytes(answer, sys.byteorder) if len(answer) == 4 else 1 << 8)
    if where is not None and arguments[:2] == ["-m", DAEMON]:
        arguments = ["spark_plugin.daemon", *arguments[2:]]  # it will be the server's parent
    else:
        arguments = ["spark_plugin.plain_start", *arguments[1:]]
    # -P: spark_plugin puts the current folder on the path, once that can hide nothing of ours.
    os.execv(sys.executable, [sys.executable, "-P", "-m", *arguments])  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
