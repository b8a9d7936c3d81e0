"""How deep tests look, in one place: the profile of Hypothesis says it (tests/conftest.py).

``make test`` has the profile "quick": a quarter of the examples and walks, and every interleaving
one step less deep. With "all", which ``make test-all`` has, examples and walks are new in each run;
what fails is printed with the command that repeats it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from hypothesis import core, settings

USUAL = 100
"""Examples of a property, without a profile; other numbers are for one of so many."""


def is_quick() -> bool:
    """Whether few examples are wanted."""
    return _examples() < USUAL


def scaled(count: int) -> int:
    """How many of ``count`` the profile wants; one at least."""
    return max(1, count * _examples() // USUAL)


def examples(count: int, **more: Any) -> settings:
    """The settings of a property that has not a hundred examples, but so many.

    Args:
        count: How many, of a hundred.
        more: Other settings.
    """
    return settings(max_examples=scaled(count), **more)


def depth(steps: int) -> int:
    """How many steps every interleaving is followed."""
    return steps - is_quick()


def least(states: int) -> int:
    """How many states must be reached at least; one step less deep, a tenth of them."""
    return states // 10 if is_quick() else states


def walks(count: int, after: int = 0) -> range:
    """The seeds of random walks: always the same, or new ones if the run has a seed.

    Args:
        count: How many.
        after: How many walks others take before.
    """
    first = after + (core.global_force_seed or 0) * 1_000
    return range(first, first + scaled(count))


class TooManyCallsError(AssertionError):
    """More is called than may be."""


@contextmanager
def calls_below(most: int) -> Iterator[None]:
    """Fail as soon as more functions are called: a cost that no clock and no load changes.

    Args:
        most: The number of calls, those of compiled functions and resumed generators included.
    """
    count = 0

    def profile(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}
        if count > most:
            sys.setprofile(None)
            raise TooManyCallsError(f"more than {most} calls")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)


def _examples() -> int:
    return settings().max_examples
