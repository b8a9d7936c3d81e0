"""A consumer that subscribes and is polled in a thread, on the mock cluster."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from kshare.core.hashing import HASH_SPACE, HashRange
from kshare.core.progress import TopicPartition
from kshare.group import KeySharedConsumer
from kshare.kafka.policies import PolicyWatch
from kshare.testing import FakeCluster
from tests.support.groups import T0, quick_settings
from tests.support.policies import FakePolicies

Changes = Mapping[TopicPartition, tuple[HashRange, ...]]


class Polling:
    """A consumer that is polled in a thread, and what it is told."""

    def __init__(
        self, cluster: FakeCluster, policies: FakePolicies | None = None, **config: Any
    ) -> None:
        self.offsets: list[int] = []
        self.told: list[tuple[str, Changes]] = []
        self.faults: list[Exception] = []
        self.consumer = KeySharedConsumer(
            quick_settings(cluster.bootstrap_servers, **config),
            policies=PolicyWatch if policies is None else policies,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> "Polling":
        def tell(what: str) -> Callable[[Changes], None]:
            return lambda changes: self.told.append((what, changes))

        self.consumer.subscribe(["orders"], tell("assigned"), tell("revoked"), tell("lost"))
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                message = self.consumer.poll(0.05)
            except Exception as error:
                self.faults.append(error)
                self._stop.wait(0.05)
                continue
            if message is not None:
                self.offsets.append(message.offset())
                self.consumer.acknowledge(message)

    def width(self) -> int:
        """How many key hashes of T0 it has."""
        assignment = self.consumer.assignment()
        if T0 not in assignment:
            return 0
        return sum(part.width for part in assignment[T0]) or HASH_SPACE

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self.consumer.close()
