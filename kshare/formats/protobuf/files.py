"""Files of Protobuf: descriptor sets as options and registries give them, and their messages.

A schema of a registry is one file, with the files that it imports beside it. Here it becomes one
text, as a descriptor set in base64 (:func:`registry_set`), and comes apart again to be registered
(:func:`parts_of`).

All of this needs the package ``protobuf`` (``pip install 'kshare[protobuf]'``).
"""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

__all__ = [
    "Part",
    "find_message",
    "inline_set",
    "message_name",
    "message_names",
    "named_files",
    "parts_of",
    "registry_set",
]

_NAMED: Final = re.compile(r"(\.?[A-Za-z_][A-Za-z_0-9.]*)[ \t]+(\S.*)", re.DOTALL)
_WELL_KNOWN: Final = re.compile(
    r"(google/protobuf|google/type|confluent|confluent/type|confluent/types)/([a-z_]+)\.proto"
)
_PACKAGES: Final = {"confluent": "confluent_kafka.schema_registry.confluent"}
_MAIN: Final = "default"
"""The name of a registry's file, which has none; Confluent's clients name it so, too."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file as a registry takes it.

    Attributes:
        name: The name by which others import it.
        text: Its descriptor in base64.
        imports: The names of the files that it imports, without those that all readers have.
    """

    name: str
    text: str
    imports: tuple[str, ...]


def named_files(text: str) -> tuple[list[Any], str]:
    """The files of a schema, and the name of the message that it names.

    Args:
        text: A message's name and a blank, or nothing; then a descriptor set: the path of a file,
            as ``protoc --include_imports --descriptor_set_out`` writes it, or its contents in
            base64, or those of a file's descriptor.

    Returns:
        The files, each behind those that it imports where the set has them so; and the name, ""
        if there is none.

    Raises:
        ValueError: It is none of that, or the package ``protobuf`` is not installed.
    """
    match = _NAMED.fullmatch(text.strip())
    name, where = match.groups() if match and not _is_file(text) else ("", text)
    _package()
    return _descriptor_files(where), name.removeprefix(".")


def registry_set(
    text: str, references: Mapping[str, str], name: str = "", subject: str = ""
) -> str:
    """A registry's schema as one text for :func:`named_files`.

    Args:
        text: The schema: its descriptor in base64, or a file of Protobuf.
        references: The files that it imports, by name.
        name: The name of the message that is wanted; "": the one that the subject names, as
            serializers name subjects by records (``orders-shop.Order``, ``shop.Order``), else the
            first.
        subject: The subject.

    Raises:
        ValueError: One of the schemas is none, or the package ``protobuf`` is not installed.
    """
    files = _package().FileDescriptorSet()
    files.file.extend(_file(each, number) for each, number in references.items())
    main = _MAIN
    while main in references:
        main += "_"
    files.file.append(_file(main, text))
    return _set_text(files, name or _subject_message(files.file[-1], subject))


def _subject_message(file: Any, subject: str) -> str:
    """The name of the message by which a subject is named; "": the first one, or none."""
    found = [
        (len(name), name, path)
        for path, name in message_names(file).items()
        if subject == name or subject.endswith(f"-{name}")
    ]
    _, name, path = max(found, default=(0, "", (0,)))
    return "" if path == (0,) else name


def inline_set(text: str) -> str:
    """A schema for :func:`named_files` that needs no file of this host.

    Args:
        text: A schema for :func:`named_files`.

    Raises:
        ValueError: It cannot be read, or the package ``protobuf`` is not installed.
    """
    files, name = named_files(text)
    made = _package().FileDescriptorSet()
    made.file.extend(files)
    return _set_text(made, name)


def _set_text(files: Any, name: str) -> str:
    made = base64.b64encode(files.SerializeToString(deterministic=True)).decode()
    return f"{name} {made}" if name else made


def parts_of(text: str) -> list[Part]:
    """The files of a schema for a registry, each behind those that it imports.

    Without those that all readers have, and those that the message's file does not need.

    Args:
        text: As for :func:`named_files`.

    Raises:
        ValueError: There is no such message, or the files do not go together.
    """
    files, name = named_files(text)
    descriptor, _ = find_message(files, name)
    by_name = {file.name: file for file in files}
    found: dict[str, Part] = {}

    def add(file: Any) -> None:
        imports = tuple(each for each in file.dependency if not _WELL_KNOWN.fullmatch(each))
        for each in imports:
            if each not in found:
                add(by_name[each])
        found[file.name] = Part(file.name, file_text(file), imports)

    add(by_name[descriptor.file.name])
    return list(found.values())


def file_text(file: Any) -> str:
    """A file's descriptor in base64, without the names for JSON that everybody makes alike.

    ``protoc`` writes these to a descriptor set, and not where it makes Python of it.
    """
    copied = _package().FileDescriptorProto()
    copied.CopyFrom(file)
    for message in _all_messages(copied.message_type):
        for field in message.field:
            if field.json_name == _json_name(field.name):
                field.ClearField("json_name")
    return base64.b64encode(copied.SerializeToString(deterministic=True)).decode()


def _all_messages(messages: Any) -> Any:
    for message in messages:
        yield message
        yield from _all_messages(message.nested_type)


