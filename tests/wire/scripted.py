"""A log of hand-made batches, served as a leader serves it, in responses of any size."""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from kshare.wire import fetch
from tests.wire.batches import split_batches


class ScriptedLog:
    """What stands in for leaders and connections: some batches, in the order of their offsets.

    Args:
        batches: encoded.
        response_bytes: at most so many a response, but one batch at least.
        aborted: (producer id, first offset, offset of the end) of aborted transactions; as by a
            broker, a response tells those that touch it.
    """

    broker = "scripted:1"

    def __init__(
        self,
        batches: Sequence[bytes],
        *,
        response_bytes: int = 1 << 20,
        aborted: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        self._batches = []
        for data in batches:
            (batch,), _ = split_batches(data)
            self._batches.append((batch.base + batch.last_delta + 1, data))
        self._response_bytes = response_bytes
        self._aborted = aborted
        self._waiting: list[Any] = []
        self.fetches: list[tuple[int, int]] = []  # offset, bytes asked for
        self.left_in_flight: list[int] = []  # at the end of each reader

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fetch, "Leaders", lambda kafka: self)

    @contextmanager
    def connection(self, topic: str, partition: int) -> Iterator["ScriptedLog"]:
        self._waiting.clear()
        yield self
        self.left_in_flight.append(len(self._waiting))

    def version(self, request: type[Any], lowest: int, highest: int) -> int:
        return highest

    def send(self, request: Any) -> None:
        wanted = request.topics[0].partitions[0]
        self.fetches.append((wanted.fetch_offset, wanted.partition_max_bytes))
        self._waiting.append(wanted)

    def receive(self, extra_seconds: float) -> memoryview:
        wanted = self._waiting.pop(0)
        room = min(self._response_bytes, wanted.partition_max_bytes)
        records, reached = b"", 0
        for end, data in self._batches:
            if end > wanted.fetch_offset and (not records or len(records) + len(data) <= room):
                records += data
                reached = end
            elif records:
                break
        assert records, f"nothing there at offset {wanted.fetch_offset}"
        touching = [
            struct.pack(">qq", producer, first)
            for producer, first, stop in self._aborted
            if first < reached and stop >= wanted.fetch_offset
        ]
        last = self._batches[-1][0]
        head = struct.pack(">ihiih", 0, 0, 0, 1, 1) + b"t"
        head += struct.pack(">iihqqqi", 1, 0, 0, last, last, 0, len(touching))
        head += b"".join(touching)
        return memoryview(head + struct.pack(">ii", -1, len(records)) + records)
