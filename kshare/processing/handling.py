"""A handler and how it is called: what :class:`~kshare.processing.Processor` is given, checked."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, Final, Literal

from kshare.core.showing import shown
from kshare.dead_letters.record import Outcome, Record, Source
from kshare.errors import OptionsError
from kshare.options.kinds import topic_fault
from kshare.processing.core.effects import Edge
from kshare.processing.core.scheduler import Scheduler
from kshare.processing.core.settings import AdaptiveLimit, OnFailure, Settings
from kshare.processing.decoding import Deserializer, Deserializers, fault_of
from kshare.processing.engine import Engine
from kshare.processing.handler import Handler
from kshare.processing.measures import Running
from kshare.processing.not_before import MAX_DELAY, NotBefore
from kshare.processing.policy import DeadLetter, FailurePolicy, Park, Retry, Stop, seconds_of

__all__ = ["Handling"]

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


class Handling:
    """How a handler is called: what a :class:`~kshare.processing.Processor` is made of.

    It knows nothing of who runs it: processes and tasks of Spark import this module alone.
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
        max_delay: str | float | None = MAX_DELAY,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        drain_timeout: str | float = "30s",
        on_outcome: Callable[[Outcome], object] | None = None,
    ) -> None:
        found = [
            _fault_of(handler),
            fault_of("key_deserializer", key_deserializer),
            fault_of("value_deserializer", value_deserializer),
        ]
        problems = [fault for fault in found if fault]
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
        _check(batch_size, "batch_size", problems)
        _check(max_records, "max_records", problems)
        _check(max_bytes, "max_bytes", problems)
        problems += filter(None, [_fault_of_retry(retry)])
        retry = retry if isinstance(retry, Retry) else Retry()
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


def _fault_of_retry(retry: object) -> str | None:
    if retry is None or isinstance(retry, Retry):
        return None
    return f"retry is {shown(retry)}; wanted Retry(attempts=..., first=...)"


def _fault_of_policy(policy: Any, order: str) -> str | None:
    if type(policy) not in _FAILURES:
        return f"on_failure is {shown(policy)}; wanted DeadLetter(...), Park() or Stop()"
    if isinstance(policy, DeadLetter) and not policy.topic:
        return "on_failure=DeadLetter(...) has no topic"
    if isinstance(policy, DeadLetter) and (fault := topic_fault(str(policy.topic))):
        return f"on_failure=DeadLetter(...): {'; '.join(fault)}"
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
