"""Several messages of Protobuf in a column: which one a row is, its indexes say.

::

    id of a row -> the writer's file, indexes of the row -> the message's name -> its decoder
                                                         -> there is none: bad, or no row of them

A header names file and message together (:mod:`kshare.formats.header_ids`); then nothing stands in
front of the payload.

Cost: that of :class:`~kshare.formats.records.RecordsDecoder`, and of
:func:`~kshare.formats.protobuf.indexes.rows_by_message`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kshare.formats.decoder import Decoded, Fault
from kshare.formats.payloads import Payloads
from kshare.formats.protobuf.files import message_names, named_files
from kshare.formats.protobuf.indexes import path_text, rows_by_message
from kshare.formats.records import OTHER, NamedDecoder, RecordsDecoder

__all__ = ["MessagesDecoder"]

_Path = tuple[int, ...]


class MessagesDecoder(RecordsDecoder):
    """Decodes messages by their names.

    A writer is a file, whose rows begin with indexes; or a file and a message of it.

    Args:
        named: The decoder of each name.
        is_struct: As of :class:`~kshare.formats.records.RecordsDecoder`.
        is_other_bad: As there.
        text: The file of rows that name none, which is writer 0; "": all rows name one.
    """

    def __init__(
        self, named: Sequence[NamedDecoder], *, is_struct: bool, is_other_bad: bool, text: str
    ) -> None:
        super().__init__("protobuf", named, is_struct=is_struct, is_other_bad=is_other_bad)
        self._texts: dict[int, str] = {0: text}  # of the writers that are files
        self._numbers: dict[tuple[str, _Path | None], int | ValueError] = {}
        self._names: dict[str, dict[_Path, str]] = {}

    def add_writer(self, text: str, path: _Path | None = None) -> int:
        """Add a file, or a message of one; see the base class.

        Args:
            text: The schema, as :func:`~kshare.formats.protobuf.files.named_files` takes it.
            path: The message, if no indexes stand in front of rows.
        """
        found = self._found(text, path)
        if isinstance(found, int):
            return found
        raise ValueError(str(found))

    def _found(self, text: str, path: _Path | None) -> int | ValueError:
        """The number of a writer, or why its rows are bad."""
        if (text, path) not in self._numbers:
            try:
                made = self._new_file(text) if path is None else self._new_message(text, path)
            except ValueError as error:
                self._numbers[text, path] = ValueError(str(error))  # without a traceback
            else:
                self._numbers[text, path] = made
        return self._numbers[text, path]

    def _new_file(self, text: str) -> int:
        self._names_of(text)
        number = self._added(0, 0)
        self._texts[number] = text
        return number

    def _new_message(self, text: str, path: _Path) -> int:
        name = self._names_of(text).get(path)
        if name is None:
            raise ValueError(f"has no message {path_text(path)} in its file")
        number = self._number_of(name)
        if number == OTHER:
            return OTHER
        return self._added(number, self._writer_of(number, text, path))

    def _names_of(self, text: str) -> dict[_Path, str]:
        """The names of a file's messages, by their paths."""
        if text not in self._names:
            try:
                self._names[text] = message_names(named_files(text)[0][-1])
            except ValueError as error:
                raise ValueError(f"has a schema that {error}") from None
        return self._names[text]

    def decode(self, payloads: Payloads) -> Decoded:
        """Make rows of payloads. A bad one costs no other row anything."""
        payloads, faults, others = self._behind_indexes(payloads)
        decoded = super().decode(payloads)
        faults += decoded.faults
        if len(faults) > len(decoded.faults):
            faults.sort(key=lambda fault: fault.row)
        return Decoded(decoded.values, tuple(faults), others)

    def _behind_indexes(
        self, payloads: Payloads
    ) -> tuple[Payloads, list[Fault], npt.NDArray[np.int64]]:
        """Payloads behind their indexes, whose writers are messages; bad rows, and other ones."""
        is_file = np.zeros(self.writers, np.bool_)
        is_file[list(self._texts)] = True
        rows = np.flatnonzero((payloads.starts >= 0) & is_file[payloads.writers])
        starts, writers = payloads.starts.copy(), payloads.writers.copy()
        writers[is_file[writers]] = 0  # of rows without a payload, too
        faults: list[Fault] = []
        others = [np.zeros(0, np.int64)]
        for each in rows_by_message(payloads, rows):
            found = (
                each.path
                if isinstance(each.path, str)
                else self._found(self._texts[each.writer], each.path)
            )
            if not isinstance(found, int):
                starts[each.rows] = -1
                faults += (Fault(row, "", str(found)) for row in each.rows.tolist())
            elif found == OTHER:
                starts[each.rows] = -1
                others.append(each.rows)
            else:
                starts[each.rows] += each.size
                writers[each.rows] = found
        return replace(payloads, starts=starts, writers=writers), faults, np.concatenate(others)
