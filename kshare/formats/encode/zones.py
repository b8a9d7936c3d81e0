"""Zones of times as Arrow knows them.

A column of Spark has the session's zone, by a name of Java's: ``UTC+2``, ``+8:00`` and ``PST``,
too, which are in no time zone database. Arrow's functions, and its Python objects, refuse such
names.
"""

from datetime import timedelta, timezone
from functools import lru_cache
from typing import Final

import pyarrow as pa
from pyarrow import compute

from kshare.formats.encode.parts import rebuilt
from kshare.formats.json.times import zone_of

__all__ = ["arrow_zone", "in_known_zones"]

_UTC: Final = "UTC"


def in_known_zones(column: pa.Array) -> pa.Array:
    """Return a column whose times, also within others, have zones that Arrow knows."""
    kind = _known(column.type)
    return column if kind == column.type else column.cast(kind)


def _known(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, arrow_zone(kind.tz)) if kind.tz else kind
    return rebuilt(kind, _known)


@lru_cache(maxsize=64)
def arrow_zone(name: str) -> str:
    """Return Arrow's name of a zone: ``+02:00``, ``America/Los_Angeles``.

    Args:
        name: As Java and Spark read it.
    """
    zone = zone_of(name)
    if zone is None:
        return _UTC  # of Java's own database, or there is none here: it is the same instant
    if not isinstance(zone, timezone):
        return _if_known(str(zone))
    offset = zone.utcoffset(None)
    if not offset:
        return _UTC
    minutes, rest = divmod(abs(offset), timedelta(minutes=1))
    if rest:
        return _UTC  # Arrow has no seconds in an offset: it is the same instant
    sign = "-" if offset < timedelta() else "+"
    return _if_known(f"{sign}{minutes // 60:02}:{minutes % 60:02}")


def _if_known(name: str) -> str:
    try:
        compute.local_timestamp(pa.scalar(0, pa.timestamp("s", name)))
    except pa.ArrowInvalid:
        # It is the same instant. Arrow has no offsets before 22, and reads the system's database,
        # which has less than Python's package.
        return _UTC
    return name
