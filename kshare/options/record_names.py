"""Options of records by name: several of ``valueSubject``, and ``valueOtherRecords``.

A topic has records of several names where its writers name subjects by them (Confluent's
TopicRecordNameStrategy and RecordNameStrategy). Then a record's schema, which its framing names,
says which one it is::

               confluent                 apicurio                  singleObject   glue, none
    avro       registry                  registry                  -              refused
    json       registry, no DDL          registry, no DDL          refused        refused
    protobuf   -                         refused: no indexes       refused        refused
    string     refused                   refused                   refused        refused

Of JSON, titles are names. Messages of Protobuf are named by subjects, or in front of the schema.
"""

from typing import Final

from kshare.options.kinds import named_messages
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

_BY_NAME: Final = ("avro", "json", "protobuf")
_WITHOUT_NAMES: Final = frozenset({"glue", "none"})


class RecordNames:
    """The names of records that a column's options ask for.

    Args:
        raw: The options as given.
        column: The column: ``key`` or ``value``.
        form: The format.
        schema: The reader schema that is asked for.
        is_registry: Whether a registry is named.

    Attributes:
        listed: What the option of subjects lists.
        messages: The messages that the schema names, of Protobuf.
        schema: The schema; of Protobuf that is given, without several messages in front.
    """

    def __init__(
        self,
        raw: RawOptions,
        column: str,
        form: str,
        schema: SchemaChoice | None,
        *,
        is_registry: bool,
    ) -> None:
        self._raw = raw
        self._faults = raw.faults
        self._column = column
        self._form = form
        self._is_registry = is_registry
        self._subject = f"{column}Subject"
        listed = raw.get(self._subject, "")
        self.listed = tuple(part.strip() for part in listed.split(",")) if listed.strip() else ()
        self._other_records = f"{column}OtherRecords"
        self.messages, self.schema = _messages_of(form, schema)

    @property
    def others(self) -> OtherRecords | None:
        """What becomes of records of other names; None: names are not compared."""
        if self._other_records in self._raw:
            found: OtherRecords | None = self._raw.value(self._other_records)
            return found or "bad"
        return "bad" if max(len(self.listed), len(self.messages)) > 1 else None

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects, or names of an inline schema's records; empty if there is one schema."""
        is_inline = isinstance(self.schema, InlineSchema)
        if self._form == "protobuf" and is_inline:
            return self.messages if len(self.messages) > 1 else ()
        if len(self.listed) > 1:
            return self.listed
        return self.listed if is_inline and self.others is not None else ()

    def check(self, framing: Framing) -> None:
        """Report what contradicts that records are distinguished by their names.

        Args:
            framing: What stands in front of each payload.
        """
        if self.others is None:
            return
        form, column = self._form, self._column
        option = self._other_records if self._other_records in self._raw else self._subject
        if option not in self._raw:
            option = f"{column}Schema"
        if form not in _BY_NAME:
            self._fault(option, f"tells records apart by name, which is not built for {form}")
            return
        if form == "protobuf":
            if framing != "confluent":
                self._fault(
                    option,
                    f"tells messages apart by their indexes, and with {column}Framing={framing} "
                    "they have none",
                    "framing that has: confluent",
                )
        elif framing in _WITHOUT_NAMES:
            named = ", ".join(each for each in FRAMINGS if each not in _WITHOUT_NAMES)
            self._fault(
                option,
                f"tells records apart by the schemas that they name, and with "
                f"{column}Framing={framing} they name none",
                f"framings that do: {named}",
            )
        elif form == "json" and not self._is_registry:
            self._fault(option, "needs schemaRegistry.url: records name schemas by its ids")
        self._check_list()

    def _check_list(self) -> None:
        schema_option = f"{self._column}Schema"
        for option, names in ((self._subject, self.listed), (schema_option, self.messages)):
            if len(names) > 1 and "" in names:
                self._raw.fault(option, "has an empty name", "write for example a,b")
            twice = sorted({each for each in names if names.count(each) > 1})
            if twice:
                self._faults.add(option, None, f"names {twice[0]!r} twice")
        if len(self.listed) < 2:
            return
        wrong = right = ""
        if isinstance(self.schema, SchemaVersion | SchemaId):
            wrong = f"is {self.schema}, of one schema, and {self._subject} names several"
            right = f"give latest, or one {self._subject}"
        elif isinstance(self.schema, InlineSchema) and self._form == "json":
            wrong = f"is one schema, and {self._subject} names several"
            right = "leave it out, for those of the registry"
        elif isinstance(self.schema, InlineSchema) and self._form == "protobuf":
            wrong = f"is given, and {self._subject} names several of the registry"
            right = f"leave out {self._subject}, and write for example shop.Placed,shop.Paid a.desc"
        elif self.messages:
            wrong = f"names message {self.messages[0]}, and {self._subject} names several subjects"
            right = f"give latest, or one {self._subject}"
        if wrong:
            self._faults.add(schema_option, None, wrong, right)

    def _fault(self, option: str, wrong: str, right: str = "") -> None:
        if option.endswith("Schema"):  # its text may be long
            self._faults.add(option, None, wrong, right)
        else:
            self._raw.fault(option, wrong, right)


def _messages_of(
    form: str, schema: SchemaChoice | None
) -> tuple[tuple[str, ...], SchemaChoice | None]:
    """The messages that a schema of Protobuf names, and the schema without several of them."""
    if form != "protobuf" or schema is None:
        return (), schema
    if not isinstance(schema, InlineSchema):
        return tuple(schema.message.split(",")) if schema.message else (), schema
    names, rest = named_messages(schema.text)
    return names, InlineSchema(rest) if len(names) > 1 else schema
