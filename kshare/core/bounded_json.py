"""JSON that others may have written, read within bounds, and its fields by their types.

Guarantees: whatever the bytes are, :func:`read_json` and :func:`inflated` return a value or raise
:class:`ValueError`; and what takes more bytes, levels or containers than the bounds allow is
refused before it is parsed, so that memory and time are bounded, too. With :data:`BOUNDS` that is
about 200 MiB and a second or two.

JSON is taken as :rfc:`8259` has it: UTF-8, no ``NaN``, no number beyond a double, no name twice in
an object, no half of a surrogate pair.

A decoder reads the fields with the functions of this module, and catches :data:`DAMAGE`.
"""

import json
import math
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final, NoReturn

__all__ = [
    "BOUNDS",
    "COUNT_MAX",
    "DAMAGE",
    "PARTITION_MAX",
    "JsonBounds",
    "count_of",
    "flag_of",
    "inflated",
    "is_partition_name",
    "list_of",
    "read_json",
    "read_object",
    "read_without",
    "text_of",
]

DAMAGE: Final = (ValueError, KeyError, TypeError, OverflowError)
"""What reading the fields of a damaged value raises: a field is missing, or is something else."""

COUNT_MAX: Final = 2**63 - 1
"""The highest count, offset or number of milliseconds, as Kafka has them in 64 bits."""

PARTITION_MAX: Final = 2**31 - 1
"""The highest number of a partition."""


@dataclass(frozen=True, slots=True)
class JsonBounds:
    """The bounds of what is read.

    Attributes:
        size: Bytes of the text, and bytes that a compressed text may have inflated.
        depth: Arrays and objects inside each other.
        containers: Arrays and objects in all. They cost up to 250 bytes each.
    """

    size: int = 8 << 20
    depth: int = 16
    containers: int = 1 << 19


BOUNDS: Final = JsonBounds()
"""For a record or a message. Brokers take 1 MB unless configured otherwise, perhaps compressed."""

_LEVELS: Final = str.maketrans("{}", "[]")
_TEXTS: Final = re.compile(r'"[^"]*"?')
_NO_BRACKETS: Final = re.compile(r"[^\[\]]+")


def read_json(data: bytes | str, bounds: JsonBounds = BOUNDS) -> Any:
    """Parse a JSON text.

    Args:
        data: The text.
        bounds: What is read at most.

    Raises:
        ValueError: It is no JSON, or exceeds the bounds; the text says what is wrong.
    """
    text = _bounded(data, bounds)
    value = json.loads(
        text, object_pairs_hook=_no_doubles, parse_constant=_no_constant, parse_float=_finite
    )
    _refuse_halves(text, value)
    return value


def read_without(text: str, name: str, bounds: JsonBounds = BOUNDS) -> Any:
    """Parse a JSON text whose objects may have a name that is damaged.

    Args:
        text: The text.
        name: It is left out of every object, whatever it has and however often it is there.
        bounds: What is read at most, that name included.

    Raises:
        ValueError: The rest is no JSON, or all exceeds the bounds; the text says what is wrong.
    """
    text = _bounded(text, bounds)

    def kept(pairs: list[tuple[str, Any]]) -> Any:
        rest = [pair for pair in pairs if pair[0] != name]
        wrong = next((value for _, value in rest if isinstance(value, _Wrong)), None)
        return wrong or _or_wrong(_no_doubles, rest)

    value = json.loads(
        text,
        object_pairs_hook=kept,
        parse_constant=partial(_or_wrong, _no_constant),
        parse_float=partial(_or_wrong, _finite),
    )
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, _Wrong):
            raise ValueError(each.text)  # noqa: TRY004 - as all of them
        if isinstance(each, list | dict):
            waiting += each.values() if isinstance(each, dict) else each
    _refuse_halves(text, value)
    return value


def read_object(data: bytes | str, bounds: JsonBounds = BOUNDS) -> dict[str, Any]:
    """Parse a JSON object; see :func:`read_json`.

    Raises:
        ValueError: It is no JSON object, or exceeds the bounds.
    """
    value = read_json(data, bounds)
    if not isinstance(value, dict):
        raise ValueError(f"found {value!r:.100}; wanted a JSON object")  # noqa: TRY004
    return value


