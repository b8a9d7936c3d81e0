"""The end of a query's offset log, deduced from the calls of a Spark that does not say it.

Before 4.2, Spark asks a source ``latestOffset()`` without saying where the next batch starts. What
it calls besides does say it (``I``: where a new query starts; ``E``, ``L``: ends in the log)::

    new query             latestOffset, initialOffset, partitions(I, E), latestOffset, commit(E) ...
    restart               partitions(L, L), latestOffset, commit(L), partitions(L, E) ...
      amid a batch        partitions(L, L), partitions(K, L), latestOffset ...
      amid the first one  partitions(L, L), initialOffset, partitions(I, L), latestOffset ...
    AvailableNow, wrapped:
      new query           latestOffset, initialOffset, latestOffset, initialOffset, partitions(I, E)
      restart             latestOffset, partitions(L, L) ...

``partitions(L, L)`` comes from Spark's ``AcceptsLatestSeenOffset``. ``commit(S)`` comes when the
batch that starts at ``S`` has been written to the log, of the first batch ``initialOffset``. Where
the optimizer sees that a batch has no rows, its ``partitions`` are left out. A DataFrame of an
earlier batch that is used again is planned again, with the offsets of that batch.

Guarantees: an answer is never computed from another start than Spark's. Until a call has shown that
an answer is in the log, it stays the same, so it does not matter how often Spark asks. A call that
fits none of these orders is an error.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Generic, TypeVar

from kshare.errors import KshareError

__all__ = ["WRAPPER", "LoggedEnd"]

WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"

Offsets = TypeVar("Offsets")


class _Phase(Enum):
    FRESH = auto()  # nothing is known
    NEW = auto()  # a new query's first end was asked for
    BEGUN = auto()  # its first batch is in the log, or Spark's wrapper asks where it starts
    SKIPPED = auto()  # the same, and the end was asked for again
    RUNNING = auto()  # the end of the log is known


class LoggedEnd(Generic[Offsets]):
    """Follows the calls for one query in one process of Spark.

    Args:
        initial: Return where a new query starts.
        spark: Spark's version, for errors.
    """

    def __init__(self, initial: Callable[[], Offsets], spark: str) -> None:
        self._initial = initial
        self._spark = spark
        self._phase = _Phase.FRESH
        self._end: Offsets | None = None  # of the log; while the phase is NEW, where it starts
        self._answer: Offsets | None = None  # which is not known to be in the log

    def next_end(self, after: Callable[[Offsets], Offsets]) -> Offsets:
        """Return the end of the next batch: Spark calls ``latestOffset``.

        Args:
            after: Return the end of the batch that starts at some offsets.

        Raises:
            KshareError: Spark's calls come in an unknown order.
        """
        if self._phase is _Phase.FRESH:
            self._phase, self._end = _Phase.NEW, self._initial()
        elif self._phase is _Phase.BEGUN:
            self._phase = _Phase.SKIPPED
        elif self._phase is _Phase.SKIPPED:
            self._advance()
        assert self._end is not None
        idle = self._phase is _Phase.RUNNING and self._answer == self._end
        if self._answer is None or idle:
            self._answer = after(self._end)
        return self._answer

    def initial_asked(self) -> None:
        """Take note that Spark calls ``initialOffset``."""
        if self._phase is _Phase.NEW:
            self._phase = _Phase.BEGUN
        elif self._phase in {_Phase.BEGUN, _Phase.SKIPPED}:
            raise self._wrapped()

    def planned(self, start: Offsets, end: Offsets) -> None:
        """Take note that Spark calls ``partitions``."""
        if self._phase is _Phase.FRESH:
            self._phase, self._end = _Phase.RUNNING, end
        elif self._phase is _Phase.NEW and start == end:
            raise self._wrapped()
        elif end == self._answer and end != self._end:
            if start != self._end:
                raise self._unknown("partitions", start)
            self._advance()
        elif self._phase is not _Phase.RUNNING:
            if (start, end) != (self._end, self._answer):
                raise self._unknown("partitions", start)
            self._advance()

    def committed(self, start: Offsets) -> None:
        """Take note that Spark calls ``commit``: a batch that starts there is in the log."""
        if self._phase in {_Phase.BEGUN, _Phase.SKIPPED}:  # a second batch, without new offsets
            self._advance()
        if self._phase is not _Phase.RUNNING or start != self._end:
            raise self._unknown("commit", start)
        if self._answer is not None:
            self._advance()

    def _advance(self) -> None:
        self._phase, self._end, self._answer = _Phase.RUNNING, self._answer, None

    def _wrapped(self) -> KshareError:
        return KshareError(
            f"{self._spark} asks for an end before it says where the query is; turn {WRAPPER} off, "
            "which makes it do so"
        )

    def _unknown(self, call: str, offsets: Offsets) -> KshareError:
        return KshareError(
            f"{self._spark} calls {call} with offsets that it should not have reached: {offsets}, "
            f"where the offset log ends at {self._end}. Nothing was read. Please report this, with "
            "the name of the platform"
        )
