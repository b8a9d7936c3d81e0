"""A web server that answers every POST at once: ``python -m bench.http_server`` prints its address.

It does as little as it can, as it shares the machine with what is measured.
"""

import asyncio
import re

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Answers(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        received = self._received + data
        while (head := received.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(received, 0, head)
            end = head + 4 + (int(length[1]) if length else 0)
            if len(received) < end:
                break
            received = received[end:]
            self._transport.write(_ANSWER)
        self._received = received


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answers, "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
