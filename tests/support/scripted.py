"""A log of hand-made batches, served as a leader serves it, in responses of any size."""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kshare.options import KafkaConfig
from kshare.wire.protocol.broker_pool import Leaders
from kshare.wire.reader import slice_reader
from tests.support.batches import split_batches


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
        self.response_bytes = response_bytes
        self._aborted = aborted
        self._waiting: list[Any] = []
        self.fetches: list[tuple[int, int]] = []  # offset, bytes asked for
        self.left_in_flight: list[int] = []  # at the end of each reader

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(slice_reader, "Leaders", lambda kafka: self)

    @contextmanager
    def connection(
        self, topic: str, partition: int, node_id: int | None = None
    ) -> Iterator["ScriptedLog"]:
        assert node_id is None
        self._waiting.clear()
        yield self
        self.left_in_flight.append(len(self._waiting))

    def preference(self, topic: str, partition: int) -> None:
        """No follower is read."""

    def version(self, request: type[Any], lowest: int, highest: int) -> int:
        return highest

    def send(self, request: Any) -> None:
        wanted = request.topics[0].partitions[0]
        self.fetches.append((wanted.fetch_offset, wanted.partition_max_bytes))
        self._waiting.append(wanted)

    def receive(self, extra_seconds: float) -> memoryview:
        wanted = self._waiting.pop(0)
        room = min(self.response_bytes, wanted.partition_max_bytes)
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
        return self.response(records, touching)

    def response(
        self,
        records: bytes = b"",
        aborted: Sequence[bytes] = (),
        *,
        error: int = 0,
        preferred: int = -1,
    ) -> memoryview:
        """The body of a Fetch response."""
        last = self._batches[-1][0]
        head = struct.pack(">ihiih", 0, 0, 0, 1, 1) + b"t"
        head += struct.pack(">iihqqqi", 1, 0, error, last, last, 0, len(aborted))
        head += b"".join(aborted)
        return memoryview(head + struct.pack(">ii", preferred, len(records)) + records)


class ScriptedReplica(ScriptedLog):
    """A leader or a follower, which misbehaves as told.

    Args:
        batches: encoded: what it holds.
        broker: its name.
        names: the node that it names to readers who tell their rack; None: nobody.
        answers: to its next requests: a code of Kafka; an error to raise; EMPTY: no records; None:
            as ever.
        options: see :class:`ScriptedLog`.
    """

    EMPTY = "empty"

    def __init__(
        self,
        batches: Sequence[bytes],
        broker: str,
        *,
        names: int | None = None,
        answers: Sequence[int | str | Exception | None] = (),
        **options: Any,
    ) -> None:
        super().__init__(batches, **options)
        self.broker, self.names, self.answers = broker, names, list(answers)
        self.start = 0
        self.racks: list[str] = []  # told in each request

    def send(self, request: Any) -> None:
        super().send(request)
        self.racks.append(request.rack_id)

    def receive(self, extra_seconds: float) -> memoryview:
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            self._waiting.pop(0)
            return self.response(error=answer)
        rack = self.racks[len(self.racks) - len(self._waiting)]
        offset = self._waiting[0].fetch_offset
        if rack and self.names is not None:
            self._waiting.pop(0)
            return self.response(preferred=self.names)
        if offset > self._batches[-1][0] or offset < self.start:
            self._waiting.pop(0)
            return self.response(error=1)
        if answer == self.EMPTY or offset == self._batches[-1][0]:
            self._waiting.pop(0)
            return self.response()
        return super().receive(extra_seconds)

    def call(self, request: Any) -> Any:
        """The bounds of the log, as ListOffsets has them."""
        asked = request.topics[0].partitions[0].timestamp
        found = SimpleNamespace(
            error_code=0, offset={-2: self.start, -1: self._batches[-1][0]}[asked]
        )
        return SimpleNamespace(topics=[SimpleNamespace(partitions=[found])])


class ScriptedBrokers(Leaders):
    """What stands in for a cluster of one partition's replicas, by their node ids.

    What is preferred is remembered as ever; ``forgotten`` counts what was forgotten.
    """

    def __init__(
        self, kafka: KafkaConfig, leader: int, replicas: dict[int, ScriptedReplica]
    ) -> None:
        super().__init__(kafka)
        self.leader, self.replicas = leader, replicas
        self.opened: list[int] = []
        self.forgotten = 0

    def forget(self, topic: str, partition: int) -> None:
        self.forgotten += 1

    @contextmanager
    def connection(  # type: ignore[override]
        self, topic: str, partition: int, node_id: int | None = None
    ) -> Iterator[ScriptedReplica]:
        node = self.leader if node_id is None else node_id
        self.opened.append(node)
        if node not in self.replicas:
            raise OSError(f"broker {node} is not in the cluster's metadata")
        with self.replicas[node].connection(topic, partition):
            yield self.replicas[node]
