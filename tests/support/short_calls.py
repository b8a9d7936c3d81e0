"""Calls of a reader that wait for nothing, with pauses between them."""

import select
from concurrent.futures import Future
from typing import Any

from kshare.read.reader.tail_reader import TailReader
from tests.support.clock import until

__all__ = ["CALLS", "SLOW_MS", "after_a_pause"]

CALLS = 5
"""To look up the leader, to connect, to ask, and to take the answer; and one for an answer before
that has no records.
"""
SLOW_MS = 20
"""For a broker: what a call begins is not there before it ends."""


def after_a_pause(reader: TailReader) -> None:
    """Let a pause pass that is longer than what was begun takes, and than fetch.max.wait.ms."""
    until(lambda: _is_answered(reader))
    reader._alone_from = 0.0


def _is_answered(reader: TailReader) -> bool:
    """True if all that calls have begun is done: looking up, connecting, and asking."""
    brokers, poll = reader._brokers, select.poll()
    begun: list[Future[Any]] = [*brokers._searches.values(), *brokers._connecting.values()]
    for fetcher in reader._loop.asked:
        poll.register(fetcher.open().fileno(), select.POLLIN)
    return all(each.done() for each in begun) and len(poll.poll(0)) == len(reader._loop.asked)
