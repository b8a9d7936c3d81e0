"""Rows of a chunk that stay open for long: without the rows around them, and without values."""

import numpy as np
import numpy.typing as npt

from kshare.group.core.handed_out import Offsets
from kshare.group.message import ACKNOWLEDGED, Chunk, copied

__all__ = ["KeptRows"]

_COLUMNS = ("offset", "key", "timestamp")
_GAP = 16
"""Maximum number of rows that are kept between two open ones: to leave them out costs more."""


class KeptRows(Chunk):
    """Some rows of a chunk in its place, numbered from 0.

    Both share one :attr:`acknowledged`, :attr:`released` and :attr:`start`: whoever has messages of
    the chunk acknowledges rows there, by their numbers in the chunk. So it takes two bytes for each
    row of the chunk, and about 50 for each that is kept.

    Args:
        chunk: The chunk, or rows of one.
        starts: Where stretches of its rows begin that are kept, ascending.
        ends: Where they end.

    Attributes:
        rows: Their numbers in the chunk.
    """

    __slots__ = ("rows",)

    def __init__(self, chunk: Chunk, starts: Offsets, ends: Offsets) -> None:
        stretches = list(zip(starts.tolist(), ends.tolist(), strict=True))
        super().__init__(chunk.topic_partition, copied(chunk.batch, _COLUMNS, stretches))
        chunk.share_with(self)
        rows = np.concatenate([np.arange(*each) for each in stretches])
        self.rows: Offsets = chunk.rows[rows] if isinstance(chunk, KeptRows) else rows
        # Between its rows there may be acknowledged ones, which it does not know.
        self.overtaken = chunk.overtaken or len(rows) < len(chunk.offsets)

    @classmethod
    def of(cls, chunk: Chunk) -> "KeptRows | None":
        """The rows of a chunk that are open; of rows that are kept the same ones, if most are.

        Returns:
            None if none is open.
        """
        rows = np.flatnonzero(chunk.open_rows())
        if not len(rows):
            return None
        cuts = np.flatnonzero(np.diff(rows) > _GAP)
        starts, ends = rows[np.append(0, cuts + 1)], rows[np.append(cuts, len(rows) - 1)] + 1
        if isinstance(chunk, KeptRows) and 2 * (ends - starts).sum() > len(chunk.rows):
            return chunk
        return cls(chunk, starts, ends)

    # -- by its own numbers of rows -----------------------------------------------------------

    def _of_rows(self, states: bytearray) -> npt.NDArray[np.uint8]:
        return super()._of_rows(states)[self.rows]

    def first_open(self) -> int:
        """The first row that is open; -1 if there is none."""
        rows = np.flatnonzero(self.open_rows())
        return int(rows[0]) if len(rows) else -1

    @property
    def records(self) -> int:
        """Number of rows that are open."""
        return int(np.count_nonzero(self.open_rows()))

    def acknowledge(self, rows: Offsets) -> None:
        """Nothing more is expected of some rows, unless they are released."""
        super()._of_rows(self.acknowledged)[self.rows[rows]] = ACKNOWLEDGED

    def release(self, row: int) -> None:
        """Let a row that is not acknowledged come again."""
        super().release(int(self.rows[row]))

    def replace(self, row: int) -> None:
        """A row that is released comes in another one."""
        super().replace(int(self.rows[row]))

    def close(self, row: int) -> None:
        """Nothing more is expected of a row, whether it is released or not."""
        super().close(int(self.rows[row]))
