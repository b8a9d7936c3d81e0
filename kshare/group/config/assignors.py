"""The configurations of a consumer that concern assignors: their kinds and defaults."""

from collections.abc import Mapping
from typing import Any, Final

from kshare.group.protocol.report import ROUND_ROBIN
from kshare.options.kinds import BadValueError, Kind
from kshare.options.raw import Faults
from kshare.options.source import is_assignor_config, parse_task_assignor
from kshare.options.table import OPTIONS

__all__ = [
    "PROBING_MS",
    "RANGE_ASSIGNOR",
    "TASK_ASSIGNOR",
    "check_assignors",
    "is_assignor_text",
]

PROBING_MS: Final = 60_000
"""Default of ``probing.rebalance.interval.ms``. Kafka Streams has ten minutes, as its follow-up
rebalances wait for state that warms up. Here loads are looked at: hashes that stay are delivered
meanwhile, so a rebalance costs a request of each member, and a hot range is relieved in a minute.
It is also the lowest value that Kafka's own assignors allow."""

_SOURCE_KIND: Final = OPTIONS["rangeAssignor"].kind
assert _SOURCE_KIND is not None


def _parse_range_assignor(text: str) -> str:
    assert _SOURCE_KIND is not None
    name: str = _SOURCE_KIND.parse(text)
    if name == "lag-weighted":
        raise BadValueError(
            "cannot cut what members share: lags change all the time, and each change would move "
            "key ranges",
            "allowed: round-robin (default), adaptive, or the dotted path of a callable",
        )
    return name


RANGE_ASSIGNOR: Final = Kind(_SOURCE_KIND.values, _parse_range_assignor)

TASK_ASSIGNOR: Final = Kind("name or dotted path", str.strip)

_TAG: Final = "client.tag."
_TAGS_MAX, _TAG_NAME_MAX, _TAG_VALUE_MAX = 5, 20, 30  # as in Kafka Streams


def is_assignor_text(name: str) -> bool:
    """True if a configuration, in lower case, is one of a task assignor or a client tag."""
    return is_assignor_config(name) or name.startswith(_TAG)


def check_assignors(
    fields: Mapping[str, Any],
    texts: Mapping[str, str],
    faults: Faults,
    given: type | None = None,
) -> dict[str, Any]:
    """Check what concerns assignors.

    Args:
        fields: What the configurations of the consumer itself have been parsed to.
        texts: ``taskAssignor.NAME`` and ``client.tag.NAME``.
        faults: Takes what is wrong.
        given: The task assignor's class, if it was given as one.

    Returns:
        The fields that follow.
    """
    task_assignor = fields.get("task_assignor")
    configs = {name: text for name, text in texts.items() if is_assignor_config(name)}
    tags = {name[len(_TAG) :]: text for name, text in texts.items() if not is_assignor_config(name)}
    found: dict[str, Any] = {"client_tags": tuple(sorted(tags.items()))}
    if task_assignor is not None:
        named = {"taskAssignor": task_assignor, **configs}
        _, found["task_assignor_configs"] = parse_task_assignor(
            named, faults, makes_assignor=True, given=given
        )
    else:
        without = [*configs, *(name for field, name in _OF_TASKS.items() if fields.get(field))]
        for name in without:
            faults.warn(name, "has no effect without taskAssignor")
    if fields.get("order") == "none":
        for field, name in _ASSIGNORS.items():
            if fields.get(field, ROUND_ROBIN) not in {None, ROUND_ROBIN}:
                faults.warn(name, "has no effect with consumption.order=none")
    if fields.get("min_ranges") is not None and fields.get("range_assignor") == "adaptive":
        faults.add(
            "minPartitions", None, "contradicts rangeAssignor=adaptive",
            "load is known of what a member has, and not of each of its ranges: leave out one of "
            "them",
        )  # fmt: skip
    _check_tags(tags, faults)
    return found


_OF_TASKS: Final = {"min_ranges": "minPartitions", "stateful": "stateful"}
_ASSIGNORS: Final = {"range_assignor": "rangeAssignor", "task_assignor": "taskAssignor"}


def _check_tags(tags: Mapping[str, str], faults: Faults) -> None:
    if len(tags) > _TAGS_MAX:
        faults.add("client.tag.*", None, f"are {len(tags)}", f"{_TAGS_MAX} are allowed")
    for name, value in tags.items():
        if not 0 < len(name) <= _TAG_NAME_MAX or len(value) > _TAG_VALUE_MAX:
            faults.add(
                f"{_TAG}{name}", value, "is too long, or has no name",
                f"a name has 1 to {_TAG_NAME_MAX} characters, a value up to {_TAG_VALUE_MAX}",
            )  # fmt: skip
