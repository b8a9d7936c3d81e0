"""A schema as the compiled reader of JSON wants it: a table of steps, one for each node."""

from datetime import UTC, datetime, timedelta, timezone
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.formats.json.options import JsonOptions
from kshare.formats.json.pattern_steps import Step, pattern_steps
from kshare.formats.json.times import zone_of
from kshare.read.decode import json_kind, pattern_step
from kshare.read.decode.compiled import address
from kshare.read.decode.layout import JSON_FIELD, JSON_LEVEL, JSON_STEP, JsonState

__all__ = ["Steps", "powers_of_five_and_ten"]

_SIMPLE: Final = {
    pa.string(): json_kind.STRING,
    pa.binary(): json_kind.BINARY,
    pa.bool_(): json_kind.BOOLEAN,
    pa.float32(): json_kind.FLOAT,
    pa.float64(): json_kind.DOUBLE,
}
_TIMES: Final = {
    pa.date32(): (json_kind.DATE, "date_format"),
    pa.timestamp("us"): (json_kind.LOCAL_TIMESTAMP, "timestamp_ntz_format"),
    pa.timestamp("us", "UTC"): (json_kind.TIMESTAMP, "timestamp_format"),
}
"""The kind of each without a pattern, and the option that has one."""

_INT64_MAX: Final = (1 << 63) - 1
_DAY: Final = timedelta(days=1)
_ZONE_STEP: Final = timedelta(days=7)  # no zone changes twice within


class Steps:
    """The table of steps of a schema.

    Args:
        schema: The struct that records are.
        options: How they are read.

    Raises:
        TypeError: JSON cannot be read as one of the schema's types.
    """

    def __init__(self, schema: pa.StructType, options: JsonOptions) -> None:
        self._options = options
        self._steps: list[tuple[int, int, int]] = []
        self._fields: list[tuple[int, int, int, int]] = []
        self._names = bytearray()
        self._places: list[tuple[str, pa.DataType]] = []
        self._patterns: list[Step] = []
        self._add(schema, "")
        self._tables: tuple[npt.NDArray[Any], ...] = (
            np.array(self._steps, JSON_STEP),
            np.array(self._patterns, JSON_STEP),
            np.array(self._fields, JSON_FIELD),
            np.frombuffer(bytes(self._names) + bytes(8), np.uint8),
        )

    def place(self, number: int) -> tuple[str, pa.DataType]:
        """The dotted path of a node's field, and the node's type."""
        return self._places[number]

    def begin(self, state: JsonState) -> tuple[npt.NDArray[Any], ...]:
        """Let a kernel work by these steps.

        Args:
            state: What it works on. It keeps addresses: this object, and the result, must live as
                long as it goes on.

        Returns:
            The memory that it works with; each thread that uses the steps has some of its own.
        """
        steps, patterns, fields, names = self._tables
        powers, tens = powers_of_five_and_ten()
        changes = _zone_changes(self._options.time_zone)
        levels = np.empty(self._options.max_depth, JSON_LEVEL)
        moment = np.empty(pattern_step.KINDS, np.int64)
        state.steps, state.fields = address(steps, JSON_STEP), address(fields, JSON_FIELD)
        state.patterns, state.moment = address(patterns, JSON_STEP), address(moment, np.int64)
        state.names, state.levels = address(names, np.uint8), address(levels, JSON_LEVEL)
        state.powers, state.tens = address(powers, np.uint64), address(tens, np.float64)
        state.zone_changes, state.zone_change_count = address(changes, np.int64), len(changes)
        state.max_depth, state.flags = self._options.max_depth, self._flags()
        return levels, moment

    def _flags(self) -> int:
        options = self._options
        return (
            (0 if options.allow_single_quotes else json_kind.NO_SINGLE_QUOTES)
            | (0 if options.allow_non_numeric_numbers else json_kind.NO_NON_NUMBERS)
            | (json_kind.LENIENT if options.is_lenient else 0)
            | (json_kind.PARTIAL if options.partial else 0)
        )

    def _add(self, kind: pa.DataType, path: str) -> None:
        """Append the steps of a type and all below it."""
        number = len(self._steps)
        self._steps.append((0, 0, 0))
        self._places.append((path, kind))
        if pa.types.is_struct(kind):
            first = len(self._fields)
            self._fields.extend([(0, 0, 0, 0)] * len(kind))
            for index, field in enumerate(kind):
                self._fields[first + index] = self._field(field.name)
                self._add(field.type, f"{path}.{field.name}" if path else field.name)
            self._steps[number] = (json_kind.STRUCT, first, len(kind))
        elif pa.types.is_map(kind):
            self._steps[number] = (json_kind.MAP, 0, 0)
            self._steps.extend([(json_kind.MAP, 0, 0), (json_kind.STRING, 0, 0)])
            self._places.extend([(path, kind), (path, kind.key_type)])
            self._add(kind.item_type, path)
        elif pa.types.is_list(kind):
            self._steps[number] = (json_kind.LIST, 0, 0)
            self._add(kind.value_type, path)
        else:
            self._steps[number] = self._leaf(kind, path)

    def _field(self, name: str) -> tuple[int, int, int, int]:
        """The next node, by its name."""
        data, begin = name.encode(), len(self._names)
        self._names += data
        word = int.from_bytes(data[:8].ljust(8, b"\0"), "little", signed=True)
        return len(self._steps), begin, len(data), word

    def _leaf(self, kind: pa.DataType, path: str) -> tuple[int, int, int]:
        simple = _SIMPLE.get(kind)
        if simple is not None:
            return simple, 0, 0
        if pa.types.is_signed_integer(kind):
            bound = 1 << (kind.bit_width - 1)
            # Jackson takes unsigned bytes, too.
            return json_kind.INTEGER, -bound, bound - 1 if kind.bit_width > 8 else 255
        if pa.types.is_decimal128(kind):
            return json_kind.DECIMAL, kind.precision, kind.scale
        if kind in _TIMES:
            plain, option = _TIMES[kind]
            pattern: str | None = getattr(self._options, option)
            if not pattern:
                return plain, 0, 0
            begin, made = len(self._patterns), pattern_steps(pattern, kind)
            self._patterns += made
            return json_kind.PATTERN, begin, len(made)
        raise TypeError(f"{path}: JSON cannot be read as {kind}")


