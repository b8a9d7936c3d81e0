"""Ports for test brokers, of which no two processes get the same."""

import random
import socket

__all__ = ["HOST", "free_ports"]

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Return unused ports, outside the range of ephemeral ones."""
    ports: list[int] = []
    candidates = random.SystemRandom().sample(range(20_000, 32_000), 1_000)
    for port in candidates:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        if _reserve(port):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise RuntimeError("no free ports between 20000 and 32000")


_RESERVED: list[socket.socket] = []


def _reserve(port: int) -> bool:
    """Reserve a port among all processes of the tests, for as long as this one lives.

    A broker binds its ports seconds after they were chosen.
    """
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0kshare-test-port-{port}")
    except OSError:
        mark.close()
        return False
    _RESERVED.append(mark)
    return True
