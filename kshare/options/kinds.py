"""Kinds of values: the text of one option -> its value.

Guarantee: a parser returns a value without a doubt, or raises an error that says what is wrong and,
where that is not obvious, what would be right. No error repeats the text.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from kshare.core.open_entry import MILLISECONDS_MAX
from kshare.core.showing import shown
from kshare.options.allowed import function_fault
from kshare.options.model import SOURCE_COLUMNS
from kshare.options.typed_rows import (
    TYPED_COLUMNS,
    VARIANT_SCHEMA,
    BadRecords,
    InlineSchema,
    LatestSchema,
    SchemaChoice,
    SchemaId,
    SchemaVersion,
)
from kshare.ranges import RANGE_ASSIGNORS, load_range_assignor

__all__ = [
    "BAD_RECORDS",
    "BOOLEAN",
    "COLUMNS",
    "COMMITS",
    "DURATION_MAX",
    "DURATION_OR_OFF",
    "FIELDS",
    "FUNCTION",
    "ID_PREFIX",
    "INT_MAX",
    "KEYS",
    "LONG_MAX",
    "RANGE_ASSIGNOR",
    "REAL_TIME",
    "ROW_COLUMNS",
    "SCHEMA",
    "SOME_KEYS",
    "TEXT",
    "TOPIC",
    "BadValueError",
    "Kind",
    "auto_or",
    "choice",
    "has_labels",
    "host_and_port",
    "integer",
    "named_messages",
    "parse_delay",
    "parse_duration",
    "parse_key",
    "parse_keys",
    "topic_fault",
]

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SHOWN: Final = 300
_ID_PREFIX = re.compile(r"[!-~]{1,200}")
# ClientUtils.parseAndValidateAddresses: a protocol may stand in front.
_ADDRESS = re.compile(
    r"(?:[A-Za-z_]+://)?(?:\[([0-9A-Fa-f:.%]+)\]|([0-9A-Za-z._-]+)):([0-9]{1,5})", re.ASCII
)
_MAX_US = 2**63 // 1000
_REAL_TIME_SECONDS: Final = (0.1, MILLISECONDS_MAX / 1000)
DURATION_MAX: Final = _MAX_US / 1e6
"""The longest time in seconds, 292 years: what is longer, no wait takes."""
# JavaUtils.timeStringAs of Spark: the suffixes that it knows, in microseconds.
_SPARK_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_US = _SPARK_US | {
    name: _SPARK_US[unit]
    for unit, names in (
        ("ms", "millisecond milliseconds milli millis"),
        ("s", "sec secs second seconds"),
        ("m", "mins minute minutes"),
        ("h", "hour hours"),
        ("d", "day days"),
    )
    for name in names.split()
}
_DELAY = re.compile(r"([0-9]{1,19})([a-z]+)?", re.ASCII)
_DURATION = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*([a-z]+)", re.ASCII)


class BadValueError(ValueError):
    """The text of an option is not a value.

    Args:
        wrong: What is wrong.
        right: What would be right; empty if ``wrong`` says it.
    """

    def __init__(self, wrong: str, right: str = "") -> None:
        super().__init__(wrong)
        self.right = right


class Kind(NamedTuple):
    """A kind of values.

    Attributes:
        values: The values, as the documentation describes them.
        parse: Text to value; raises ``ValueError``.
    """

    values: str
    parse: Callable[[str], Any]


# -- kinds --------------------------------------------------------------------------------------


def integer(lowest: int, highest: int = LONG_MAX) -> Kind:
    """Integers within bounds; blanks around them do not matter."""

    def parse(text: str) -> int:
        digits = text.strip()
        if _INTEGER.fullmatch(digits) and lowest <= int(digits) <= highest:
            return int(digits)
        raise BadValueError("is wrong", f"wanted an integer from {lowest} to {highest}")

    bounded = highest not in {INT_MAX, LONG_MAX}
    return Kind(f"integer, {lowest} {f'to {highest}' if bounded else 'or more'}", parse)


def choice(*words: str, default: str = "") -> Kind:
    """One of several words, in any case; parsed into the spelling given here.

    Args:
        words: The allowed words.
        default: The word that an error marks as the default; empty: none is marked.
    """
    by_lower_case = {word.lower(): word for word in words}

    def parse(text: str) -> str:
        word = by_lower_case.get(text.strip().lower())
        if word is None:
            marked = [f"{word} (default)" if word == default else word for word in words]
            raise BadValueError("is not known", f"allowed: {', '.join(marked)}")
        return word

    return Kind(", ".join(f"`{word}`" for word in words), parse)


def _words(values: Mapping[str, Any], wanted: str) -> Callable[[str], Any]:
    """Parse one of some words, in any case, into what it stands for."""

    def parse(text: str) -> Any:
        word = text.strip().lower()
        if word not in values:
            raise BadValueError("is wrong", f"wanted {wanted}")
        return values[word]

    return parse


_BOOLEANS: Final = {"true": True, "false": False}
BOOLEAN: Final = Kind("`true`, `false`", _words(_BOOLEANS, "true or false"))
TEXT: Final = Kind("text", lambda text: text or None)
"""Any text; an empty one counts as not given."""


def _parse_topic(text: str) -> str:
    fault = topic_fault(text.strip())
    if fault is not None:
        raise BadValueError(*fault)
    return text.strip()


TOPIC: Final = Kind("name of a topic", _parse_topic)


def _parse_id_prefix(text: str) -> str:
    if _ID_PREFIX.fullmatch(text.strip()):
        return text.strip()
    raise BadValueError(
        f"{text!r:.100} cannot begin a transactional id",
        "allowed: 1 to 200 visible ASCII characters",
    )


ID_PREFIX: Final = Kind("1 to 200 visible characters", _parse_id_prefix)
"""How transactional ids begin; a dash follows."""


# -- parsers of several kinds -------------------------------------------------------------------


def topic_fault(topic: str) -> tuple[str, str] | None:
    """The fault of a topic's name, with a remedy; None if nothing."""
    if _TOPIC.fullmatch(topic) and topic not in {".", ".."}:
        return None
    wrong = f"{shown(topic, _SHOWN)} cannot be a topic's name"  # in rows, it may be any text
    return wrong, "allowed: 1 to 249 letters, digits, '.', '_', '-'"


