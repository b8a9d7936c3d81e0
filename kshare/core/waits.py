"""Waits that last: said once each is long, and again when it is over.

::

    a wait begins --30 s--> a warning: what is waited for, since when, what ends it --> over: a note
                               ^                   |
                               +-- another state --+   at the earliest 30 s later

Guarantees: a wait that ends within :data:`PATIENCE_SECONDS` is never said. One that lasts is said
once for each state that it comes to, and never more often than once in that time: also one that
goes back and forth between two states. What waits for the same is one line.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

__all__ = ["PATIENCE_SECONDS", "SaidWait", "Wait", "Watch"]

PATIENCE_SECONDS: Final = 30.0
"""The time in seconds after which a wait is said."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Something that waits. Two are the same wait if all but their names and details is equal.

    Attributes:
        state: What it waits for, as a sentence without its end.
        until: What ends that, as a clause: ``until UNTIL``.
        name: Of what waits: a partition, a broker; empty if the state says it all.
        detail: What may change meanwhile, such as the last fault; empty if there is nothing.
    """

    state: str
    until: str
    name: str = field(default="", compare=False)
    detail: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class SaidWait:
    """The line for all waits for the same thing.

    Attributes:
        wait: One of them.
        names: The names of all, in order; those that have none are left out.
        seconds: How long the first of them has waited.
        is_over: Whether it is over, after it was said.
    """

    wait: Wait
    names: tuple[str, ...]
    seconds: float
    is_over: bool = False


@dataclass(slots=True)
class _Lasting:
    """A wait that goes on.

    Attributes:
        since: When it began.
        due: Before this time, nothing is said of it.
        said: What was said last; None before.
    """

    since: float
    due: float
    said: Wait | None = None


@dataclass(slots=True)
class Watch:
    """Decides which waits are worth saying. It reads no clock, and logs nothing.

    Attributes:
        patience: What lasts longer is said, in seconds.
    """

    patience: float = PATIENCE_SECONDS
    _lasting: dict[Hashable, _Lasting] = field(default_factory=dict)

    @property
    def is_waiting(self) -> bool:
        """True if something has waited at the last look."""
        return bool(self._lasting)

    def look(
        self, waits: Mapping[Hashable, Wait], now: float, lasts: float = 0.0
    ) -> tuple[SaidWait, ...]:
        """Look at all that waits now; return what is to be said of it.

        Args:
            waits: What waits. A key that stays is the same wait in another state; one that is gone
                has ended.
            now: The time in seconds, of a clock that does not go back.
            lasts: For how many seconds from now on all of them are known to last.
        """
        if not waits and not self._lasting:
            return ()
        over: dict[Wait, list[tuple[str, float]]] = {}
        for key in self._lasting.keys() - waits.keys():
            gone = self._lasting.pop(key)
            if gone.said is not None:
                over.setdefault(gone.said, []).append((gone.said.name, gone.since))
        long: dict[Wait, list[tuple[str, float]]] = {}
        for key, wait in waits.items():
            lasting = self._lasting.get(key)
            if lasting is None:
                lasting = self._lasting[key] = _Lasting(now, now + self.patience)
            if now + lasts >= lasting.due and wait != lasting.said:
                lasting.said, lasting.due = wait, now + self.patience
                long.setdefault(wait, []).append((wait.name, lasting.since))
        return tuple(
            SaidWait(wait, _names(found), now - min(since for _, since in found), is_over)
            for is_over, said in ((True, over), (False, long))
            for wait, found in said.items()
        )


def _names(found: list[tuple[str, float]]) -> tuple[str, ...]:
    return tuple(sorted({name for name, _ in found if name}))
