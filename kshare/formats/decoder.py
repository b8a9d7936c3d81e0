"""A format: it makes rows of payloads, and says which ones are bad."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.formats.payloads import Payloads

__all__ = ["Decoded", "Decoder", "Fault"]


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason why a row is bad.

    Attributes:
        row: The row's number.
        field: The dotted path of the field; "" for the value as a whole.
        reason: The rest of a sentence about the field, such as "is cut short".
    """

    row: int
    field: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """The rows of some payloads.

    Attributes:
        values: As many as there are payloads, of the decoder's type; null where there is nothing
            to decode, or the row is bad.
        faults: One of each bad row, ascending.
        others: The rows that are of another name than is read, which are null; in any order.
    """

    values: pa.Array
    faults: tuple[Fault, ...]
    others: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(0, np.int64), compare=False
    )


class Decoder(Protocol):
    """A format with a schema: JSON, Avro, Protobuf, string."""

    @property
    def type(self) -> pa.DataType:
        """The type of the rows; all in it is nullable."""

    def decode(self, payloads: Payloads) -> Decoded:
        """Make rows of payloads. A bad one costs no other row anything."""
