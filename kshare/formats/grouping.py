"""Rows that have the same number, without a sort where numbers are few."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["rows_by_number"]

_EACH: Final = 16
"""Numbers that are looked for one after another; more, by sorting all."""


def rows_by_number(
    numbers: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Each number, with the rows that have it.

    Args:
        numbers: The number of each of the rows.
        rows: The rows.
    """
    for _ in range(_EACH):
        if not len(rows):
            return
        same = numbers == numbers[0]
        yield int(numbers[0]), rows[same]
        rows, numbers = rows[~same], numbers[~same]
    if len(rows):
        order = np.argsort(numbers, kind="stable")
        cuts = np.flatnonzero(np.diff(numbers[order])) + 1
        for part in np.split(order, cuts):
            yield int(numbers[part[0]]), rows[part]
