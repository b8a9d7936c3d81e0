"""Frames of Kafka's protocol, received into one buffer that is used again for the next one."""

import socket
import ssl
import struct
import time
from collections.abc import Generator
from typing import Final

import numpy as np

__all__ = ["FrameReceiver", "ProtocolError"]

_FRAME_AT_ONCE: Final = 64 << 20
"""Bytes allocated by what a frame's length says; a longer frame grows as it arrives."""
_IDLE_BYTES_MAX: Final = 64 << 10
"""Bytes of a buffer that are kept between readers; more costs little beside receiving it."""


class ProtocolError(OSError):
    """The peer does not speak Kafka's protocol, or answers out of step."""


class FrameReceiver:
    """Receives frames, one after the other. No bytes of a frame up to 64 MiB are copied.

    Args:
        broker: Host and port, for texts.
    """

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._buffer = np.empty(0, np.uint8)
        self._frame: Generator[memoryview, None, memoryview] | None = None  # that is received
        self._room = memoryview(b"")  # of it, for what comes next

    def receive(
        self, source: socket.socket, deadline: float | None, *, least: int = 4
    ) -> memoryview | None:
        """The next frame; without a deadline, None as long as it is not there as a whole.

        The view is valid until the next call.

        Args:
            source: Where it comes from.
            deadline: By :func:`time.monotonic`.
            least: The fewest bytes that it has: a correlation id.

        Raises:
            OSError: The connection failed, or nothing came in time.
        """
        if self._frame is None:
            self._frame = self._next_frame(least)
            self._room = next(self._frame)
        while True:
            while len(self._room):
                got = self._receive_some(source, deadline)
                if got is None:
                    return None
                self._room = self._room[got:]
            try:
                self._room = next(self._frame)
            except StopIteration as end:
                self._frame = None
                frame: memoryview = end.value
                return frame

    def clear(self) -> None:
        """Forget the frame that is being received."""
        self._frame = None

    def free(self) -> None:
        """Give up a large buffer, between two frames. Views of it stay valid."""
        if self._frame is None and len(self._buffer) > _IDLE_BYTES_MAX:
            self._buffer = np.empty(0, np.uint8)
            self._room = memoryview(b"")  # the empty rest of the last frame holds the buffer, too

    def _next_frame(self, least: int) -> Generator[memoryview, None, memoryview]:
        """Yield what the parts of a frame are to be received into, and return it."""
        head = bytearray(4)
        yield memoryview(head)
        (size,) = struct.unpack(">i", head)
        if size < least:
            raise ProtocolError(
                f"broker {self._broker} announced a response of {size} bytes: no Kafka broker"
            )
        received = 0
        while received < size:
            goal = min(size, max(_FRAME_AT_ONCE, 2 * received))
            if len(self._buffer) < goal:
                grown = np.empty(goal, np.uint8)
                grown[:received] = self._buffer[:received]
                self._buffer = grown
            yield self._buffer.data[received:goal]
            received = goal
        return self._buffer.data[:size]

    def _receive_some(self, source: socket.socket, deadline: float | None) -> int | None:
        """The number of bytes that were received; None if none are there, without a deadline."""
        left = 0.0
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(
                    f"broker {self._broker} did not answer within request.timeout.ms"
                )
        source.settimeout(left)
        try:
            got = source.recv_into(self._room)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None  # the last one: TLS itself has something to say, and says it next time
        if not got:
            raise ConnectionResetError(f"broker {self._broker} closed the connection")
        return got