def host_and_port(text: str) -> tuple[str, int] | None:
    """Host and port of ``host:port``, as Kafka's Java client reads it; None if it is not such."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not 1 <= int(match[3]) <= 65535:
        return None
    if match[2] and not has_labels(match[2]):
        return None
    return match[1] or match[2], int(match[3])


def has_labels(host: str) -> bool:
    """True if each label of a host name has 1 to 63 letters: others cannot be looked up."""
    return all(1 <= len(label) <= 63 for label in host.removesuffix(".").split("."))


def parse_delay(text: str) -> float:
    """Parse a time as Spark's ``Utils.timeStringAsMs`` does: ``15m``, ``30s``; bare numbers are ms.

    Returns:
        Seconds, in whole milliseconds.

    Raises:
        ValueError: The text is not a time.
    """
    match = _DELAY.fullmatch(text.strip().lower())
    unit = match and _SPARK_US.get(match[2] or "ms")
    if match is None or unit is None or int(match[1]) * unit > _MAX_US:
        raise ValueError("is not a time; write for example 15m, 30s, 500ms (us, ms, s, m, h, d)")
    return int(match[1]) * unit // 1000 / 1000


def parse_duration(text: str) -> float:
    """Parse a time with its unit: ``10s``, ``500ms``, ``2 minutes``, ``1.5 h``.

    Returns:
        Seconds, more than 0.

    Raises:
        ValueError: The text is not such a time.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    unit = match and _US.get(match[2])
    if match is None or unit is None or not 0 < float(match[1]) * unit <= _MAX_US:
        raise ValueError(
            "is not a time above 0 with a unit; write for example 10s, 500ms, 2 minutes"
        )
    return float(match[1]) * unit / 1e6


def parse_keys(text: str) -> tuple[bytes, ...]:
    """Parse a JSON list of keys: ``["customer-7", {"hex": "00ff"}]``; strings are UTF-8.

    Returns:
        Each key once, in the order given.

    Raises:
        ValueError: The text is not such a list.
    """
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(entries, list):
        raise ValueError('must be a JSON list, such as ["customer-7", {"hex": "00ff"}]')  # noqa: TRY004
    named = (parse_key(entry, f"entry {index}") for index, entry in enumerate(entries))
    return tuple(dict.fromkeys(named))


