"""Options of records by name: several of ``valueSubject``, and ``valueOtherRecords``.

A topic has records of several names where its writers name subjects by them (Confluent's
TopicRecordNameStrategy and RecordNameStrategy). Then a record's schema, which its framing names,
says which one it is::

                       confluent, apicurio           singleObject        glue, none
    avro               registry                      -                   refused
    json (titles)      registry, no schema in DDL    refused             refused
    protobuf, string   refused: not built            refused             refused
"""

from typing import Final

from kshare.options.raw import RawOptions
from kshare.options.typed_rows import (
    FRAMINGS,
    Framing,
    InlineSchema,
    OtherRecords,
    SchemaChoice,
    SchemaId,
    SchemaVersion,
)

__all__ = ["RecordNames"]

_BY_NAME: Final = ("avro", "json")
_WITHOUT_NAMES: Final = frozenset({"glue", "none"})


class RecordNames:
    """The names of records that a column's options ask for.

    Args:
        raw: The options as given.
        column: The column: ``key`` or ``value``.
        is_registry: Whether a registry is named.
    """

    def __init__(self, raw: RawOptions, column: str, *, is_registry: bool) -> None:
        self._raw = raw
        self._faults = raw.faults
        self._column = column
        self._is_registry = is_registry
        self._subject = f"{column}Subject"
        listed = raw.get(self._subject, "")
        self._listed = tuple(part.strip() for part in listed.split(",")) if listed.strip() else ()
        self._other_records = f"{column}OtherRecords"

    @property
    def others(self) -> OtherRecords | None:
        """What becomes of records of other names; None: names are not compared."""
        if self._other_records in self._raw:
            found: OtherRecords | None = self._raw.value(self._other_records)
            return found or "bad"
        return "bad" if len(self._listed) > 1 else None

    def subjects(self, schema: SchemaChoice | None) -> tuple[str, ...]:
        """The subjects, or names of an inline schema's records; empty if there is one schema.

        Args:
            schema: The reader schema that is asked for.
        """
        if len(self._listed) > 1:
            return self._listed
        is_inline = isinstance(schema, InlineSchema)
        return self._listed if is_inline and self.others is not None else ()

    def check(self, form: str, framing: Framing, schema: SchemaChoice | None) -> None:
        """Report what contradicts that records are distinguished by their names.

        Args:
            form: The format.
            framing: What stands in front of each payload.
            schema: The reader schema that is asked for.
        """
        if self.others is None:
            return
        option = self._other_records if self._other_records in self._raw else self._subject
        if form not in _BY_NAME:
            self._fault(option, f"tells records apart by name, which is not built for {form}")
            return
        if framing in _WITHOUT_NAMES:
            named = ", ".join(each for each in FRAMINGS if each not in _WITHOUT_NAMES)
            self._fault(
                option,
                f"tells records apart by the schemas that they name, and with "
                f"{self._column}Framing={framing} they name none",
                f"framings that do: {named}",
            )
        elif form == "json" and not self._is_registry:
            self._fault(option, "needs schemaRegistry.url: records name schemas by its ids")
        self._check_list(form, schema)

    def _check_list(self, form: str, schema: SchemaChoice | None) -> None:
        if len(self._listed) < 2:
            return
        if "" in self._listed:
            self._raw.fault(self._subject, "has an empty name", "write for example a,b")
        twice = sorted({each for each in self._listed if self._listed.count(each) > 1})
        if twice:
            self._raw.fault(self._subject, f"names {twice[0]!r} twice")
        if isinstance(schema, SchemaVersion | SchemaId):
            self._faults.add(
                f"{self._column}Schema",
                None,
                f"is {schema}, of one schema, and {self._subject} names several",
                f"give latest, or one {self._subject}",
            )
        elif isinstance(schema, InlineSchema) and form == "json":
            self._faults.add(
                f"{self._column}Schema",
                None,
                f"is one schema, and {self._subject} names several",
                "leave it out, for those of the registry",
            )

    def _fault(self, option: str, wrong: str, right: str = "") -> None:
        self._raw.fault(option, wrong, right)
