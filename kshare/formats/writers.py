"""The schemas that records were written with, by the ids that they name.

Cost: a pass of numpy for each id of a column; a registry is asked once for each.
"""

from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from kshare.errors import SchemaRegistryError, UnknownSchemaError
from kshare.formats.avro.references import with_references
from kshare.formats.decoder import Fault
from kshare.formats.make import WriterDecoder
from kshare.formats.schema_files import RegisteredSchema

__all__ = ["Schemas", "UnansweredError", "Writers"]

_IDS_EACH: Final = 16
"""Ids of a record batch that are looked for one after another; more, by sorting all."""


class Schemas(Protocol):
    """Where the schemas of ids are: :class:`~kshare.formats.registry.SchemaRegistry`."""

    def by_id(self, number: int) -> RegisteredSchema:
        """The schema with an id.

        Raises:
            UnknownSchemaError: There is none.
        """


class UnansweredError(Exception):
    """The registry has not said the schema that a row names."""

    def __init__(self, row: int, error: SchemaRegistryError) -> None:
        super().__init__()
        self.row, self.error = row, error


class Writers:
    """The schemas that records were written with, by the ids that they name.

    Args:
        form: The format.
        decoder: Takes each schema once.
        registry: Has the schemas.
    """

    def __init__(self, form: str, decoder: WriterDecoder, registry: Schemas) -> None:
        self._form = form
        self._decoder = decoder
        self._registry = registry
        self._known: dict[int, int | str] = {}

    def numbers(
        self, ids: npt.NDArray[np.int64], there: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[np.int32], list[Fault]]:
        """The number of each row's writer (or OTHER), and the rows whose schema cannot be used.

        Args:
            ids: The id of each row.
            there: Whether a row names one.
        """
        numbers = np.zeros(len(ids), np.int32)
        faults: list[Fault] = []
        for number, rows in _by_id(ids, there):
            try:
                writer = self._writer(number)
            except SchemaRegistryError as error:
                raise UnansweredError(int(rows[0]), error) from None
            if isinstance(writer, str):
                faults += (Fault(row, "", writer) for row in rows.tolist())
            else:
                numbers[rows] = writer
        return numbers, faults

    def _writer(self, number: int) -> int | str:
        """The writer of an id, or why there is none."""
        if number not in self._known:
            try:
                schema = self._registry.by_id(number)
            except UnknownSchemaError as error:
                return f"names schema id {number}, and {error}"  # it may be there later
            try:
                text = schema.text
                if self._form == "avro":
                    text = with_references(text, dict(schema.references))
                self._known[number] = self._decoder.add_writer(text)
            except ValueError as error:
                self._known[number] = f"is of schema id {number}, which {error}"
        return self._known[number]


def _by_id(
    ids: npt.NDArray[np.int64], there: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Each id, with the rows that name it."""
    rows = np.flatnonzero(there)
    named = ids[rows]
    for _ in range(_IDS_EACH):
        if not len(rows):
            return
        same = named == named[0]
        yield int(named[0]), rows[same]
        rows, named = rows[~same], named[~same]
    if len(rows):
        order = np.argsort(named, kind="stable")
        cuts = np.flatnonzero(np.diff(named[order])) + 1
        for part in np.split(order, cuts):
            yield int(named[part[0]]), rows[part]