def parse_key(entry: Any, what: str = "key") -> bytes:
    """Parse a key in JSON: ``"customer-7"`` or ``{"hex": "00ff"}``; strings are UTF-8.

    Raises:
        ValueError: It is neither; the text begins with ``what``.
    """
    try:
        match entry:
            case str():
                return entry.encode()
            case {"hex": str(digits)} if len(entry) == 1:
                return bytes.fromhex(digits)
    except ValueError as error:  # a lone surrogate, or no hexadecimal digits
        raise ValueError(f"{what} cannot be read: {error}") from None
    raise ValueError(f'{what} must be a string, or {{"hex": "..."}} with an even number of digits')


_KEYS: Final = 'JSON such as `["customer-7", {"hex": "00ff"}]`'


def auto_or(number: Kind, where: str = "") -> Kind:
    """``auto``, or a number.

    Args:
        number: The numbers.
        where: Where ``auto`` is allowed, for errors; empty for everywhere.
    """

    def parse(text: str) -> Any:
        if text.strip().lower() == "auto":
            return "auto"
        try:
            return number.parse(text)
        except BadValueError as error:
            raise BadValueError(str(error), f"{error.right}, or auto{where}") from None

    return Kind(f"`auto`, or {number.values}", parse)


def _parse_row_columns(text: str) -> tuple[str, ...]:
    return _parse_columns(text, TYPED_COLUMNS)


def _parse_columns(text: str, of_rows: tuple[str, ...] = ()) -> tuple[str, ...]:
    spellings = {name.lower(): name for name in (*SOURCE_COLUMNS, *of_rows)}
    known = f"known are: {', '.join(SOURCE_COLUMNS)}"
    known += f"; of typed rows: {', '.join(of_rows)}" if of_rows else ""
    if not text.strip():
        raise ValueError(f"names no column; {known}")
    columns: list[str] = []
    unknown: list[str] = []
    repeated: list[str] = []
    for name in (name.strip() for name in text.split(",")):
        column = spellings.get(name.lower())
        if column is None:
            unknown.append(repr(name))
        elif column in columns:
            repeated.append(repr(name))
        else:
            columns.append(column)
    faults = []
    if unknown:
        faults.append(f"has no column {', '.join(dict.fromkeys(unknown))}")
    if repeated:
        faults.append(f"names {', '.join(dict.fromkeys(repeated))} twice")
    if faults:
        raise ValueError(f"{' and '.join(faults)}; {known}")
    return tuple(columns)


def _parse_some_keys(text: str) -> tuple[bytes, ...]:
    keys = parse_keys(text)
    if not keys:
        raise ValueError("names no key; leave it out to read all keys")
    return keys


def _parse_range_assignor(text: str) -> str:
    name = text.strip()
    if name not in RANGE_ASSIGNORS and (fault := function_fault(name)):
        raise BadValueError(*fault)  # before it is imported
    load_range_assignor(name)
    return name


def _parse_function(text: str) -> str:
    module, colon, attribute = text.strip().partition(":")
    names = (*module.split("."), *attribute.split("."))
    if not colon or not all(map(str.isidentifier, names)):
        raise BadValueError("is not the path of a Python function", "write package.module:function")
    if fault := function_fault(text):
        raise BadValueError(*fault)
    return text.strip()


def _parse_duration_or_off(text: str) -> float:
    if text.strip().lower() == "off":
        return math.inf
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{error}, or off") from None


def _parse_real_time(text: str) -> float:
    seconds = parse_duration(text)
    if not _REAL_TIME_SECONDS[0] <= seconds <= _REAL_TIME_SECONDS[1]:
        raise BadValueError("is too short or too long", "wanted 100ms to 24h")
    return seconds


_MESSAGE: Final = r"\.?[a-z_][a-z_0-9.]*"
_MESSAGES: Final = rf"({_MESSAGE}(?:[ \t]*,[ \t]*{_MESSAGE})*)[ \t]+"
_OF_REGISTRY: Final = re.compile(
    rf"(?:{_MESSAGES})?(?:(latest)|(version|id)\s*[:=]\s*([0-9]{{1,10}}))",
    re.ASCII | re.IGNORECASE,
)
_NAMED: Final = re.compile(rf"{_MESSAGES}(\S.*)", re.ASCII | re.IGNORECASE | re.DOTALL)


