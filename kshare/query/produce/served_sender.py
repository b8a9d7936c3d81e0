"""A sender whose producer is served while its task waits for the next rows.

librdkafka keeps what it reports until a poll takes it: statistics every 50 ms, which are 3 KB, or
100 KB where a topic has 100 partitions; faults; and that a token is about to expire. Whoever sends
polls. But the next rows may take minutes, behind a slow operator or in a batch that reads for a
while.

::

    the task's thread:  sends | waits for rows ............................ | sends
    the one beside it:        | polls -0.5 s-> polls -0.5 s-> polls ....... |

Guarantees: one thread at a time uses the sender. A fault that shows while rows are waited for is
raised by the task's thread: with the next rows, or at their end.

Cost: a thread; for a batch of rows, a lock that is mostly free.
"""

import threading
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from kshare.query.produce.sender import Sender

__all__ = ["ServedSender"]

_SECONDS: Final = 0.5


class ServedSender:
    """Sends rows by a sender, and serves it in between. For one thread.

    ::

        with ServedSender(sender) as served:
            for batch in batches:
                served.send(batch, topic)

    Args:
        sender: The sender; nobody else uses it until the block ends.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._turn = threading.Lock()
        self._ended = threading.Event()
        self._fault: BaseException | None = None
        # A daemon: a process that exits amid a batch does not wait for it.
        self._thread = threading.Thread(target=self._run, name="kshare sink", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if kind is None:
            self._raise_fault()

    def send(self, batch: pa.RecordBatch, topic: str | None) -> None:
        """Hand over a batch; see :meth:`~kshare.query.produce.sender.Sender.send`.

        Raises:
            KafkaError: As the sender's, or what has shown since the last batch.
        """
        with self._turn:
            self._raise_fault()
            self._sender.send(batch, topic)

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _run(self) -> None:
        while not self._ended.wait(_SECONDS):
            with self._turn:
                self._serve()

    def _serve(self) -> None:
        if self._fault is not None:  # its rows are not sent: what is reported still has to go
            self._sender.discard()
            return
        try:
            self._sender.poll(0)
        except BaseException as error:  # the task's thread raises it
            self._fault = error
