"""Schemas of Protobuf in both forms that a registry takes and gives: descriptors, and texts."""

import base64
from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from kshare.formats.protobuf.files import file_text
from kshare.formats.protobuf.proto_text import parse_file

__all__ = ["registry_forms"]

_LABELS = {1: "", 2: "required ", 3: "repeated "}
_KINDS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}


def registry_forms(schema: str) -> tuple[str, str]:
    """A schema as its descriptor in base64, and as a text.

    Args:
        schema: Either of them.

    Raises:
        ValueError: It is neither; a clause about it.
    """
    try:
        data = base64.b64decode(schema, validate=True)
    except ValueError:
        file = parse_file(schema)
    else:
        try:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
        except DecodeError as error:
            raise ValueError(f"is no file of Protobuf ({error})") from None
    text = "\n".join(_file_lines(file)) + "\n"
    again = parse_file(text)  # the same for all ways to write it
    return file_text(again), text


def _file_lines(file: Any) -> Iterator[str]:
    yield f'syntax = "{file.syntax or "proto2"}";'
    if file.package:
        yield f"package {file.package};"
    for number, name in enumerate(file.dependency):
        public = "public " if number in file.public_dependency else ""
        yield f'import {public}"{name}";'
    for enum in file.enum_type:
        yield from _enum_lines(enum)
    for message in file.message_type:
        yield from _message_lines(message, is_proto3=file.syntax == "proto3")


def _enum_lines(enum: Any) -> Iterator[str]:
    yield f"enum {enum.name} {{"
    if enum.options.allow_alias:
        yield "option allow_alias = true;"
    yield from (f"{value.name} = {value.number};" for value in enum.value)
    yield "}"


def _message_lines(message: Any, *, is_proto3: bool) -> Iterator[str]:
    yield f"message {message.name} {{"
    entries = {each.name: each for each in message.nested_type if each.options.map_entry}
    for enum in message.enum_type:
        yield from _enum_lines(enum)
    for nested in message.nested_type:
        if nested.name not in entries:
            yield from _message_lines(nested, is_proto3=is_proto3)
    done: set[int] = set()
    for field in message.field:
        entry = entries.get(field.type_name.rpartition(".")[2])
        if entry is not None:
            key, value = (each.type_name or _KINDS[each.type] for each in entry.field)
            yield f"map<{key}, {value}> {field.name} = {field.number};"
        elif field.proto3_optional or not field.HasField("oneof_index"):
            is_optional = field.proto3_optional or (not is_proto3 and field.label == 1)
            yield _field_line(field, "optional " if is_optional else _LABELS[field.label])
        elif field.oneof_index not in done:
            done.add(field.oneof_index)
            yield f"oneof {message.oneof_decl[field.oneof_index].name} {{"
            yield from (
                _field_line(each, "")
                for each in message.field
                if each.HasField("oneof_index") and each.oneof_index == field.oneof_index
            )
            yield "}"
    yield "}"


def _field_line(field: Any, label: str) -> str:
    default = ""
    if field.HasField("default_value"):
        value = field.default_value
        is_text = _KINDS.get(field.type) in {"string", "bytes"}
        default = f" [default = {_quoted(value, field)}]" if is_text else f" [default = {value}]"
    kind = field.type_name or _KINDS[field.type]
    return f"{label}{kind} {field.name} = {field.number}{default};"


def _quoted(value: str, field: Any) -> str:
    if _KINDS[field.type] == "bytes":  # escaped already
        return f'"{value}"'
    return '"' + "".join(f"\\{byte:03o}" for byte in value.encode()) + '"'
