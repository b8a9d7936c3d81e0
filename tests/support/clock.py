"""Time for tests: a clock that goes on only when someone sleeps, and waiting for what is real."""

import time
from collections.abc import Callable

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


def until(
    is_so: Callable[[], object], seconds: float = WAIT_S, shown: Callable[[], object] = str
) -> None:
    """Wait for something that another thread, process or broker does.

    Args:
        is_so: Whether it is done.
        seconds: After which the test fails.
        shown: What the failure shows.
    """
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, shown()
        time.sleep(0.01)
