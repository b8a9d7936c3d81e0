"""Time for tests: a clock that goes on only when someone sleeps, and waiting for what is real."""

import time
from collections.abc import Callable
from typing import Any

WAIT_S = 60.0
"""How long to wait for what never comes; nothing is expected to take so long."""


class Clock:
    """Stands in for the module ``time``: sleeping takes no time, and only adds up.

    Args:
        now: Seconds that the clock begins with.
        on_sleep: Called with the number of each pause, when it begins.
    """

    def __init__(
        self, now: float = 1000.0, on_sleep: Callable[[int], object] = lambda _: None
    ) -> None:
        self.now = now
        self.slept: list[float] = []
        self._on_sleep = on_sleep

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        assert seconds >= 0
        self.slept.append(seconds)
        self.now += seconds
        self._on_sleep(len(self.slept))


class Ahead:
    """Stands in for the module ``time``: goes on as time does, and can be put ahead.

    Attributes:
        seconds: By how much.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.seconds

    def time(self) -> float:
        return time.time() + self.seconds

    def sleep(self, seconds: float, /) -> None:
        time.sleep(seconds)


class Counted:
    """Calls something, and counts how often: tests wait for looks, as seconds prove none.

    Args:
        call: What is called.

    Attributes:
        calls: How many calls have ended.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self.calls = 0
        self._call = call

    def __call__(self, *given: Any, **named: Any) -> Any:
        try:
            return self._call(*given, **named)
        finally:
            self.calls += 1

    def has_more(self, count: int = 3) -> Callable[[], bool]:
        """Return what tells that so many more calls have ended; the first may have begun before."""
        goal = self.calls + count
        return lambda: self.calls >= goal


def until(
    is_so: Callable[[], Any], seconds: float = WAIT_S, shown: Callable[[], object] = str
) -> Any:
    """Wait for something that another thread, process or broker does, and return it.

    A look that costs computing time, as one at a broker does, has longer pauses behind it, so that
    waiting leaves nine tenths of a core to what is waited for. Time that a look waits counts, too.

    Args:
        is_so: Whether it is done; looked at once more at the end, as this thread may be held up.
        seconds: After which the test fails.
        shown: What the failure shows.
    """
    deadline = time.monotonic() + seconds
    while True:
        began, computed = time.monotonic(), time.thread_time()
        is_late = began >= deadline
        if found := is_so():
            return found
        assert not is_late, shown()
        pause = 10 * (time.thread_time() - computed) - (time.monotonic() - began)
        time.sleep(min(max(0.005, pause), 0.1))
