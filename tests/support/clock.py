"""Time for tests: it goes on only when somebody sleeps."""


class Clock:
    """What stands in for the module ``time``: sleeping takes no time, and only adds up."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.slept.append(seconds)
        self.now += seconds
