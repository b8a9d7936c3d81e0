"""The size of the next Fetch request, in bytes.

A request is large enough for the next record batch, sooner or later, however large that is.
Cost: what is asked for beyond a slice's end is at most a quarter of its rest, and 64 KiB.
"""

from kshare.options import KafkaConfig

__all__ = ["FetchSize"]

_FIRST_BYTES = 1 << 20
_BYTES_MIN = 64 << 10
_BYTES_MAX = 1 << 30
_RECORD_BYTES = 1 << 10  # a guess, until the first response


class FetchSize:
    """Bytes to ask of one partition: a quarter of full size at first, then full size.

    Args:
        kafka: ``max.partition.fetch.bytes`` is full size.
        max_records: Maximum number of records that are wanted in all; None for no limit.
    """

    def __init__(self, kafka: KafkaConfig, max_records: int | None) -> None:
        self._full = kafka.max_partition_fetch_bytes
        first = _FIRST_BYTES
        if max_records is not None:
            first = max(_BYTES_MIN, min(first, max_records * _RECORD_BYTES))
        self._wanted = min(first, self._full)
        self._per_offset: float | None = None

    def bytes_for(self, offsets: float) -> int:
        """The number of bytes to ask for when that many offsets are likely to be needed."""
        if self._per_offset is None:
            return self._wanted
        rest = offsets * self._per_offset
        return max(min(self._wanted, int(rest * 1.25) + _BYTES_MIN), _BYTES_MIN)

    def offsets_for(self, offsets: float) -> int:
        """The number of these offsets that the next request is likely to bring, at least 1."""
        per_offset = self._per_offset or _RECORD_BYTES
        return max(int(self.bytes_for(offsets) / max(per_offset, 1.0)), 1)

    def learn(self, size: int, offsets: int) -> None:
        """A response of ``size`` bytes brought that many offsets."""
        self._per_offset = size / max(offsets, 1)
        self._wanted = min(4 * self._wanted, self._full)

    def grow(self) -> None:
        """A response was too small for one record batch."""
        self._wanted = min(2 * self._wanted, _BYTES_MAX)
        self._per_offset = None
