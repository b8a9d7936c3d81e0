"""The bytes of some rows that are to be decoded, where they lie."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Payloads", "payload_of"]


@dataclass(frozen=True, slots=True)
class Payloads:
    """The bytes of some rows that are to be decoded, where they lie in an Arrow column.

    Attributes:
        data: The column's data buffer.
        starts: Of each row, where its payload begins, behind its framing; -1: there is nothing to
            decode, as it is null, or bad already.
        ends: Of each row, where it ends.
        writers: Of each row, the number of its writer's schema; all 0 where there is but one.
    """

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    writers: npt.NDArray[np.int32]


def payload_of(payloads: Payloads, row: int) -> bytes:
    """A copy of the bytes of one row, which must be there."""
    start, end = int(payloads.starts[row]), int(payloads.ends[row])
    return payloads.data[start:end].tobytes()
