"""The kinds of values in an offset dict, and how a fault names its place.

Guarantees: a reader returns a value within bounds, or raises a CheckpointError that names the field
(``where``; empty for the dict as a whole) and what is wanted there.
"""

import binascii
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

from kshare.core.bounded_json import is_partition_name
from kshare.core.hashing import HashRange
from kshare.core.offsets import OFFSET_MAX
from kshare.core.progress import TopicPartition
from kshare.errors import CheckpointError

__all__ = [
    "EXTRA_KEY",
    "decode_base64",
    "decode_fields",
    "decode_integer",
    "decode_list",
    "decode_nested",
    "decode_offset",
    "decode_range",
    "expect",
    "fault",
    "refuse",
]

EXTRA_KEY: Final = "@kshare"
"""The key for all that Spark's dict does not have. No topic can have this name."""

_PACKED_MAX: Final = 64 << 20
_RANGES_MAX: Final = 1 << 20
_REPAIR: Final = (
    ". 'kshare checkpoint drop-ranges DIR' sets a stopped query back to its stable offsets: "
    "records above them come again"
)

_Value = TypeVar("_Value")


def decode_nested(
    value: Any, where: str, entry: Callable[[Any, str], _Value]
) -> dict[TopicPartition, _Value]:
    """Entries by topic and partition."""
    expect(isinstance(value, Mapping), where, "an object with topics", value)
    decoded = {}
    for topic, partitions in value.items():
        here = f"{where}.{topic}" if where else str(topic)
        expect(isinstance(topic, str), here, "the name of a topic", topic)
        expect(isinstance(partitions, Mapping), here, "an object with partitions", partitions)
        for name, part in partitions.items():
            field_name = f"{here}.{name}"
            number = _decode_partition(name, field_name)
            decoded[TopicPartition(topic, number)] = entry(part, field_name)
    return decoded


def _decode_partition(name: Any, where: str) -> int:
    expect(is_partition_name(name), where, "a partition number", name)
    return int(name)


def decode_offset(value: Any, where: str) -> int:
    """An offset."""
    return decode_integer(value, where, "an offset", 0)


def decode_integer(value: Any, where: str, wanted: str, minimum: int) -> int:
    """An integer, not below a minimum, and not above the highest offset."""
    expect(type(value) is int and minimum <= value <= OFFSET_MAX, where, wanted, value)
    return int(value)


def decode_list(value: Any, where: str, wanted: str) -> list[Any]:
    """A list that is not empty, and not too long."""
    expect(isinstance(value, list) and bool(value), where, wanted, value)
    expect(len(value) <= _RANGES_MAX, where, f"at most {_RANGES_MAX} entries", len(value))
    return list(value)


def decode_fields(value: Any, where: str, names: Sequence[str]) -> list[Any]:
    """The values of an object that has these fields and no others, in their order."""
    wanted = f"an object with {', '.join(names)}"
    expect(isinstance(value, Mapping) and value.keys() == set(names), where, wanted, value)
    return [value[name] for name in names]


def decode_range(value: Any, where: str) -> HashRange:
    """A range of key hashes, ``[lo, hi]``."""
    pair = isinstance(value, list) and len(value) == 2 and all(type(h) is int for h in value)
    expect(pair, where, "[lo, hi]", value)
    try:
        return HashRange(*value)
    except ValueError as error:
        raise CheckpointError(fault(where, str(error))) from error


def decode_base64(value: Any, where: str) -> bytes:
    """Bytes, of text in base64."""
    expect(isinstance(value, str), where, "text in base64", value)
    expect(len(value) <= _PACKED_MAX, where, f"at most {_PACKED_MAX} characters", len(value))
    try:
        packed = b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        refuse(where, "text in base64", value)
    return packed


def expect(fits: bool, where: str, wanted: str, found: Any) -> None:
    """Refuse what does not fit."""
    if not fits:
        refuse(where, wanted, found)


def refuse(where: str, wanted: str, found: Any) -> NoReturn:
    """Raise the error of a field.

    Raises:
        CheckpointError: Always.
    """
    raise CheckpointError(fault(where, f"wanted {wanted}, found {repr(found)[:100]}"))


def fault(where: str, what: str) -> str:
    """The text of a fault; with the command that repairs it where Spark's part is sound."""
    repair = _REPAIR if where.startswith(EXTRA_KEY) else ""
    return f"the checkpoint's offsets cannot be read: {where or 'the offsets'}: {what}{repair}"