@lru_cache(maxsize=64)
def _zone_changes(name: str) -> npt.NDArray[np.int64]:
    """From which local time on a zone is how far to the east, in microseconds; and their end.

    A local time that is skipped, or there twice, counts with the offset before it. Java's zones
    change as these do; before 1970, and beyond 2070, the plain reader asks for each time.
    """
    zone = zone_of(name)
    assert zone is not None
    if isinstance(zone, timezone):  # one offset for ever
        east = zone.utcoffset(None) // timedelta(microseconds=1)
        return np.array([(-_INT64_MAX, east), (_INT64_MAX, 0)])
    first, last = datetime(1970, 1, 1, tzinfo=UTC), datetime(2070, 1, 1, tzinfo=UTC)

    def offset(at: datetime) -> timedelta:
        return at.astimezone(zone).utcoffset() or timedelta()

    at, changes = first, [((first - _DAY).replace(tzinfo=None), offset(first))]
    while at < last:
        behind = at + _ZONE_STEP
        before, after = offset(at), offset(behind)
        if before != after:
            low, high = at, behind
            while high - low > timedelta(seconds=1):
                middle = low + (high - low) / 2
                low, high = (middle, high) if offset(middle) == before else (low, middle)
            # What changes, changes at whole seconds.
            instant = high.replace(microsecond=0, tzinfo=None)
            changes.append((instant + max(before, after), after))
        at = behind
    changes.append((last.replace(tzinfo=None), timedelta()))
    epoch, micro = first.replace(tzinfo=None), timedelta(microseconds=1)
    return np.array([((start - epoch) // micro, east // micro) for start, east in changes])


@cache
def powers_of_five_and_ten() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64]]:
    """128 bits of the powers of five from -342 to 308, and the powers of ten from 0 to 22.

    Those below 0 are rounded up, the others down, as Lemire's way wants them.
    """
    words: list[int] = []
    for exponent in range(-342, 309):
        power = 5 ** abs(exponent)
        if exponent < 0:
            bits = (power - 1).bit_length()
            found = (1 << (bits + 127 if exponent >= -27 else 2 * bits + 128)) // power + 1
        else:
            found = power << 128
        found >>= max(found.bit_length() - 128, 0)
        words += [found >> 64, found & ((1 << 64) - 1)]
    tens = np.array([float(10**exponent) for exponent in range(23)])
    return np.array(words, np.uint64), tens