def named_messages(text: str) -> tuple[tuple[str, ...], str]:
    """The messages of Protobuf that a schema names in front, and the schema behind them.

    Args:
        text: Such as ``shop.Placed,shop.Paid orders.desc``.
    """
    match = _NAMED.fullmatch(text)
    return (_messages(match[1]), match[2]) if match is not None else ((), text)


def _messages(text: str) -> tuple[str, ...]:
    return tuple(each.strip().removeprefix(".") for each in text.split(","))


def _parse_schema(text: str) -> SchemaChoice:
    given = text.strip()
    if not given:
        raise BadValueError("is empty", "wanted latest, version:N, id:N, or the schema itself")
    if given.isdecimal():
        raise BadValueError(
            "may be a version or an id", f"write version:{given:.20} or id:{given:.20}"
        )
    match = _OF_REGISTRY.fullmatch(given)
    if match is None:
        is_variant = given.upper() == VARIANT_SCHEMA.text
        return VARIANT_SCHEMA if is_variant else InlineSchema(given)
    message = ",".join(_messages(match[1] or ""))
    if match[2]:
        return LatestSchema(message)
    number = int(match[4])
    if not 0 < number <= INT_MAX:
        raise BadValueError("is wrong", f"wanted an integer from 1 to {INT_MAX}")
    is_version = match[3].lower() == "version"
    return SchemaVersion(number, message) if is_version else SchemaId(number, message)


def _parse_fields(text: str) -> tuple[str, ...]:
    fields = tuple(name.strip() for name in text.split(","))
    if not all(all(field.split(".")) for field in fields):
        raise BadValueError("has an empty name", "write for example user,qty,items.sku")
    for field in fields:
        within = [each for each in fields if each.startswith(f"{field}.")]
        if within or fields.count(field) > 1:
            raise BadValueError(f"names {(within or [field])[0]!r} twice")
    return fields


def _parse_bad_records(text: str) -> BadRecords:
    word, equals, topic = (part.strip() for part in text.partition("="))
    match word.lower():
        case "fail" if not equals:
            return BadRecords()
        case "null" if not equals:
            return BadRecords("null")
        case "deadletter" if equals:
            return BadRecords("deadLetter", _parse_topic(topic))
    raise BadValueError("is not known", "allowed: fail (default), null, deadLetter=<topic>")


SCHEMA: Final = Kind(
    "`latest`, `version:N`, `id:N` (Protobuf: with a message in front), or the schema itself",
    _parse_schema,
)
FIELDS: Final = Kind("dotted paths, separated by commas", _parse_fields)
"""Fields of a schema; none within another one."""
BAD_RECORDS: Final = Kind("`fail`, `null`, `deadLetter=<topic>`", _parse_bad_records)
COLUMNS: Final = Kind(", ".join(f"`{name}`" for name in SOURCE_COLUMNS), _parse_columns)
"""Names of a record's columns, in any case; none of them twice."""
ROW_COLUMNS: Final = Kind(
    ", ".join(f"`{name}`" for name in (*SOURCE_COLUMNS, *TYPED_COLUMNS)), _parse_row_columns
)
"""Names of a row's columns, in any case; none of them twice."""
KEYS: Final = Kind(_KEYS, parse_keys)
SOME_KEYS: Final = Kind(_KEYS, _parse_some_keys)
"""Keys, at least one."""
RANGE_ASSIGNOR: Final = Kind("name or dotted path", _parse_range_assignor)
"""A range assignor that can be loaded."""
FUNCTION: Final = Kind("`package.module:function`", _parse_function)
COMMITS: Final = Kind(
    f"{BOOLEAN.values}, `individual`",
    _words({**_BOOLEANS, "individual": "individual"}, "true, false or individual"),
)
"""The way in which offsets are committed, if at all."""
DURATION_OR_OFF: Final = Kind("time such as `10m`, or `off`", _parse_duration_or_off)
"""Seconds, infinite for ``off``."""
REAL_TIME: Final = Kind("time such as `60s`, from `100ms` to `24h`", _parse_real_time)
"""The time in seconds that a micro-batch reads."""
