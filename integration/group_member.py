"""A member of a key-shared group in a process of its own: what it hands out, it prints.

``python -m integration.group_member SERVERS TOPIC LOG GROUP LO HI END PAUSE`` prints a line for
each record (time in ns, offset, key), and ends when all records below END are committed.
"""

import sys
import time
from contextlib import closing

from kshare.core.hashing import HashRange, KeyRanges
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, Slice, TopicPartition
from kshare.errors import FencedError, FetchTimeoutError
from kshare.group.config.consumer_config import consumer_config
from kshare.group.delivery_start import DeliveryStart
from kshare.group.session.session import GroupSession
from kshare.read.reader.read_slice import read_slice

FENCED = 3
_COMMIT_EVERY = 5
_SECONDS = 30.0


class Worker:
    """Hands out the records of one hash range, one at a time."""

    def __init__(self, servers: str, topic: str, log: str, group: str, hashes: HashRange) -> None:
        self.partition = TopicPartition(topic, 0)
        self.hashes = hashes
        self._since: DeliveryStart | None = None  # the start that it has delivered from
        self._done = Progress.at(0)
        self._options = {"kafka.bootstrap.servers": servers}
        self._session = GroupSession(
            consumer_config(
                {
                    "bootstrap.servers": servers,
                    "group.id": group,
                    "individual.commit.topic": log,
                    "auto.offset.reset": "earliest",
                    "claim.timeout.ms": 1_000,
                }
            )
        )

    def run(self, end: int, pause: float) -> None:
        """Process all records below an offset."""
        with closing(_Closing(self._session)):
            self._session.claim({self.partition: KeyRanges([self.hashes])})
            while not self._pass(end, pause):
                self._session.check()
                time.sleep(0.01)

    def _pass(self, end: int, pause: float) -> bool:
        """From a start to the end, or to where something has changed; whether it was the end."""
        since = self._session.started().get(self.partition)
        if since is None:
            return False
        if since != self._since:
            self._since, self._done = since, since.done
        pending = self._done.pending(end, self.hashes)
        if pending:
            wanted = Slice(*self.partition, pending)
            for batch in read_slice(wanted, self._options):
                rows = zip(batch["offset"].to_pylist(), batch["key"].to_pylist(), strict=True)
                for offset, key in rows:
                    if not self._may_deliver(since):
                        return False
                    print(time.monotonic_ns(), offset, key.decode(), flush=True)
                    time.sleep(pause)
                    self._advance(offset + 1)
                    if offset % _COMMIT_EVERY == 0:
                        self._commit(self._done, since)
        self._advance(end)
        return self._commit(self._done, since) >= end

    def _advance(self, position: int) -> None:
        self._done = self._done.commit([Rectangle(OffsetRange(0, position), self.hashes)])

    def _may_deliver(self, since: DeliveryStart) -> bool:
        return self._session.may_deliver() and (
            self._session.started().get(self.partition) == since
        )

    def _commit(self, done: Progress, since: DeliveryStart) -> int:
        starts = {self.partition: since}
        try:
            answer = self._session.commit({self.partition: done}, _SECONDS, starts=starts)
        except FetchTimeoutError:
            return -1
        return answer.get(self.partition, -1)


class _Closing:
    def __init__(self, session: GroupSession) -> None:
        self._session = session

    def close(self) -> None:
        self._session.close(5)


def main(
    servers: str, topic: str, log: str, group: str, lo: str, hi: str, end: str, pause: str
) -> int:
    """Run a member."""
    try:
        Worker(servers, topic, log, group, HashRange(int(lo), int(hi))).run(int(end), float(pause))
    except FencedError as error:
        print(error, file=sys.stderr)
        return FENCED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
