"""Records of an open batch that were given to a handler, and are not handed over yet.

Handlers end in any order, and a range's end is an offset for each key hash
(:mod:`kshare.core.range_end`). So what is handed over of a hash has to be all that was read of it
below some offset::

    read      5 6 7 8      of one hash
    done        6   8      6 and 8 have an outcome, and wait for 5
    done      5            5 and 6 are handed over; the hash would end at 7 now

With ``order="key"`` nothing waits so, but where two keys have one hash. Other orders need it.

Guarantees: what is handed over of a hash is a beginning of what was read of it, in its order, each
record once. An outcome of a record that is not held (it was given up, or has come twice) is none.
Cost: some dictionary steps a record, beside its handler.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from kshare.core.progress import TopicPartition

__all__ = ["Unhandled"]

_T = TypeVar("_T")
_OPEN: Final = object()
"""Of a record that has no outcome."""


class Unhandled(Generic[_T]):
    """The records of a task that are held, by partition and key hash. For one thread."""

    def __init__(self) -> None:
        self._held: dict[tuple[TopicPartition, int], deque[int]] = {}
        self._outcomes: dict[tuple[TopicPartition, int], object] = {}

    def __len__(self) -> int:
        """The number of key hashes that have records here."""
        return len(self._held)

    def read(self, partition: TopicPartition, hash_: int, offset: int) -> None:
        """A record was read, and is given to a handler; those of a hash in offset order."""
        self._held.setdefault((partition, hash_), deque()).append(offset)
        self._outcomes[partition, offset] = _OPEN

    def done(self, partition: TopicPartition, hash_: int, offset: int, outcome: _T) -> list[_T]:
        """A record has its outcome.

        Returns:
            The outcomes that may be handed over now, in offset order; they are not held any more.
        """
        outcomes, place = self._outcomes, (partition, hash_)
        if (partition, offset) not in outcomes:
            return []
        outcomes[partition, offset] = outcome
        offsets, released = self._held[place], []
        while offsets and outcomes[partition, offsets[0]] is not _OPEN:
            released.append(outcomes.pop((partition, offsets.popleft())))
        if not offsets:
            del self._held[place]
        return released  # type: ignore[return-value]  # none of them is open

    def firsts(self, partition: TopicPartition) -> Mapping[int, int]:
        """The first offset of each key hash of a partition that has records here."""
        return {hash_: offsets[0] for (of, hash_), offsets in self._held.items() if of == partition}

    def give_up(self) -> int:
        """Hold nothing any more: it comes again. Returns the number of records."""
        count = len(self._outcomes)
        self._held.clear()
        self._outcomes.clear()
        return count
