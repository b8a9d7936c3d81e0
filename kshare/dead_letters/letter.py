"""A dead letter as it is written: whole, or without what its topic never takes.

::

    whole --too large, or not valid--> a pointer: no value, none of the record's headers
      |                                   |
      +--no key, not valid--> a key made of the place
      +--its time is refused--> the broker's time, the record's own in a header

Waiting does not help with any of these: the topic would refuse the same letter for ever, and its
key would wait. A pointer says topic, partition and offset of the record, and why it failed.

Guarantees: each step leaves out more, so there are at most as many as there are parts; a pointer
without the record's key is smaller than 16 KiB, whatever the record is.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

__all__ = ["LEFT_OUT", "REWRITTEN", "TIMESTAMP", "Headers", "Letter", "Refusal"]

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

LEFT_OUT: Final = "kshare.left-out"
"""Name of the header of a letter that is not whole: which parts its topic does not take."""
REWRITTEN: Final = "kshare.rewritten"
"""Name of the header that says what is not as the record had it: ``key``, ``value``; see
:mod:`kshare.processing.frame_rows`."""
TIMESTAMP: Final = "kshare.timestamp"
"""Name of the header with the record's timestamp, where the letter has the broker's."""
_EACH: Final = 32  # bytes of a record, and of each header, besides their texts: at most so many


class Refusal(StrEnum):
    """Why a topic does not take a letter, however often it is sent."""

    SIZE = "it is larger than max.message.bytes"
    TIMESTAMP = "its timestamp is not within message.timestamp.before.max.ms and after.max.ms"
    INVALID = "the topic is compacted and the record has no key, or the brokers validate records"


class Letter(NamedTuple):
    """A dead letter as it is written.

    Attributes:
        place: Topic, partition and offset of the record, as text.
        key: The key.
        value: The value.
        timestamp: Milliseconds since 1970; -1 for the time at which it is written.
        headers: The record's own headers.
        error: The headers that say where from and why.
        left_out: The parts of the record that it has not.
    """

    place: str
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers
    error: Headers
    left_out: tuple[str, ...] = ()

    def all_headers(self) -> list[tuple[str, bytes | None]]:
        """The headers as they are written."""
        missing = [(LEFT_OUT, ", ".join(self.left_out).encode())] if self.left_out else []
        return [*self.headers, *self.error, *missing]

    @property
    def size(self) -> int:
        """Maximum size in bytes in the log, uncompressed."""
        fields = [(name.encode(), value) for name, value in self.all_headers()]
        texts = sum(len(name) + len(value or b"") + _EACH for name, value in fields)
        return len(self.key or b"") + len(self.value or b"") + texts + 3 * _EACH

    def without(self, refusal: Refusal) -> "Letter | None":
        """The same without what is refused.

        Returns:
            None: there is nothing to leave out.
        """
        if refusal is Refusal.TIMESTAMP:
            return self._without_timestamp()
        if refusal is Refusal.INVALID and self.key is None:
            return self._replace(key=self.place.encode(), left_out=(*self.left_out, "no key"))
        if "value" not in self.left_out:
            # Not None: in a compacted topic that is a tombstone, which is deleted.
            parts = (*self.left_out, "value", "headers")
            return self._replace(value=b"", headers=(), left_out=parts)
        if refusal is Refusal.SIZE and self.key != self.place.encode():
            return self._replace(key=self.place.encode(), left_out=(*self.left_out, "key"))
        return None

    def _without_timestamp(self) -> "Letter | None":
        if self.timestamp < 0:
            return None
        had = (TIMESTAMP, str(self.timestamp).encode())
        left_out = (*self.left_out, "timestamp")
        return self._replace(timestamp=-1, error=(*self.error, had), left_out=left_out)
