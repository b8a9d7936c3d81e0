"""The schemas that records were written with, by the ids that they name.

An id stands in front of a payload, or in a header (:mod:`kshare.formats.header_ids`).

Cost: a pass of numpy for each id of a column; a registry is asked once for each.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from kshare.errors import SchemaRegistryError, UnknownSchemaError
from kshare.formats.decoder import Fault
from kshare.formats.grouping import rows_by_number
from kshare.formats.header_ids import HeaderId, NamedRows
from kshare.formats.make import REGISTRY_KINDS, WriterDecoder, writer_text
from kshare.formats.registry import named_id
from kshare.formats.schema_files import GlobalId, RegisteredSchema, SchemaNumber
from kshare.formats.schemas import ReaderSchema
from kshare.options.typed_rows import Framing

__all__ = ["Schemas", "UnansweredError", "Writers", "prefix_number"]


class Schemas(Protocol):
    """Where the schemas of ids are: :class:`~kshare.formats.registry.SchemaRegistry`."""

    def by_id(self, number: SchemaNumber, kind: str = "AVRO") -> RegisteredSchema:
        """The schema with an id.

        Args:
            number: The id, or the schema's GUID, or Apicurio's own id.
            kind: What is wanted: ``AVRO``, ``JSON`` or ``PROTOBUF``; it may be another.

        Raises:
            UnknownSchemaError: There is none.
        """


class UnansweredError(Exception):
    """The registry has not said the schema that rows name.

    Args:
        rows: The rows, ascending.
        others: How many other schemas the rows of the column name that are not known either.
        error: What the registry's client says.
    """

    def __init__(
        self, rows: npt.NDArray[np.int64], others: int, error: SchemaRegistryError
    ) -> None:
        super().__init__()
        self.rows, self.others, self.error = rows, others, error

    @property
    def extent(self) -> str:
        """The number of rows and schemas of the column that have no answer, as a sentence."""
        count = len(self.rows)
        rows = (
            "One record of this batch names"
            if count == 1
            else f"{count} records of this batch name"
        )
        if not self.others:
            return f"{rows} it"
        other = "another schema" if self.others == 1 else f"{self.others} other schemas"
        return f"{rows} it, and records name {other} that nobody has asked for yet"


class Writers:
    """The schemas that records were written with, by the ids that they name.

    Args:
        decoder: Takes each schema once.
        reader: The reader schema, with which records are written if there is no registry.
        registry: Has the schemas.

    Attributes:
        has_registry: Whether there is one.
    """

    def __init__(
        self, decoder: WriterDecoder, reader: ReaderSchema, registry: Schemas | None
    ) -> None:
        self._decoder = decoder
        self._reader = reader
        self._registry = registry
        self._known: dict[HeaderId, int | str] = {}
        self.has_registry = registry is not None

    def numbers(
        self,
        ids: npt.NDArray[np.int64],
        prefixed: npt.NDArray[np.bool_],
        named: list[NamedRows],
    ) -> tuple[npt.NDArray[np.int32], list[Fault]]:
        """The number of each row's writer (or OTHER), and the rows whose schema cannot be used.

        Args:
            ids: The id of each row.
            prefixed: Whether a row has one in front of its payload.
            named: The rows that name a schema in a header.
        """
        numbers = np.zeros(len(ids), np.int32)
        faults: list[Fault] = []
        groups = [(each.rows, each.named) for each in named if isinstance(each.named, HeaderId)]
        if self._registry is not None:
            there = np.flatnonzero(prefixed)
            by_id = rows_by_number(ids[there], there)
            groups += [
                (rows, HeaderId(prefix_number(number, self._reader.form.framing)))
                for number, rows in by_id
            ]
        groups = [each for each in groups if len(each[0])]
        groups.sort(key=lambda each: int(each[0][0]))  # what fails names the first record
        for number, (rows, which) in enumerate(groups, 1):
            try:
                writer = self._writer(which)
            except SchemaRegistryError as error:
                others = {each for _, each in groups[number:]} - self._known.keys()
                raise UnansweredError(rows, len(others), error) from None
            if isinstance(writer, str):
                faults += (Fault(row, "", writer) for row in rows.tolist())
            else:
                numbers[rows] = writer
        return numbers, faults

    def _writer(self, named: HeaderId) -> int | str:
        """The writer of an id, or why there is none."""
        if self._registry is None:
            return self._decoder.add_writer(self._reader.text, named.path)
        if named not in self._known:
            form, shown = self._reader.form, named_id(named.number)
            try:
                schema = self._registry.by_id(named.number, REGISTRY_KINDS[form.format])
            except UnknownSchemaError as error:
                return f"names schema {shown}, and {error}"  # it may be there later
            try:
                text = writer_text(form, schema)
                self._known[named] = self._decoder.add_writer(text, named.path)
            except ValueError as error:
                self._known[named] = f"is of schema {shown}, which {error}"
        return self._known[named]


def prefix_number(number: int, framing: Framing) -> SchemaNumber:
    """The schema that the number in front of a payload names."""
    return GlobalId(number) if framing == "apicurio" else number
