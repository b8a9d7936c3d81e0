"""What a partition has handed out, as plain sets of offsets: the oracle of :class:`.Delivery`.

An offset has one key, so a set of offsets is one of (offset, key hash)::

    wanted     = read x [0,end) where (not start or again) - skip - out      read = owned - left out
    processed  = passed | (out - open)                                 open = not acknowledged
    hand out   : out |= rows; open |= rows           acknowledge: open -= rows
    seek(at)   : passed |= out - open; out, open: drop what is >= at; skip = read x [0,at);
                 again = read x [at, inf)
    release    : out -= rows of the key; open -= rows
    narrow     : intersect all with the hashes       leave out, take in: nothing else changes

In implicit mode, what the last call has returned is open; or, by ``is_batch=False``, its last
record.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

__all__ = ["PositionSets"]


@dataclass
class PositionSets:
    """The position of one partition.

    Attributes:
        log: The key of each offset.
        explicit: Whether records are acknowledged one by one.
        owned: The keys that the consumer owns.
        left_out: Those that are not handed out.
        start: What was processed when it began.
        out: What is handed out, since the last seek or before it and below its offset.
        open: What of it is not acknowledged.
        fresh: Implicit mode: what was returned since the last call began, in order.
        passed: What was processed before a seek.
        seeks: The offset of the last seek of each key: what is below it is skipped, what is not
            comes again, whether it was processed or not.
    """

    log: list[str]
    explicit: bool
    owned: frozenset[str]
    left_out: frozenset[str] = frozenset()
    start: set[int] = field(default_factory=set)
    out: set[int] = field(default_factory=set)
    open: set[int] = field(default_factory=set)
    fresh: list[int] = field(default_factory=list)
    passed: set[int] = field(default_factory=set)
    seeks: dict[str, int] = field(default_factory=dict)

    def of(self, keys: Collection[str]) -> set[int]:
        """The offsets of some keys."""
        return {offset for offset, key in enumerate(self.log) if key in keys}

    @property
    def wanted(self) -> set[int]:
        """What is still to be handed out."""
        done = {at for at in self.start if not self._is_again(at)}
        return self.of(self.owned - self.left_out) - done - self.skipped - self.out

    @property
    def skipped(self) -> set[int]:
        """What seeks have passed over."""
        return {at for at, key in enumerate(self.log) if at < self.seeks.get(key, 0)}

    def _is_again(self, offset: int) -> bool:
        return offset >= self.seeks.get(self.log[offset], len(self.log))

    def unprocessed(self, *, is_batch: bool) -> set[int]:
        """What is handed out and not acknowledged."""
        return self.open | set(self.fresh if is_batch else self.fresh[-1:])

    def processed(self, *, is_batch: bool) -> set[int]:
        """What is processed, with what was so at the start."""
        return self.start | self.passed | (self.out - self.unprocessed(is_batch=is_batch))

    def committed_again(self, *, is_batch: bool) -> set[int]:
        """As :meth:`processed`; what a seek hands out again, only if it is processed since."""
        since = self.out - self.unprocessed(is_batch=is_batch)
        return {
            at for at in self.processed(is_batch=is_batch) if at in since or not self._is_again(at)
        }

    def hand_out(self, offsets: Iterable[int]) -> None:
        """Records are returned."""
        offsets = list(offsets)
        assert not self.out.intersection(offsets), "it is handed out twice"
        self.out.update(offsets)
        if self.explicit:
            self.open.update(offsets)
        else:
            self.fresh += offsets

    def settle(self) -> None:
        """Implicit mode: a call begins, so what was returned is processed."""
        if not self.explicit:
            self.open, self.fresh = set(), []

    def acknowledge(self, offsets: Iterable[int]) -> None:
        """Records are processed."""
        self.open.difference_update(offsets)

    def acknowledge_below(self, offset: int) -> None:
        """All that was returned below an offset is processed."""
        self.open = {at for at in self.open if at >= offset}
        self.fresh = [at for at in self.fresh if at >= offset]

    def seek(self, offset: int, *, is_batch: bool = True) -> None:
        """Go on at an offset, but for what is left out."""
        keys = self.owned - self.left_out
        of_keys = self.of(keys)
        waiting = self.unprocessed(is_batch=is_batch)
        self.passed |= of_keys & (self.out - waiting)
        self.open, self.fresh = waiting, []
        again = {at for at in of_keys if at >= offset}
        self.out -= again
        self.open -= again
        self.seeks |= dict.fromkeys(keys, offset)

    def release(self, first: int) -> None:
        """Records of a key from one on that are not acknowledged come again."""
        rows = {at for at in self.open if at >= first and self.log[at] == self.log[first]}
        self.out -= rows
        self.open -= rows

    def narrow(self, keys: frozenset[str]) -> None:
        """Only some of the keys are owned from now on."""
        self.owned &= keys
        kept = self.of(self.owned)
        self.out &= kept
        self.open &= kept
        self.passed &= kept
        self.fresh = [at for at in self.fresh if at in kept]
        self.seeks = {key: at for key, at in self.seeks.items() if key in self.owned}

    def claim(self, keys: frozenset[str], start: set[int]) -> None:
        """Some keys are owned; those that stay go on."""
        self.narrow(keys)
        self.owned, self.start = keys, start
