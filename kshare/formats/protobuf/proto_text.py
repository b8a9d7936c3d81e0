"""Files of Protobuf as people write them: ``message Order { string user = 1; }``.

For registries that give no descriptors. Read is what says how messages are written: messages,
fields, enums, oneofs, maps, defaults, imports. Options, services and extensions are passed over;
groups and editions are refused. Names of types stay as they are written: the package ``protobuf``
resolves them.
"""

import re
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.text_encoding import CEscape, CUnescape

__all__ = ["parse_file"]

_TOKEN: Final = re.compile(
    r"""
      (?P<blank> \s+ | //[^\n]* | /\*.*?\*/ )
    | (?P<text> "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' )
    | (?P<word> \.?[A-Za-z_][A-Za-z_0-9]*(?:\.[A-Za-z_][A-Za-z_0-9]*)* )
    | (?P<number> [0-9][0-9A-Za-z.]*(?:(?<=[eE])[+-][0-9]+)? | \.[0-9][0-9A-Za-z.]* )
    | (?P<sign> [][{}()<>;:,=+\-/.] )
    """,
    re.VERBOSE | re.DOTALL,
)
_KINDS: Final = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
    if name not in {"TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM"}
}
_LABELS: Final = {"optional": 1, "required": 2, "repeated": 3}
_MOST_NESTED: Final = 100
_OPEN: Final = {"{": "}", "[": "]", "(": ")", "<": ">"}


