"""Targets of ``kshare offsets reset``, as text: the words of Kafka's own tool."""

import argparse
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from kshare.core.progress import TopicPartition
from kshare.group.reset_targets import ResetTo, ShiftBy
from kshare.options.kinds import parse_duration

__all__ = ["reset_target"]

_WANTED: Final = 'wanted earliest, latest, stable, or offsets such as {"orders": {"0": 123}}'
_ISO_DURATION: Final = re.compile(
    r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII
)
_FLAGS: Final = {
    "to": "--to",
    "to_datetime": "--to-datetime",
    "by_duration": "--by-duration",
    "shift_by": "--shift-by",
}


def reset_target(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, now: datetime
) -> ResetTo | None:
    """The target of the reset; None if the command has another purpose.

    Args:
        parser: Takes the fault of an argument.
        arguments: The arguments of ``kshare offsets``.
        now: The time that a duration is before.
    """
    given = [name for name in _FLAGS if getattr(arguments, name) is not None]
    listed = ", ".join(_FLAGS.values())
    if arguments.action != "reset":
        if given:
            parser.error(f"only reset takes {_FLAGS[given[0]]}")
        return None
    if len(given) != 1:
        parser.error(f"reset needs one of {listed}")
    try:
        return _target(given[0], getattr(arguments, given[0]), now)
    except ValueError as error:
        value = getattr(arguments, given[0])
        parser.error(f"argument {_FLAGS[given[0]]}: {value!r}: {error}")


def _target(name: str, text: str, now: datetime) -> ResetTo:
    match name:
        case "to":
            return _place(text)
        case "to_datetime":
            return _moment(text)
        case "by_duration":
            return now - _duration(text)
    try:
        return ShiftBy(int(text))
    except ValueError:
        raise ValueError("wanted a number of offsets, such as -100") from None


def _place(text: str) -> ResetTo:
    if text in {"earliest", "latest", "stable"}:
        return text  # type: ignore[return-value]
    try:
        offsets = {
            TopicPartition(str(topic), int(number)): offset
            for topic, of_topic in json.loads(text).items()
            for number, offset in of_topic.items()
        }
    except (ValueError, AttributeError):
        raise ValueError(_WANTED) from None
    if not offsets or any(type(each) is not int or each < 0 for each in offsets.values()):
        raise ValueError(_WANTED)
    return offsets


def _moment(text: str) -> datetime:
    """A time; without a time zone it is UTC, as for Kafka's tool."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "wanted an ISO 8601 time, such as 2026-03-01T06:00:00Z (UTC without a zone)"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _duration(text: str) -> timedelta:
    """A duration, as ISO 8601 has it (``PT1H30M``), or with one unit (``90m``)."""
    match = _ISO_DURATION.fullmatch(text.upper())
    if match is None:
        return timedelta(seconds=parse_duration(text))
    if not any(match.groups()):
        raise ValueError("wanted a duration, such as PT1H30M, P1D or 90m")
    weeks, days, hours, minutes, seconds = (float(each or 0) for each in match.groups())
    return timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
