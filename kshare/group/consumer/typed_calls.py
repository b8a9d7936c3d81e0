"""The calls of a consumer with typed rows: a batch is collected, typed, and returned or given back.

::

    collected (raw) --typed--> gathered --may it still?--> returned; dead letters are acknowledged
         ^                |                   |
         +-- given back --+-------------------+
                          |
       a bad record: what comes before it is collected, and nothing else; if it is the first, it is
       an error
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

import pyarrow as pa

from kshare.core.progress import TopicPartition
from kshare.errors import BadRecordError
from kshare.group.assignments import rows_by_partition
from kshare.group.consumer.call_state import CallState
from kshare.group.consumer.receiver import Receiver
from kshare.group.consumer.typed_batches import (
    StillAskedError,
    TypedBatch,
    TypedBatches,
    first_bad_row,
)
from kshare.group.core.handing_out import Call
from kshare.group.delivery.dispatcher import Dispatcher

__all__ = ["TypedCalls"]

_WAIT_SECONDS: Final = 1.0
"""So long the registry is waited for before the group is followed, and the batch taken again."""


Await = Callable[[Call, float], bool]
"""Waits for a call until a time; whether there is something."""


class TypedCalls:
    """Collects typed batches for calls, and returns them.

    Args:
        batches: Types batches.
        receiver: Waits for records, and knows which call is under way.
        dispatcher: Hands records out.
        state: What the consumer's threads share.
        explicit: Whether records are acknowledged one by one.
    """

    def __init__(
        self,
        batches: TypedBatches,
        receiver: Receiver,
        dispatcher: Dispatcher,
        state: CallState,
        *,
        explicit: bool,
    ) -> None:
        self._batches = batches
        self._receiver = receiver
        self._dispatcher = dispatcher
        self._state = state
        self._explicit = explicit

    def gather(self, call: Call, deadline: float, for_batch: Await, for_rows: Await) -> bool:
        """Collect a batch, and type it; whether there is one to return. For the polling thread.

        Args:
            call: The call.
            deadline: When to end.
            for_batch: Waits for a batch of bytes.
            for_rows: Waits for messages, of which some can be taken.

        Raises:
            BadRecordError: The next record cannot be decoded, with ``bad.records=fail``.
            KshareError: As of :meth:`.TypedBatches.typed`, and as of :meth:`.Calls.next_rows`.
        """
        most: int | None = None
        while (for_batch if most is None else for_rows)(call, deadline):
            collected = self._collected(call, most)
            if collected is not None:
                raw, partition = collected
                until = min(deadline, time.monotonic() + _WAIT_SECONDS)
                try:
                    # Without a lock: it may take long, and others may change what is read.
                    patience = partial(self._patience, call, until)
                    return self._gathered(call, self._batches.typed(raw, partition, patience))
                except BadRecordError as error:
                    self._receiver.give_back()
                    most = first_bad_row(raw, error)
                    if not most:
                        raise
                    continue
                except StillAskedError:
                    self._receiver.give_back()
                except BaseException:
                    self._receiver.give_back()
                    raise
            if self._is_over(call) or time.monotonic() >= deadline:
                return False
        return False

    def _collected(
        self, call: Call, most: int | None
    ) -> tuple[pa.RecordBatch, TopicPartition] | None:
        """Collect the raw batch that is there, or some rows; None if nothing may be returned."""
        with self._state.lock:
            dispatcher = self._dispatcher
            call.made, call.is_gathered = None, False
            is_there = dispatcher.has_batch if most is None else dispatcher.rows.left > 0
            if call.is_cancelled or not is_there:
                return None
            partition = dispatcher.out.current
            if dispatcher.released.is_new(partition):
                return None  # a record before it was released meanwhile: the next look obeys
            call.took(dispatcher.out.delivery)
            if most is None:
                raw = dispatcher.collect_batch()
            else:
                raw = dispatcher.collect_some(most, call.messages)
            self._receiver.fresh.rows = iter(())
            return raw, partition

    def _gathered(self, call: Call, made: TypedBatch) -> bool:
        """A batch is typed; False if the call was cancelled, or its partition has gone."""
        with self._state.lock:
            call.made, call.is_gathered = made, True
            if call.is_cancelled:
                self._receiver.give_back()
        return not call.is_empty

    def returned(self, call: Call, confirmed: Callable[[Call], object]) -> pa.RecordBatch | None:
        """Return the batch that was gathered, if it may be returned now and has rows; else None.

        Raises:
            FencedError: Another consumer has claimed some of the key hashes.
        """
        with self._state.lock:
            made, call.made = call.made, None
            if made is None or call.is_empty:
                return None
            if self._dispatcher.released.is_new(made.partition):
                self._receiver.give_back()  # a record was released meanwhile: as above
                return None
            if confirmed(call) is None:
                return None
            if made.aside is not None and self._explicit:
                for partition, offsets, chunks in rows_by_partition(made.aside):
                    self._dispatcher.state.acknowledge_rows(partition, offsets, chunks)
            batch: pa.RecordBatch = made.batch
            return batch if batch.num_rows else None

    def _patience(self, call: Call, until: float) -> float:
        return 0.0 if self._is_over(call) else until - time.monotonic()

    def _is_over(self, call: Call) -> bool:
        return self._state.is_closed or call.is_cancelled

    def close(self) -> None:
        """Write no more dead letters."""
        self._batches.close()
