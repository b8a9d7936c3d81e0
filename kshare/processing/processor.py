"""Calls a handler for records, in a process or in Spark: :class:`Processor`."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kshare.processing.handling import Handling

if TYPE_CHECKING:
    from kshare.group import KeySharedConsumer
    from kshare.processing.frames import Frame

__all__ = ["Processor"]


class Processor(Handling):
    """Calls a handler for records: many at a time, and one after another for each key.

    Nothing is started when one is made, so that it can be made anywhere, and pickled if its handler
    can be.

    Args:
        handler: Called with a :class:`~kshare.processing.Record`; with a list of them if
            ``batch_size`` is above 1 or ``on_batch``. A coroutine function, or a plain function:
            that runs in threads. What it returns is the result; ``FILTERED``: nothing was to be
            done. For a list it may return a list with a result, or an exception, for each.
        concurrency: Maximum number of calls at a time; ``"auto"`` adapts it to latencies, up to
            1,024.
        timeout: Maximum time of an attempt, such as ``"30s"`` or seconds; None for no limit. A
            coroutine function is cancelled then, and has 10 s to end.
        retry: How often a failed record is tried, and when.
        on_failure: What becomes of one that has failed for good: ``DeadLetter(topic)``, ``Park()``
            or ``Stop()``.
        order: What is processed one after another: the records of a key, of a partition, or
            nothing (``"none"``). Records without a key have no order but that of their partition.
        batch_size: Maximum number of records of a call; of one key, unless ``on_batch``.
        on_batch: Whether a call may have records of many keys, 500 by default.
        max_records: Maximum number of records that are held; nothing is read beyond that. None: 100
            or two batches for each call that may run, and 10,000 at least.
        max_bytes: Maximum size of their keys and values.
        max_delay: By how much a record's header ``not-before`` may delay it and its key, such as
            ``"1d"`` or seconds. A later time is passed over, with a warning. None: the header
            means nothing. Not for Spark: the header means nothing there.
        key_deserializer: Makes a record's ``key`` of bytes, as in
            ``confluent_kafka.DeserializingConsumer``: called with them and a
            ``SerializationContext`` that has the record's topic and headers. A coroutine function
            is awaited, also for a plain handler. What it cannot decode has failed for good.
        value_deserializer: The same for ``value``.
        drain_timeout: Maximum time to end what is under way when it has to stop.
        on_outcome: Called with each :class:`~kshare.processing.Outcome`, in each key's order, after
            the record is acknowledged. It must not block. Not for Spark: outcomes are rows there.

    Raises:
        OptionsError: Arguments are wrong; every fault is listed.
    """

    def run(
        self,
        consumer: "KeySharedConsumer",
        topics: Iterable[str | re.Pattern[str]] | re.Pattern[str] | None,
    ) -> None:
        """Process the records of topics until SIGTERM or SIGINT; close the consumer.

        Records are acknowledged when they have their outcomes. When it ends, what is under way is
        ended within ``drain_timeout``, and the rest stays pending.

        Handlers run in an event loop of the processor's own: uvloop's, where that is installed
        (the extra ``processing``) and, before Python 3.14, no policy for event loops is set.

        Where an event loop runs already, as in a notebook's cell, the processor has a loop and a
        thread of its own, and that one waits. Interrupt the cell to end it. In a coroutine, write
        ``await asyncio.to_thread(processor.run, consumer, topics)``.

        Args:
            consumer: With ``acknowledgement.mode=explicit``. The processor polls it.
            topics: What to subscribe to, as ``consumer.subscribe`` takes it; None if the consumer
                has partitions already (``assign``).

        Raises:
            OptionsError: The consumer is configured in another way; every fault is listed.
            ProcessingError: A record has failed for good, with ``Stop()``.
            KshareError: The consumer cannot go on.
        """
        from kshare.processing.runner import run  # noqa: PLC0415 - Spark's tasks need none of it

        run(self, consumer, topics)

    def run_batch(
        self, frame: "Frame", *, key: str = "key", options: Mapping[str, str] | None = None
    ) -> Counter[str]:
        """Process a ``DataFrame`` of Spark now, as ``foreachBatch`` needs it.

        Args:
            frame: As for :func:`~kshare.processing.process_by_key`.
            key: Name of the column of keys.
            options: Where Kafka is, for ``DeadLetter``.

        Returns:
            The number of rows by status, such as ``{"done": 998, "dead_lettered": 2}``.

        Raises:
            OptionsError: Arguments are wrong; every fault is listed.
        """
        from kshare.processing.frames import run_batch  # noqa: PLC0415 - a plain process needs none

        return run_batch(self, frame, key=key, options=options)
