"""A user's handler: called with one record, or with a batch; and what it returned or raised."""

import logging
from collections.abc import Callable
from inspect import isasyncgen, isawaitable, iscoroutine, iscoroutinefunction, isgenerator
from typing import Any

from kshare.core.showing import shown
from kshare.dead_letters.record import FILTERED, Record, Status
from kshare.errors import UndecodableError
from kshare.processing.decoding import Deserializers, Wait
from kshare.processing.policy import Retry, RetryAfter

__all__ = ["Handler", "answer_of", "seconds_until_next", "unawaited"]

_log = logging.getLogger("kshare.processing")


class Handler:
    """A function that a processor calls, with its deserializers.

    Args:
        function: The user's: a coroutine function, or a plain one.
        takes_batches: Whether it takes a list of records.
        retry: Which errors are worth another attempt.
        deserializers: Make keys and values of bytes.

    Attributes:
        name: Its name, for people.
        is_async: Whether it is a coroutine function.
        takes_batches: As given.
        deserializers: As given.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        takes_batches: bool,
        retry: Retry,
        deserializers: Deserializers,
    ) -> None:
        call = getattr(function, "__call__", None)  # noqa: B004 - an object's own, if it is async
        self.name: str = getattr(function, "__qualname__", type(function).__qualname__)
        self.is_async = iscoroutinefunction(function) or iscoroutinefunction(call)
        self.takes_batches = takes_batches
        self._function = function
        self._retry = retry
        self.deserializers = deserializers
        self._decodes = bool(deserializers)

    @property
    def parts(self) -> dict[str, Any]:
        """The functions that were given, by the names of ``Processor``'s arguments."""
        given = {
            "handler": self._function,
            "key_deserializer": self.deserializers.key,
            "value_deserializer": self.deserializers.value,
            "Retry(on=...)": self._retry.on,
        }
        return {name: part for name, part in given.items() if part is not None}

    def call(self, records: list[Record]) -> Any:
        """Handle some records by a coroutine function; returns what is to be awaited for that."""
        if self._decodes:
            return self._decoded_call(records)
        return self._function(records if self.takes_batches else records[0])

    async def _decoded_call(self, records: list[Record]) -> Any:
        await self.deserializers.decode_in_loop(records)
        return await self._function(records if self.takes_batches else records[0])

    def call_in_thread(self, records: list[Record], wait: Wait) -> Any:
        """Handle some records by a plain function.

        Args:
            records: The records.
            wait: Has a coroutine awaited in the event loop.
        """
        if self._decodes:
            self.deserializers.decode(records, wait)
        return self._function(records if self.takes_batches else records[0])

    def is_final(self, error: BaseException) -> bool:
        """True if another attempt is of no use after an error."""
        if isinstance(error, UndecodableError):
            return True
        try:
            return not self._retry.is_worth(error)
        except Exception:
            _log.exception("Retry(on=...) has failed with %s, which is tried again", shown(error))
            return False


def seconds_until_next(error: BaseException) -> float | None:
    """Seconds until the next attempt, if an error says so; else None."""
    return error.seconds if isinstance(error, RetryAfter) else None


def unawaited(result: Any, *, in_list: bool) -> TypeError | None:
    """The error of a result that is still to be awaited, so that nothing was done; else None."""
    if isgenerator(result) or isasyncgen(result):
        return TypeError(
            f"the handler returned a {type(result).__name__}, of which nothing has run; return "
            "None, or a list"
        )
    results = result if in_list and isinstance(result, list | tuple) else (result,)
    waiting = [each for each in results if each is not None and isawaitable(each)]
    for each in waiting:
        if iscoroutine(each):
            each.close()
    if not waiting:
        return None
    return TypeError(
        f"the handler returned a {type(waiting[0]).__name__} that nobody awaits, so nothing was "
        "done; give Processor the coroutine function itself, or one that awaits it"
    )


def answer_of(result: Any) -> tuple[Status, Any, BaseException | None]:
    """One of the results for a batch: what became of its record, the result, and why it failed."""
    if isinstance(result, BaseException):
        return Status.FAILED, None, result
    return (Status.FILTERED, None, None) if result is FILTERED else (Status.DONE, result, None)
