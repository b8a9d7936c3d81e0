"""A handler and how it is called: :class:`Processor`."""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any, Final, Literal

from kshare.core.showing import shown
from kshare.dead_letters.record import Outcome, Record, Source
from kshare.errors import OptionsError
from kshare.processing.core.effects import Edge
from kshare.processing.core.scheduler import Scheduler
from kshare.processing.core.settings import AdaptiveLimit, OnFailure, Settings
from kshare.processing.decoding import Deserializer, Deserializers, fault_of
from kshare.processing.engine import Engine
from kshare.processing.handler import Handler
from kshare.processing.measures import Running
from kshare.processing.not_before import NotBefore
from kshare.processing.policy import DeadLetter, FailurePolicy, Park, Retry, Stop, seconds_of

if TYPE_CHECKING:
    from kshare.group import KeySharedConsumer
    from kshare.processing.frames import Frame

__all__ = ["Processor"]

_BATCH: Final = 500
_RECORDS: Final = 10_000
_RECORDS_OF_CALL: Final = 100
_CANCEL_SECONDS: Final = 10.0
_ORDERS: Final = ("key", "none", "partition")
_FAILURES: Final = {
    DeadLetter: OnFailure.DEAD_LETTER,
    Park: OnFailure.PARK,
    Stop: OnFailure.STOP,
}


class Processor:
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
            means nothing.
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

    def __init__(
        self,
        handler: Callable[..., Any],
        *,
        concurrency: int | Literal["auto"] = 64,
        timeout: str | float | None = None,
        retry: Retry | None = None,
        on_failure: FailurePolicy | None = None,
        order: Literal["key", "none", "partition"] = "key",
        batch_size: int | None = None,
        on_batch: bool = False,
        max_records: int | None = None,
        max_bytes: int = 64 << 20,
        max_delay: str | float | None = "1d",
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        drain_timeout: str | float = "30s",
        on_outcome: Callable[[Outcome], object] | None = None,
    ) -> None:
        problems = list(
            filter(
                None,
                [
                    _fault_of(handler),
                    fault_of("key_deserializer", key_deserializer),
                    fault_of("value_deserializer", value_deserializer),
                ],
            )
        )
        if concurrency != "auto":
            _check(concurrency, "concurrency", problems, hint=", or 'auto'")
        if order not in _ORDERS:
            problems.append(f"order is {shown(order)}; wanted key, none or partition")
        on_failure = Stop() if on_failure is None else on_failure
        problems += filter(None, [_fault_of_policy(on_failure, order)])
        if iscoroutinefunction(on_outcome):
            problems.append("on_outcome is a coroutine function; wanted a plain one, nobody awaits")
        batch_size = (_BATCH if on_batch else 1) if batch_size is None else batch_size
        max_records = _records_max(concurrency, batch_size) if max_records is None else max_records
        for name, number in (
            ("batch_size", batch_size),
            ("max_records", max_records),
            ("max_bytes", max_bytes),
        ):
            _check(number, name, problems)
        retry = retry or Retry()
        plan = retry.plan(problems)
        seconds = None if timeout is None else seconds_of("timeout", timeout, problems)
        most_delay = None if max_delay is None else seconds_of("max_delay", max_delay, problems)
        self.drain_seconds = seconds_of("drain_timeout", drain_timeout, problems)
        if problems:
            raise OptionsError(problems, of="the arguments of Processor")
        self.handler = Handler(
            handler,
            takes_batches=on_batch or batch_size > 1,
            retry=retry,
            deserializers=Deserializers(key_deserializer, value_deserializer),
        )
        self.not_before = NotBefore(most_delay)
        self.order = order
        self.on_failure: FailurePolicy = on_failure
        self.on_outcome = on_outcome
        self.is_adaptive = concurrency == "auto"
        self.running: Running | None = None
        self.settings = Settings(
            concurrency=AdaptiveLimit().limit if concurrency == "auto" else concurrency,
            records_max=max_records,
            bytes_max=max_bytes,
            timeout_seconds=seconds,
            cancel_seconds=_CANCEL_SECONDS if self.handler.is_async else 0.0,
            retry=plan,
            on_failure=_FAILURES[type(on_failure)],
            sequence=isinstance(on_failure, DeadLetter) and on_failure.sequence,
            batch_size=batch_size,
            mixes_keys=on_batch,
        )

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

    # -- for those who run it ---------------------------------------------------------------

    def engine(self, edge: Edge, *, gives_back: bool = False) -> Engine:
        """Make an engine in the event loop that runs.

        Args:
            edge: What is outside it.
            gives_back: Whether records may be given back, as far as the order is that of keys.
        """
        limit = AdaptiveLimit() if self.is_adaptive else None
        settings = replace(self.settings, gives_back=gives_back and self.order == "key")
        return Engine(Scheduler(settings), self.handler, edge, limit)

    def lane_of(self, source: Source, offset: int, key: bytes | None) -> Hashable:
        """The lane of a record: those of one lane are processed one after another."""
        partition = source.topic_partition
        if self.order == "partition":
            return partition
        if self.order == "none" or key is None:
            return partition, offset
        return partition, key

    def record(
        self, source: Source, row: int, offset: int, key: bytes | None, value: bytes | None
    ) -> Record:
        """A record for :meth:`engine`."""
        return Record(source, row, offset, key, value, self.lane_of(source, offset, key))


def _fault_of(handler: Any) -> str | None:
    if not callable(handler):
        return f"handler is {shown(handler)}; wanted a function"
    if isgeneratorfunction(handler) or isasyncgenfunction(handler):
        return (
            f"handler is {shown(handler)}, which has a yield, so nothing of it runs when it is "
            "called; wanted a function that returns its result"
        )
    return None


def _fault_of_policy(policy: Any, order: str) -> str | None:
    if type(policy) not in _FAILURES:
        return f"on_failure is {shown(policy)}; wanted DeadLetter(...), Park() or Stop()"
    if isinstance(policy, DeadLetter) and not policy.topic:
        return "on_failure=DeadLetter(...) has no topic"
    if isinstance(policy, DeadLetter) and policy.sequence and order != "key":
        what = "DeadLetter(..., sequence=True) follows keys"
    elif isinstance(policy, Park) and order == "partition":  # its other keys would wait for ever
        what = "Park() parks keys"
    else:
        return None
    return f"on_failure={what}, and order is {shown(order)}; wanted order='key'"


def _records_max(concurrency: int | Literal["auto"], batch_size: int) -> int:
    """As many records as are needed to find other keys, or full batches, for all calls."""
    calls = AdaptiveLimit().most if concurrency == "auto" else concurrency
    are_numbers = isinstance(calls, int) and isinstance(batch_size, int)
    return max(_RECORDS, calls * max(_RECORDS_OF_CALL, 2 * batch_size)) if are_numbers else _RECORDS


def _check(number: Any, name: str, problems: list[str], *, hint: str = "") -> None:
    if type(number) is not int or number < 1:
        problems.append(f"{name} is {shown(number)}; wanted a number from 1 up{hint}")