def inflated(data: bytes, bounds: JsonBounds = BOUNDS, *, dictionary: bytes = b"") -> bytes:
    """Decompress what zlib has compressed.

    Args:
        data: All of the compressed bytes.
        bounds: How many bytes it may have inflated.
        dictionary: The dictionary that it was compressed with.

    Raises:
        ValueError: It is damaged, cut short, or longer.
    """
    inflater = zlib.decompressobj(zdict=dictionary) if dictionary else zlib.decompressobj()
    try:
        plain = inflater.decompress(data, bounds.size)
    except zlib.error as error:
        raise ValueError(f"it cannot be decompressed: {error}") from None
    if not inflater.eof:
        raise ValueError(f"it is cut short, or longer than {bounds.size} bytes decompressed")
    return plain


def text_of(value: Any) -> str:
    """A field that is a text.

    Raises:
        TypeError: It is something else.
    """
    return str(_of_type(value, str))


def flag_of(value: Any) -> bool:
    """A field that is true or false.

    Raises:
        TypeError: It is something else.
    """
    return bool(_of_type(value, bool))


def list_of(value: Any) -> list[Any]:
    """A field that is a list.

    Raises:
        TypeError: It is something else.
    """
    return list(_of_type(value, list))


def count_of(value: Any, most: int = COUNT_MAX) -> int:
    """A field that is a whole number, 0 or more.

    Args:
        value: The field.
        most: Its highest value.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is negative, or too high.
    """
    count = int(_of_type(value, int))
    if not 0 <= count <= most:
        raise ValueError(f"found {count!r:.100}; wanted 0 to {most}")
    return count


def is_partition_name(value: Any) -> bool:
    """True if a name in an object is the number of a partition, as ``str`` writes it."""
    short = isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) <= 10
    return short and str(int(value)) == value and int(value) <= PARTITION_MAX


def _of_type(value: Any, kind: type) -> Any:
    if type(value) is not kind:  # true is no number
        raise TypeError(f"found {value!r:.100}; wanted {kind.__name__}")
    return value


def _is_deeper(text: str, depth: int) -> bool:
    """True if a text is nested deeper, or its brackets do not match. Linear in its length."""
    outside = _TEXTS.sub("", text.replace("\\\\", "").replace('\\"', ""))
    brackets = _NO_BRACKETS.sub("", outside.translate(_LEVELS))
    for _ in range(depth):  # each turn takes the innermost level away
        brackets = brackets.replace("[]", "")
    return bool(brackets)


@dataclass(frozen=True, slots=True)
class _Wrong:
    """A fault in a part of a text that may yet be left out."""

    text: str


def _or_wrong(read: Callable[[Any], Any], part: Any) -> Any:
    try:
        return read(part)
    except ValueError as error:
        return _Wrong(str(error))


def _bounded(data: bytes | str, bounds: JsonBounds) -> str:
    """A text, if it keeps the bounds.

    Raises:
        ValueError: It does not, or is no UTF-8.
    """
    if len(data) > bounds.size:
        raise ValueError(f"it has {len(data)} bytes; at most {bounds.size} are read")
    text = data if isinstance(data, str) else data.decode()
    containers = text.count("[") + text.count("{")  # in texts, too: a bound is enough
    if containers > bounds.containers:
        raise ValueError(
            f"it has about {containers} arrays and objects; at most {bounds.containers} are read"
        )
    if containers > bounds.depth and _is_deeper(text, bounds.depth):
        raise ValueError(f"it is nested more than {bounds.depth} levels deep")
    return text


def _refuse_halves(text: str, value: Any) -> None:
    """Refuse halves of a surrogate pair: texts that nobody can send on."""
    if "\\ud" in text or "\\uD" in text:
        json.dumps(value, ensure_ascii=False).encode()


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = sorted(name for name, _ in pairs)
        double = next(a for a, b in pairwise(names) if a == b)
        raise ValueError(f"it has {double!r:.100} twice in one object")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"it has {name}, which is no number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"it has {digits:.30}, which is beyond a double")
    return number
