"""The door to numpy and scipy, which the extra ``kshare[racks]`` installs.

Only rack-aware strategies need a solver, and scipy is large (some 140 MB, a second to import): so
it is imported when there is something to solve.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

__all__ = ["Solver", "load_solver"]


class Solver(Protocol):
    """The interface of :mod:`~kshare.assignment.racks.min_cost`."""

    def place_tasks(
        self,
        traffic: Sequence[Sequence[int]],
        racks: Sequence[int],
        start: Sequence[int],
        *,
        move: int,
        groups: Sequence[int] | None = None,
        wishes: Mapping[tuple[int, int], int] | None = None,
    ) -> list[int]:
        """Place tasks at least cost."""
        ...

    def place_on_two(
        self,
        traffic: Sequence[Sequence[int]],
        first: int,
        groups: Sequence[int],
        move: int = 0,
        *,
        prefers_near: bool = False,
    ) -> list[int]:
        """Place tasks on two processes at least cost."""
        ...


def load_solver() -> Solver:
    """Import the solver.

    Raises:
        ModuleNotFoundError: scipy is not installed; the text says how to install it.
    """
    try:
        from kshare.assignment.racks import min_cost  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise ModuleNotFoundError(
            f"rack-aware assignment needs {package}: pip install 'kshare[racks]', "
            "or set rack.aware.assignment.strategy to none",
            name=error.name,
        ) from error
    return min_cost
