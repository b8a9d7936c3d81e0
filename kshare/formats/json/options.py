"""The options of ``from_json`` that change what a text means, under Spark's names."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from kshare.errors import OptionsError
from kshare.formats.json.patterns import Pattern, PatternError
from kshare.formats.json.times import zone_of

__all__ = ["JSON_OPTIONS", "JsonOptions"]


@dataclass(frozen=True, slots=True)
class JsonOptions:
    """The way to read JSON; the defaults are Spark's.

    Attributes:
        partial: A record that has a field of a wrong type keeps its other fields, as with
            ``from_json`` in PERMISSIVE; else it is null. Either way it is a bad record.
        time_zone: Of timestamps without one; a zone's name.
        timestamp_format: A pattern of Java's; None: the ISO forms that Spark reads by default.
        timestamp_ntz_format: The same of timestamps that have no zone.
        date_format: The same of dates.
        allow_comments: ``/* */`` and ``//``.
        allow_unquoted_field_names: Names without quotes.
        allow_single_quotes: Strings and names in single quotes.
        allow_numeric_leading_zeros: Numbers such as 007.
        allow_non_numeric_numbers: NaN, INF, Infinity.
        allow_backslash_escaping_any_character: a backslash before any character.
        allow_unquoted_control_chars: Control characters in strings.
        max_depth: Objects and arrays in each other, at most.
    """

    partial: bool = True
    time_zone: str = "UTC"
    timestamp_format: str | None = None
    timestamp_ntz_format: str | None = None
    date_format: str | None = None
    allow_comments: bool = False
    allow_unquoted_field_names: bool = False
    allow_single_quotes: bool = True
    allow_numeric_leading_zeros: bool = False
    allow_non_numeric_numbers: bool = True
    allow_backslash_escaping_any_character: bool = False
    allow_unquoted_control_chars: bool = False
    max_depth: int = 1000

    @property
    def is_lenient(self) -> bool:
        """True if texts are taken that JSON and Spark's defaults refuse."""
        return (
            self.allow_comments
            or self.allow_unquoted_field_names
            or self.allow_numeric_leading_zeros
            or self.allow_backslash_escaping_any_character
            or self.allow_unquoted_control_chars
        )

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> "JsonOptions":
        """Read the options of Spark's names, whatever their case; others are not looked at.

        Raises:
            OptionsError: One cannot be used; all that cannot be are named.
        """
        found: dict[str, object] = {}
        problems = []
        lowered = {name.lower(): text for name, text in texts.items()}
        for name, attribute in JSON_OPTIONS.items():
            text = lowered.get(name.lower())
            if text is None:
                continue
            try:
                found[attribute] = _read(attribute, text)
            except ValueError as error:
                problems.append(f"{name} is {text!r}; {error}")
        if problems:
            raise OptionsError(problems)
        return cls(**found)  # type: ignore[arg-type]


JSON_OPTIONS: Final[dict[str, str]] = {
    "timeZone": "time_zone",
    "timestampFormat": "timestamp_format",
    "timestampNTZFormat": "timestamp_ntz_format",
    "dateFormat": "date_format",
    "allowComments": "allow_comments",
    "allowUnquotedFieldNames": "allow_unquoted_field_names",
    "allowSingleQuotes": "allow_single_quotes",
    "allowNumericLeadingZeros": "allow_numeric_leading_zeros",
    "allowNonNumericNumbers": "allow_non_numeric_numbers",
    "allowBackslashEscapingAnyCharacter": "allow_backslash_escaping_any_character",
    "allowUnquotedControlChars": "allow_unquoted_control_chars",
    "maxNestingDepth": "max_depth",
}
"""Spark's names, and what they set."""

_KINDS: Final = {field.name: field.type for field in fields(JsonOptions)}
_DEPTH_MAX: Final = 1000


def _read(attribute: str, text: str) -> object:
    """Read an option's text; a ValueError says what is wanted."""
    if _KINDS[attribute] is bool:
        if text.lower() not in {"true", "false"}:
            raise ValueError("wanted true or false")
        return text.lower() == "true"
    if attribute == "max_depth":
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= _DEPTH_MAX):
            raise ValueError(f"wanted a number from 1 to {_DEPTH_MAX}")
        return int(text)
    if attribute == "time_zone":
        if zone_of(text) is None:
            raise ValueError("wanted a time zone, such as UTC or Europe/Paris")
        return text

    try:
        Pattern(text)
    except PatternError as error:
        raise ValueError(str(error)) from None
    return text
