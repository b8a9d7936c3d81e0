"""Rows of the benchmarks' table, and what measures both sides in turn."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass
class Row:
    """One line of the table: what was measured, against what target."""

    name: str
    peer: str
    ours: str
    ratio: str
    target: str
    met: bool

    def __str__(self) -> str:
        verdict = "yes" if self.met else "NO"
        return f"| {self.name} | {self.peer} | {self.ours} | {self.ratio} | {self.target} | {verdict} |"


def own_row(name: str, shown: str, target: str, met: bool) -> Row:
    """A line without a peer."""
    return Row(name, "-", shown, "-", target, met)


def interleaved(
    peer: Callable[[], float], ours: Callable[[], float], runs: int
) -> tuple[list[float], list[float]]:
    """Times of both sides in turn, after one warm-up of each."""
    peer()
    ours()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(runs):
        times[0].append(peer())
        times[1].append(ours())
    return times


def all_interleaved(jobs: Mapping[str, Callable[[], float]], runs: int) -> dict[str, list[float]]:
    """Times of several jobs in turn, after one warm-up of each."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for run in range(runs + 1):
        for name, job in jobs.items():
            seconds = job()
            if run:
                times[name].append(seconds)
    return times


def speed_row(
    name: str,
    records: int,
    times: tuple[list[float], list[float]],
    at_least: float,
    *,
    in_the_median: bool = True,
) -> Row:
    """Records a second, best (median), and how many times faster we are.

    Args:
        name: What was measured.
        records: How many records both sides have read.
        times: Seconds of the peer's runs, and of ours.
        at_least: How many times faster we should be.
        in_the_median: Whether the median has to be, or only the best run.
    """
    peer, ours = times

    def rate(seconds: list[float]) -> str:
        best, median = records / min(seconds) / 1e6, records / statistics.median(seconds) / 1e6
        return f"{best:.2f} ({median:.2f}) M/s"

    best, median = min(peer) / min(ours), statistics.median(peer) / statistics.median(ours)
    ratio = f"{best:.2f}x ({median:.2f}x)"
    met = (median if in_the_median else best) >= at_least
    return Row(name, rate(peer), rate(ours), ratio, f">= {at_least}x", met)


def shown_seconds(times: Sequence[float]) -> str:
    """The best of some times, and the median in parentheses."""
    return f"{min(times):.2f} ({statistics.median(times):.2f}) s"
