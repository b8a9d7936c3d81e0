"""The calls that are under way, and when they take too long."""

from itertools import takewhile

from kshare.processing.core.lane import Call
from kshare.processing.core.settings import Settings

__all__ = ["RunningCalls"]


class RunningCalls:
    """Calls in the order in which they began: those that began later are late later.

    Args:
        settings: Say after which time a call is to be cancelled, and after which it is given up.
    """

    def __init__(self, settings: Settings) -> None:
        self._calls: dict[Call, None] = {}
        self._timeout = settings.timeout_seconds
        self._cancel_seconds = settings.cancel_seconds

    def __len__(self) -> int:
        return len(self._calls)

    def begin(self, call: Call) -> None:
        """A call is under way."""
        self._calls[call] = None

    def end(self, call: Call) -> bool:
        """A call is over; False if it was before, so that its answer does not count."""
        if call.is_over:
            return False
        call.is_over = True
        del self._calls[call]
        return True

    def end_all(self) -> None:
        """No answer counts any more."""
        for call in list(self._calls):
            self.end(call)

    def late(self, now: float) -> list[Call]:
        """The calls that have taken longer than the timeout."""
        timeout = self._timeout
        if timeout is None:
            return []
        return list(takewhile(lambda call: call.started + timeout <= now, self._calls))

    def is_overdue(self, call: Call, now: float) -> bool:
        """True if a call has not ended in time although it was cancelled."""
        assert self._timeout is not None
        return call.started + self._timeout + self._cancel_seconds <= now

    def next_due(self) -> float | None:
        """Time at which the next call is late, or overdue; None if none will be."""
        times: list[float] = []
        if self._timeout is not None:
            for call in self._calls:
                extra = self._cancel_seconds if call.is_cancelled else 0.0
                times.append(call.started + self._timeout + extra)
                if not call.is_cancelled:
                    break
        return min(times, default=None)
