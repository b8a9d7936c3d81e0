"""Values that each process makes for itself, as ``threading.local`` has one for each thread."""

import os
from collections.abc import Callable
from typing import Final, Generic, TypeVar

__all__ = ["ProcessLocal"]

_T = TypeVar("_T")

_of_parents: Final = list[object]()
"""Values that a fork has copied and that nobody may end: their threads are not in the child."""


class ProcessLocal(Generic[_T]):
    """A value of this process; a forked child makes its own, as the copy's locks may be held.

    Args:
        make: Makes the value.
        keeps_copy: Whether the child holds the copy as it is: to end a client of librdkafka without
            its threads would hang. Otherwise it is dropped, and closes what it has opened.
    """

    def __init__(self, make: Callable[[], _T], *, keeps_copy: bool) -> None:
        self._make = make
        self._keeps_copy = keeps_copy
        self._of = {os.getpid(): make()}

    def __call__(self) -> _T:
        """The value; the same for all threads."""
        here = os.getpid()
        if here not in self._of:
            # No lock: the copy of one may be held. Of what two threads make, both take one.
            self._of.setdefault(here, self._make())
            for process in [each for each in [*self._of] if each != here]:
                copy = self._of.pop(process, None)
                if self._keeps_copy and copy is not None:
                    _of_parents.append(copy)
        return self._of[here]