def _json_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(each[:1].upper() + each[1:] for each in others)


def message_name(text: str) -> str:
    """The name that stands in front of a text of this module; "": none does."""
    return text.partition(" ")[0] if " " in text else ""


def message_names(file: Any) -> dict[tuple[int, ...], str]:
    """The full names of a file's messages and those below, by their paths."""
    return {path: name for name, path in _names(file.message_type, file.package, ())}


def find_message(files: Sequence[Any], name: str) -> tuple[Any, tuple[int, ...]]:
    """The descriptor of the message of a name, and its path.

    Args:
        files: The files.
        name: The full name, or the last part, if that is unique; "": the first message of the last
            file.

    Raises:
        ValueError: There is no such message, or the files do not go together.
    """
    try:
        return _find(files, name)
    except TypeError as error:  # what the package says of descriptors that do not go together
        raise ValueError(f"has files that do not go together: {error}") from None


def _find(files: Sequence[Any], name: str) -> tuple[Any, tuple[int, ...]]:
    from google.protobuf import descriptor_pool  # noqa: PLC0415 - an extra

    pool = descriptor_pool.DescriptorPool()
    by_name = {file.name: file for file in files}
    added: set[str] = set()

    def add(file: Any, importing: tuple[str, ...]) -> None:
        if file.name in added:
            return
        if file.name in importing:
            raise ValueError(f"has file {file.name}, which imports itself")
        for needed in file.dependency:
            add(_imported(needed, by_name, file.name), (*importing, file.name))
        pool.AddSerializedFile(file.SerializeToString())
        added.add(file.name)

    for file in files:
        add(file, ())
    known = {
        full: path for file in files for full, path in _names(file.message_type, file.package, ())
    }
    matches = [full for full in known if full == name]
    matches = matches or [full for full in known if full.endswith(f".{name}")]
    if not name:
        last = _names(files[-1].message_type, files[-1].package, ())
        matches = [full for full, _ in last[:1]]
    if len(matches) != 1:
        what = f"messages that are named {name}" if matches else f"no message {name}".rstrip()
        raise ValueError(f"has {what}; there are {', '.join(sorted(matches or known)) or 'none'}")
    return pool.FindMessageTypeByName(matches[0]), known[matches[0]]


def _names(messages: Any, prefix: str, path: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """The full names of messages and those below, and their paths."""
    found = []
    for number, message in enumerate(messages):
        name = f"{prefix}.{message.name}" if prefix else message.name
        found.append((name, (*path, number)))
        found += _names(message.nested_type, name, (*path, number))
    return found


def _imported(name: str, known: dict[str, Any], by: str) -> Any:
    """The file of an import; those of Google and Confluent come with packages."""
    if name in known:
        return known[name]
    match = _WELL_KNOWN.fullmatch(name)
    if match is not None:
        folder = match[1].replace("/", ".")
        first, _, rest = folder.partition(".")
        package = ".".join(filter(None, (_PACKAGES.get(first, first), rest)))
        try:
            module = import_module(f"{package}.{match[2]}_pb2")
        except ImportError:
            pass
        else:
            file = _package().FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(file)
            return file
    raise ValueError(f"lacks {name}, which {by} imports; protoc --include_imports adds it")


def _package() -> Any:
    """The package's module of descriptors.

    Raises:
        ValueError: It is not installed.
    """
    try:
        return import_module("google.protobuf.descriptor_pb2")  # an extra
    except ImportError as error:
        raise ValueError(f"needs protobuf ({error}); pip install 'kshare[protobuf]'") from None


def _file(name: str, text: str) -> Any:
    """The descriptor of a registry's file, under the name by which it is imported."""
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - an extra

    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        from kshare.formats.protobuf.proto_text import parse_file  # noqa: PLC0415 - rare

        made = parse_file(text)
    else:
        try:
            made = _package().FileDescriptorProto.FromString(data)
        except DecodeError as error:
            raise ValueError(f"is no file of Protobuf ({error})") from None
    made.name = name
    return made


def _is_file(text: str) -> bool:
    try:
        return Path(text.strip()).is_file()
    except (OSError, ValueError):  # too long for a path
        return False


def _descriptor_files(text: str) -> list[Any]:
    """The files of a descriptor set."""
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - an extra

    package, data = _package(), _descriptor_bytes(text)
    for kind in (package.FileDescriptorSet, package.FileDescriptorProto):
        try:
            found = kind.FromString(data)
        except DecodeError:
            continue
        files = list(found.file) if kind is package.FileDescriptorSet else [found]
        if any(file.message_type or file.enum_type or file.dependency for file in files):
            return files
    raise ValueError("is no descriptor set; protoc --include_imports --descriptor_set_out makes it")


def _descriptor_bytes(text: str) -> bytes:
    try:
        return Path(text.strip()).read_bytes()
    except (OSError, ValueError) as error:  # a text may be too long for a path
        why = getattr(error, "strerror", None) or str(error)
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        raise ValueError(
            f"is neither the path of a file that can be read ({why}) nor base64 of a descriptor "
            "set; for a registry's schema, write latest, version:3 or id:7 behind the message"
        ) from None