def parse_file(text: str) -> Any:
    """The descriptor of a file.

    Args:
        text: The file.

    Raises:
        ValueError: It is none; a clause about it, with the line.
    """
    return _Parser(text).file()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._proto3 = False

    def file(self) -> Any:
        made = descriptor_pb2.FileDescriptorProto()
        while self._next is not None:
            word = self._take()
            if word == "syntax":
                self._expect("=")
                syntax = _unquoted(self._take())
                self._proto3 = syntax == "proto3"
                if self._proto3:
                    made.syntax = syntax
                self._expect(";")
            elif word == "edition":
                raise self._error("it is of an edition, of which descriptors alone are read")
            elif word == "package":
                made.package = self._word()
                self._expect(";")
            elif word == "import":
                self._import(made)
            elif word == "message":
                self._message(made.message_type.add(), 1)
            elif word == "enum":
                self._enum(made.enum_type.add())
            elif word in {"option", "service", "extend"}:
                self._skip_statement()
            elif word != ";":
                raise self._error(f"{word!r} begins nothing")
        return made

    def _import(self, made: Any) -> None:
        if self._next in {"public", "weak"} and self._take() == "public":
            made.public_dependency.append(len(made.dependency))
        made.dependency.append(_unquoted(self._take()))
        self._expect(";")

    def _message(self, made: Any, depth: int) -> None:
        if depth > _MOST_NESTED:
            raise self._error(f"more than {_MOST_NESTED} messages are in one another")
        made.name = self._word()
        self._expect("{")
        while (word := self._take()) != "}":
            if word == "message" and self._is_word(1, "{"):
                self._message(made.nested_type.add(), depth + 1)
            elif word == "enum" and self._is_word(1, "{"):
                self._enum(made.enum_type.add())
            elif word == "oneof" and self._is_word(1, "{"):
                self._oneof(made)
            elif word == "map" and self._next == "<":
                self._map(made)
            elif word in {"option", "extensions", "reserved", "extend"} and self._next != "=":
                self._skip_statement()
            elif word != ";":
                self._field(made, word)
        # Those that are made for optional fields come behind all others.
        for field in made.field:
            if field.proto3_optional:
                field.oneof_index = len(made.oneof_decl)
                made.oneof_decl.add(name=f"_{field.name}")

    def _oneof(self, made: Any) -> None:
        number = len(made.oneof_decl)
        made.oneof_decl.add(name=self._word())
        self._expect("{")
        while (word := self._take()) != "}":
            if word == "option":
                self._skip_statement()
            elif word != ";":
                self._field(made, word).oneof_index = number

    def _map(self, made: Any) -> None:
        self._expect("<")
        key = self._word()
        self._expect(",")
        value = self._word()
        self._expect(">")
        name = self._word()
        entry = made.nested_type.add(
            name="".join(part[:1].upper() + part[1:] for part in name.split("_")) + "Entry"
        )
        entry.options.map_entry = True
        for number, (part, kind) in enumerate((("key", key), ("value", value)), 1):
            _set_kind(entry.field.add(name=part, number=number, label=1), kind)
        field = made.field.add(name=name, label=3, type_name=entry.name)
        self._expect("=")
        field.number = self._integer()
        self._options(field)
        self._expect(";")

    def _field(self, made: Any, word: str) -> Any:
        label = _LABELS.get(word)
        kind = self._word() if label is not None else word
        if kind == "group":
            raise self._error("it has a group, which is not supported")
        if not _is_name(kind):
            raise self._error(f"{kind!r} is no type of a field")
        field = made.field.add(name=self._word(), label=label or 1)
        field.proto3_optional = self._proto3 and word == "optional"
        if not field.proto3_optional:
            field.ClearField("proto3_optional")
        _set_kind(field, kind)
        self._expect("=")
        field.number = self._integer()
        self._options(field)
        self._expect(";")
        return field

    def _options(self, field: Any) -> None:
        """The options of a field, of which its default counts."""
        if self._next != "[":
            return
        self._take()
        while True:
            name = self._option_name()
            self._expect("=")
            if name == "default":
                field.default_value = self._default(field)
            elif self._next in _OPEN:
                self._skip_block()
            else:
                self._scalar()
            if self._take_one(",", "]") == "]":
                return

    def _option_name(self) -> str:
        name = ""
        while self._next != "=":
            if self._next == "(":
                self._skip_block()
            else:
                name += self._take()
        return name

    def _default(self, field: Any) -> str:
        data = self._scalar()
        if not isinstance(data, bytes):
            return data
        text: str = CEscape(data, False) if field.type == _KINDS["bytes"] else data.decode()
        return text

    def _scalar(self) -> str | bytes:
        """A word or number with its sign; or strings in a row, as bytes."""
        if (self._next or "")[:1] in {'"', "'"}:
            data = b""
            while (self._next or "")[:1] in {'"', "'"}:
                data += CUnescape(self._take()[1:-1])
            return data
        sign = self._take() if self._next in {"-", "+"} else ""
        return sign.replace("+", "") + self._take()

    def _enum(self, made: Any) -> None:
        made.name = self._word()
        self._expect("{")
        while (word := self._take()) != "}":
            if word in {"option", "reserved"} and self._next != "=":
                if self._next == "allow_alias":
                    made.options.allow_alias = True
                self._skip_statement()
            elif word != ";":
                self._expect("=")
                made.value.add(name=word, number=self._integer())
                if self._next == "[":
                    self._skip_block()
                self._expect(";")

    # -- tokens -----------------------------------------------------------------------------

    @property
    def _next(self) -> str | None:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else None

    def _is_word(self, ahead: int, then: str) -> bool:
        """True if a name is next, and that sign behind it."""
        tokens = self._tokens[self._at : self._at + ahead + 1]
        return len(tokens) > ahead and _is_name(tokens[0][0]) and tokens[ahead][0] == then

    def _take(self) -> str:
        if self._at >= len(self._tokens):
            raise self._error("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1][0]

    def _take_one(self, *wanted: str) -> str:
        found = self._take()
        if found not in wanted:
            raise self._error(f"{found!r} is where {' or '.join(map(repr, wanted))} is wanted")
        return found

    def _expect(self, wanted: str) -> None:
        self._take_one(wanted)

    def _word(self) -> str:
        found = self._take()
        if not _is_name(found):
            raise self._error(f"{found!r} is where a name is wanted")
        return found

    def _integer(self) -> int:
        text = self._take()
        if text == "-":
            text += self._take()
        try:
            digits = text.lstrip("-")
            octal = len(digits) > 1 and digits.startswith("0") and digits.isdecimal()
            return int(text, 8 if octal else 0)
        except ValueError:
            raise self._error(f"{text!r} is where a number is wanted") from None

    def _skip_statement(self) -> None:
        """Pass over all to a semicolon, or over a block."""
        while self._next != ";":
            if self._next in _OPEN and self._next != "<":
                is_block = self._next == "{"
                self._skip_block()
                if is_block:
                    return
            else:
                self._take()
        self._take()

    def _skip_block(self) -> None:
        closing = [_OPEN[self._take()]]
        while closing:
            word = self._take()
            if word in _OPEN.keys() - {"<"}:
                closing.append(_OPEN[word])
            elif word == closing[-1]:
                closing.pop()

    def _error(self, what: str) -> ValueError:
        at = min(max(self._at - 1, 0), len(self._tokens) - 1)
        line = self._tokens[at][1] if self._tokens else 1
        return ValueError(f"is no file of Protobuf that can be read: line {line}: {what}")


def _tokens(text: str) -> list[tuple[str, int]]:
    """The tokens, each with its line."""
    found, at, line = [], 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            shown = text[at : at + 1]
            raise ValueError(f"is no file of Protobuf that can be read: line {line}: {shown!r}")
        if match.lastgroup != "blank":
            found.append((match[0], line))
        line += match[0].count("\n")
        at = match.end()
    return found


def _is_name(token: str) -> bool:
    return token[0].isalpha() or (token[0] in "_." and len(token) > 1)


def _unquoted(token: str) -> str:
    text: bytes = CUnescape(token[1:-1])
    return text.decode()


def _set_kind(field: Any, kind: str) -> None:
    if kind in _KINDS:
        field.type = _KINDS[kind]
    else:
        field.type_name = kind
