"""The verdict that each demo ends with: was every key in order, and nothing lost?"""

from collections.abc import Sequence

import pyarrow as pa

from kshare.testing import OrderReport, check_order
from spark_plugin.demo.topic import Say

__all__ = ["Row", "order_of", "say_verdict"]

Row = tuple[int, bytes]
"""Offset and key of a record."""


def order_of(rows: Sequence[Row], first: int, end: int) -> OrderReport:
    """Check that records of one partition are what was produced, in order for each key.

    Args:
        rows: The records in the order in which they arrived.
        first: First offset that was there.
        end: The offset after the last one.
    """
    offsets = pa.array([offset for offset, _ in rows], pa.int64())
    keys = pa.array([key for _, key in rows], pa.binary())
    return check_order(pa.table({"offset": offsets, "key": keys}), {0: (first, end)})


def say_verdict(report: OrderReport, say: Say, *lessons: str) -> int:
    """Print the report, and what is to be learned if it is in order.

    Args:
        report: The report.
        say: Prints a line.
        lessons: Texts; empty ones are left out.

    Returns:
        The exit code: 0 if it is in order, else 1.
    """
    say(f"\n{report}\n")
    for text in lessons:
        if report.ok and text:
            say(text)
    return 0 if report.ok else 1
