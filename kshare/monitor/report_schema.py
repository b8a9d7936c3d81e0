"""The JSON of a report, as ``encode_report`` writes it, for pydantic to check.

It has the fields of ``PartitionReport`` and ``RangeReport``; other fields are ignored. Importing
pydantic takes about 0.15 s, so this is imported where a report is read, and never by planners and
tasks.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from kshare.core.checkpoint import EXTRA_KEY
from kshare.core.hashing import HashRange, KeyRanges
from kshare.core.listing import ParkedCount, key_of_json
from kshare.core.slice_end import HotKey

__all__ = ["Latest", "parse_latest"]


def _as_ranges(pairs: list[list[int]]) -> tuple[HashRange, ...]:
    return tuple(KeyRanges.checked(HashRange(*pair) for pair in pairs))


_Count = Annotated[int, Field(ge=0)]
_Number = Annotated[str, Field(pattern="^[0-9]+$")]
_Pair = Annotated[list[int], Field(min_length=2, max_length=2)]
# Pairs in JSON, and a tuple of HashRange when read.
_Hashes = Annotated[list[_Pair], Field(min_length=1), AfterValidator(_as_ranges)]


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class _Key(_Shape):
    key: str | dict[str, str]
    share: Annotated[float, Field(gt=0, le=1)]


def _as_hot_keys(keys: list[_Key]) -> tuple[HotKey, ...]:
    return tuple(HotKey(key_of_json(hot.key), hot.share) for hot in keys)


class _Range(_Shape):
    hashes: _Hashes = Field(alias="h")
    position: _Count
    lag: _Count
    records: _Count | None = None
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    limit: _Count | None = None
    is_parked: bool = Field(default=False, alias="parked")
    # Pairs in JSON, and a tuple of HotKey when read.
    hot_keys: Annotated[list[_Key], AfterValidator(_as_hot_keys)] = Field(
        default=[], alias="keys", validate_default=True
    )


class _Parked(_Shape):
    keys: Annotated[int, Field(gt=0)]
    since: Annotated[float, Field(allow_inf_nan=False)] | None = None


def _as_count(parked: _Parked | None) -> ParkedCount | None:
    return None if parked is None else ParkedCount(parked.keys, parked.since)


class _Partition(_Shape):
    stable: _Count
    gaps: _Count = 0
    entry_bytes: _Count = Field(default=0, alias="bytes")
    retention_at_risk: bool = False
    ranges: list[_Range] = []
    at_risk_from: _Count | None = None
    gaps_max: _Count | None = None
    parked: Annotated[_Parked | None, AfterValidator(_as_count)] = None


class _Extra(_Shape):
    report: dict[str, dict[_Number, _Partition]] = {}


class Latest(_Shape, extra="allow"):
    """The dict: the report, and beside it the ends of logs by topic and partition."""

    __pydantic_extra__: dict[str, dict[_Number, _Count]]
    extra: _Extra = Field(default=_Extra(), alias=EXTRA_KEY)


def parse_latest(value: dict[str, Any]) -> Latest:
    """Check the JSON.

    Raises:
        ValueError: It has another shape; the text names the first field that is wrong.
    """
    try:
        return Latest.model_validate(value)
    except ValidationError as error:
        raise ValueError(_first_fault(error)) from None


def _first_fault(error: ValidationError) -> str:
    """The field, what is wrong with it, and some of its value."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "the report"
    found = "" if first["type"] == "missing" else f", found {repr(first['input'])[:100]}"
    return f"{where}: {first['msg']}{found}"
