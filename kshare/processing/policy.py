"""Policies for a record that fails: :class:`Retry`, then DeadLetter, Park or Stop."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import iscoroutinefunction
from math import inf
from typing import Any, Final, TypeAlias

from kshare.core.showing import shown
from kshare.options.kinds import DURATION_MAX, parse_duration
from kshare.processing.core.settings import RetryPlan

__all__ = [
    "DeadLetter",
    "FailurePolicy",
    "Park",
    "Retry",
    "RetryAfter",
    "Stop",
    "reads_own_letters",
    "seconds_of",
]

_YEAR_SECONDS: Final = 366 * 86_400


def seconds_of(name: str, duration: str | float, problems: list[str]) -> float:
    """A duration in seconds: a number of them, or a text such as ``30s``.

    Args:
        name: The argument's name, for the fault.
        duration: The duration.
        problems: Gets a fault if it is none; the result means nothing then.
    """
    if isinstance(duration, str):
        try:
            return parse_duration(duration)
        except ValueError as fault:
            problems.append(f"{name}={shown(duration)} {fault}")
            return 1.0
    is_number = isinstance(duration, int | float) and not isinstance(duration, bool)
    if not is_number or not 0 < duration <= DURATION_MAX:
        problems.append(
            f"{name} is {shown(duration)}; wanted seconds above 0, for 292 years at most, or a "
            "text such as 30s"
        )
        return 1.0
    return float(duration)


def _chooses_errors(on: Any) -> bool:
    if iscoroutinefunction(on):
        return False
    if on is None or callable(on):
        return True
    try:
        isinstance(None, on)
    except TypeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Retry:
    """Number and times of a failed record's attempts. Later records of its key wait meanwhile.

    Attributes:
        attempts: Maximum number of attempts, the first one included, at least 1.
        first: Time until the second attempt; it doubles from one to the next.
        most: Maximum time from one attempt to the next.
        jitter: By which part a delay may be longer or shorter, from 0 to 1.
        on: Which errors are worth another attempt: a class of exceptions, a tuple of them, or a
            function that says so of an exception. By default, all.
    """

    attempts: int = 5
    first: str | float = "200ms"
    most: str | float = "30s"
    jitter: float = 0.2
    on: (
        type[BaseException]
        | tuple[type[BaseException], ...]
        | Callable[[BaseException], bool]
        | None
    ) = None

    def plan(self, problems: list[str]) -> RetryPlan:
        """The same as plain numbers.

        Args:
            problems: Gets every fault.
        """
        if type(self.attempts) is not int or self.attempts < 1:
            problems.append(f"Retry: attempts is {shown(self.attempts)}; wanted a number from 1 up")
        if not 0 <= self.jitter <= 1:
            problems.append(f"Retry: jitter is {shown(self.jitter)}; wanted a number from 0 to 1")
        first = seconds_of("Retry: first", self.first, problems)
        most = seconds_of("Retry: most", self.most, problems)
        if most < first:
            problems.append(
                f"Retry: most={shown(self.most)} is shorter than first={shown(self.first)}"
            )
        if not _chooses_errors(self.on):
            problems.append(
                f"Retry: on is {shown(self.on)}; wanted a class of exceptions, a tuple of them, or "
                "a plain function"
            )
        return RetryPlan(self.attempts, first, most, self.jitter)

    def is_worth(self, error: BaseException) -> bool:
        """True if another attempt may help after an error."""
        if self.on is None:
            return True
        if isinstance(self.on, type | tuple):
            return isinstance(error, self.on)
        return self.on(error)


class RetryAfter(Exception):  # noqa: N818 - what a handler says, as HTTP's header
    """A handler raises it if a server asks to come again later (HTTP 429 and 503).

    The record, and its key's later ones, wait so long. The attempt does not count, and with
    ``concurrency="auto"`` fewer calls run at a time.

    Args:
        seconds: How long to wait; the text of a header ``Retry-After`` is a number, too.
        reason: Why, for people.

    Raises:
        ValueError: It is no number of seconds, or more than those of a year.
    """

    def __init__(self, seconds: float | str, reason: str = "") -> None:
        super().__init__(seconds, reason)
        self.seconds = float(seconds)
        if not -inf < self.seconds <= _YEAR_SECONDS:
            raise ValueError(
                f"RetryAfter: seconds is {shown(seconds)}; wanted a number of seconds, a year at "
                "most"
            )

    def __str__(self) -> str:
        return f"again after {self.seconds:g} s" + (f": {self.args[1]}" if self.args[1] else "")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that has failed for good goes to another topic, and its key goes on.

    Attributes:
        topic: The topic; it has to exist, and the processor must not read it.
        sequence: Whether the key's later records follow it there, unhandled, in order, until the
            key is unparked.
    """

    topic: str
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class Park:
    """The key of a record that has failed for good is parked: it waits, nothing of it is lost.

    All groups and queries leave the key out, as kshare's parked keys are those of a cluster. Unpark
    it, and within seconds it goes on with the record that has failed. If the order is not
    that of keys, the process has to be restarted, too.

    Attributes:
        why: Text for people, beside the error, in ``kshare parked``.
    """

    why: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """The processor ends with a :class:`~kshare.errors.ProcessingError` that names the record."""


def reads_own_letters(policy: DeadLetter) -> str:
    """The fault of a processor that would read its own dead letters."""
    return (
        f"the processor would read {policy.topic}, where on_failure=DeadLetter(...) puts its own "
        "letters, again and again: subscribe to topics, or patterns, that leave it out, or give "
        "DeadLetter another topic"
    )


FailurePolicy: TypeAlias = DeadLetter | Park | Stop
